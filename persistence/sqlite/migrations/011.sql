CREATE TABLE revocations (
    issuer     TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    version    INTEGER NOT NULL UNIQUE,
    revoked_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    revoked_by TEXT    NOT NULL,
    PRIMARY KEY (issuer, kind, name)
) WITHOUT ROWID, STRICT;
