CREATE TABLE shares (
    tenant     text COLLATE "C" NOT NULL,
    session    text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    token_hash bytea  NOT NULL UNIQUE,
    item       text   NOT NULL,
    log_offset bigint NOT NULL,
    created_at bigint NOT NULL,
    created_by text   NOT NULL,
    PRIMARY KEY (tenant, session, id)
);
