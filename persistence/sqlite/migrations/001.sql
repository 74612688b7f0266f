CREATE TABLE heads (
    tenant      TEXT    NOT NULL,
    session     TEXT    NOT NULL,
    fence       INTEGER NOT NULL,
    top         INTEGER NOT NULL,
    epoch       TEXT    NOT NULL,
    incarnation TEXT    NOT NULL,
    owner       TEXT    NOT NULL,
    open        INTEGER NOT NULL DEFAULT 0,
    listed      INTEGER NOT NULL DEFAULT 1,
    user        TEXT,
    model       TEXT    NOT NULL DEFAULT '',
    key_id      TEXT    NOT NULL,
    about       BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    deleted_at  INTEGER,
    PRIMARY KEY (tenant, session)
) WITHOUT ROWID, STRICT;
CREATE INDEX heads_listed ON heads (tenant, updated_at DESC, session) WHERE listed = 1 AND deleted_at IS NULL;
CREATE INDEX heads_listed_by_user ON heads (tenant, user, updated_at DESC, session)
    WHERE listed = 1 AND deleted_at IS NULL AND user IS NOT NULL;
CREATE INDEX heads_open ON heads (tenant, session) WHERE open = 1;
CREATE INDEX heads_deleted ON heads (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX heads_empty ON heads (updated_at) WHERE top = 0;

CREATE TABLE events (
    tenant  TEXT    NOT NULL,
    session TEXT    NOT NULL,
    "offset" INTEGER NOT NULL,
    key_id  TEXT    NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (tenant, session, "offset")
) STRICT;

CREATE TABLE commands (
    tenant     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    principal  TEXT    NOT NULL,
    command    TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    digest     BLOB    NOT NULL,
    answer     BLOB    NOT NULL,
    PRIMARY KEY (tenant, session, principal, command)
) WITHOUT ROWID, STRICT;
CREATE INDEX commands_at ON commands (at);

CREATE TABLE snapshots (
    tenant  TEXT    NOT NULL,
    session TEXT    NOT NULL,
    "offset" INTEGER NOT NULL,
    key_id  TEXT    NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (tenant, session)
) WITHOUT ROWID, STRICT;

CREATE TABLE usage (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    response   TEXT    NOT NULL,
    principal_key  TEXT NOT NULL,
    principal_user TEXT,
    principal_role TEXT NOT NULL,
    model      TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    input_tokens      INTEGER NOT NULL,
    output_tokens     INTEGER NOT NULL,
    cached_tokens     INTEGER NOT NULL,
    reasoning_tokens  INTEGER NOT NULL,
    recomputed_tokens INTEGER NOT NULL,
    withheld_tokens   INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    relayed_at INTEGER,
    UNIQUE (tenant, session, response)
) STRICT;
CREATE INDEX usage_at ON usage (tenant, at, seq);
CREATE INDEX usage_unrelayed ON usage (seq) WHERE relayed_at IS NULL;
