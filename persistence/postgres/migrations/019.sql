-- compatible with 14
CREATE TABLE tool_records (
    tenant  text COLLATE "C" NOT NULL,
    kind    text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    body    text NOT NULL,
    put_at  bigint NOT NULL,
    put_by  text NOT NULL,
    PRIMARY KEY (tenant, kind, name)
);
