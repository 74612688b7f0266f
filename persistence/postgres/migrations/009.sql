CREATE TABLE audit_floors (
    tenant text COLLATE "C" NOT NULL PRIMARY KEY,
    seq    bigint NOT NULL,
    mac    bytea  NOT NULL,
    until  bigint NOT NULL,
    key_id text   NOT NULL,
    seal   bytea  NOT NULL
);
CREATE FUNCTION audit_stays_from_floor() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM audit_floors WHERE tenant = OLD.tenant AND seq >= OLD.seq) THEN
        RAISE EXCEPTION 'the audit log is only ever added to';
    END IF;
    RETURN OLD;
END $$;
DROP TRIGGER audit_stays ON audit;
CREATE TRIGGER audit_stays BEFORE UPDATE OR TRUNCATE ON audit EXECUTE FUNCTION audit_stays();
CREATE TRIGGER audit_stays_from_floor BEFORE DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION audit_stays_from_floor();
