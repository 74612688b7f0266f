-- compatible with 14
CREATE TABLE added_tools (
    tenant  TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    key_id  TEXT NOT NULL,
    body    BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX added_tools_by_version ON added_tools (version);
