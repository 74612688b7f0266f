CREATE TABLE shares (
    tenant     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    token_hash BLOB    NOT NULL UNIQUE,
    item       TEXT    NOT NULL,
    log_offset INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT    NOT NULL,
    PRIMARY KEY (tenant, session, id)
) WITHOUT ROWID, STRICT;
