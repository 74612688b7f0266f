CREATE TABLE revocations (
    issuer     text COLLATE "C" NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL UNIQUE,
    revoked_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    revoked_by text   NOT NULL,
    PRIMARY KEY (issuer, kind, name)
);
