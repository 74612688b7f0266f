-- compatible with 14
CREATE TABLE tool_records (
    tenant  TEXT NOT NULL,
    kind    TEXT NOT NULL,
    name    TEXT NOT NULL,
    body    TEXT NOT NULL,
    put_at  INTEGER NOT NULL,
    put_by  TEXT NOT NULL,
    PRIMARY KEY (tenant, kind, name)
) WITHOUT ROWID, STRICT;
