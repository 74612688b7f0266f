CREATE TABLE reencryptions (
    tenant  TEXT NOT NULL PRIMARY KEY,
    key_id  TEXT NOT NULL,
    place   TEXT NOT NULL,
    changed INTEGER NOT NULL,
    plain   INTEGER NOT NULL,
    done_at INTEGER
) WITHOUT ROWID, STRICT;
