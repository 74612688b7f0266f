CREATE TABLE api_keys (
    id         TEXT    NOT NULL PRIMARY KEY,
    version    INTEGER NOT NULL UNIQUE,
    digest     BLOB    NOT NULL,
    tenant     TEXT    NOT NULL,
    role       TEXT    NOT NULL,
    end_user   TEXT,
    scopes     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT    NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) WITHOUT ROWID, STRICT;
