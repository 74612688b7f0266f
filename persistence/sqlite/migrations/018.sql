-- compatible with 14
CREATE TABLE files (
    tenant     TEXT NOT NULL,
    id         TEXT NOT NULL,
    end_user   TEXT NOT NULL,
    purpose    TEXT NOT NULL,
    size       INTEGER NOT NULL,
    blob       TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    body       BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID, STRICT;
CREATE INDEX files_by_owner ON files (tenant, end_user, created_at, id);
CREATE INDEX files_by_time ON files (tenant, created_at, id);
CREATE INDEX files_by_blob ON files (tenant, blob);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE file_blobs (
    tenant     TEXT NOT NULL,
    id         TEXT NOT NULL,
    end_user   TEXT NOT NULL,
    address    TEXT NOT NULL,
    chunks     INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    due_at     INTEGER,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID, STRICT;
CREATE UNIQUE INDEX file_blobs_by_address ON file_blobs (tenant, end_user, address) WHERE address <> '';
CREATE INDEX file_blobs_due ON file_blobs (due_at) WHERE due_at IS NOT NULL;
CREATE TABLE file_chunks (
    tenant   TEXT NOT NULL,
    blob     TEXT NOT NULL,
    place    INTEGER NOT NULL,
    end_user TEXT NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (tenant, blob, place)
) STRICT;
