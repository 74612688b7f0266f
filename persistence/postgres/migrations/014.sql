CREATE TABLE memories (
    tenant     text COLLATE "C" NOT NULL,
    end_user   text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    key_id     text   NOT NULL,
    body       bytea  NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant, end_user, id)
);
