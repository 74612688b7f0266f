CREATE TABLE api_keys (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    version    bigint NOT NULL UNIQUE,
    digest     bytea  NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    role       text   NOT NULL,
    end_user   text,
    scopes     text   NOT NULL,
    name       text   NOT NULL,
    created_at bigint NOT NULL,
    created_by text   NOT NULL,
    expires_at bigint,
    revoked_at bigint
);
