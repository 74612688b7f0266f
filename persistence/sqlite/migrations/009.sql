CREATE TABLE audit_floors (
    tenant TEXT    NOT NULL PRIMARY KEY,
    seq    INTEGER NOT NULL,
    mac    BLOB    NOT NULL,
    until  INTEGER NOT NULL,
    key_id TEXT    NOT NULL,
    seal   BLOB    NOT NULL
) WITHOUT ROWID, STRICT;
DROP TRIGGER audit_is_not_deleted;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
WHEN NOT EXISTS (SELECT 1 FROM audit_floors WHERE tenant = OLD.tenant AND seq >= OLD.seq) BEGIN
    SELECT RAISE(ABORT, 'the audit log is only ever added to');
END;
