CREATE TABLE audit (
    tenant text COLLATE "C" NOT NULL,
    seq    bigint NOT NULL,
    at     bigint NOT NULL,
    about  text COLLATE "C" NOT NULL,
    key_id text   NOT NULL,
    body   bytea  NOT NULL,
    prev   bytea  NOT NULL,
    mac    bytea  NOT NULL,
    PRIMARY KEY (tenant, seq)
);
CREATE INDEX audit_about ON audit (tenant, about, seq) WHERE about <> '';
CREATE TABLE audit_heads (
    tenant text COLLATE "C" NOT NULL PRIMARY KEY,
    seq    bigint NOT NULL,
    mac    bytea  NOT NULL,
    seal   bytea  NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE audit_secret (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    secret bytea NOT NULL
);
CREATE FUNCTION audit_stays() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the audit log is only ever added to'; END $$;
CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON audit EXECUTE FUNCTION audit_stays();
