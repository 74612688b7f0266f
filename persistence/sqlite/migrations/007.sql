CREATE TABLE audit (
    tenant TEXT    NOT NULL,
    seq    INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    about  TEXT    NOT NULL,
    key_id TEXT    NOT NULL,
    body   BLOB    NOT NULL,
    prev   BLOB    NOT NULL,
    mac    BLOB    NOT NULL,
    PRIMARY KEY (tenant, seq)
) WITHOUT ROWID, STRICT;
CREATE INDEX audit_about ON audit (tenant, about, seq) WHERE about <> '';
CREATE TABLE audit_heads (
    tenant TEXT    NOT NULL PRIMARY KEY,
    seq    INTEGER NOT NULL,
    mac    BLOB    NOT NULL,
    seal   BLOB    NOT NULL
) WITHOUT ROWID, STRICT;
CREATE TABLE audit_secret (
    one    INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    secret BLOB    NOT NULL
) STRICT;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN
    SELECT RAISE(ABORT, 'the audit log is only ever added to');
END;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit BEGIN
    SELECT RAISE(ABORT, 'the audit log is only ever added to');
END;
