CREATE TABLE memories (
    tenant     TEXT    NOT NULL,
    end_user   TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    key_id     TEXT    NOT NULL,
    body       BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, end_user, id)
) WITHOUT ROWID, STRICT;
