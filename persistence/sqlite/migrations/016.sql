-- compatible with 14
CREATE TABLE archived (
    tenant      TEXT    NOT NULL,
    session     TEXT    NOT NULL,
    object      TEXT    NOT NULL,
    top         INTEGER NOT NULL,
    size        INTEGER NOT NULL,
    key_id      TEXT    NOT NULL,
    sealed      BLOB    NOT NULL,
    archived_at INTEGER NOT NULL,
    recalled_at INTEGER,
    replaced_at INTEGER,
    PRIMARY KEY (tenant, session, object)
) WITHOUT ROWID, STRICT;
