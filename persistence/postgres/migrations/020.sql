-- compatible with 14
CREATE TABLE added_tools (
    tenant  text COLLATE "C" NOT NULL PRIMARY KEY,
    version bigint NOT NULL,
    key_id  text COLLATE "C" NOT NULL,
    body    bytea NOT NULL
);
CREATE UNIQUE INDEX added_tools_by_version ON added_tools (version);
