-- compatible with 14
CREATE TABLE archived (
    tenant      text COLLATE "C" NOT NULL,
    session     text COLLATE "C" NOT NULL,
    object      text COLLATE "C" NOT NULL,
    top         bigint NOT NULL,
    size        bigint NOT NULL,
    key_id      text   NOT NULL,
    sealed      bytea  NOT NULL,
    archived_at bigint NOT NULL,
    recalled_at bigint,
    replaced_at bigint,
    PRIMARY KEY (tenant, session, object)
);
