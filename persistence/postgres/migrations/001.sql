CREATE TABLE store (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    version     integer NOT NULL,
    identity    text    NOT NULL,
    incarnation text    NOT NULL
);
INSERT INTO store (version, identity, incarnation) VALUES (0, '', '');

CREATE TABLE writers (
    id      text   PRIMARY KEY,
    commits bigint NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

CREATE TABLE heads (
    tenant      text COLLATE "C" NOT NULL,
    session     text COLLATE "C" NOT NULL,
    fence       bigint  NOT NULL,
    top         bigint  NOT NULL,
    empty       boolean NOT NULL DEFAULT true,
    epoch       text    NOT NULL,
    incarnation text    NOT NULL,
    owner       text    NOT NULL,
    open        boolean NOT NULL DEFAULT false,
    listed      boolean NOT NULL DEFAULT true,
    end_user    text,
    model       text    NOT NULL DEFAULT '',
    key_id      text    NOT NULL,
    about       bytea   NOT NULL,
    created_at  bigint  NOT NULL,
    updated_at  bigint  NOT NULL,
    deleted_at  bigint,
    PRIMARY KEY (tenant, session)
) WITH (fillfactor = 70);
CREATE INDEX heads_listed ON heads (tenant, updated_at DESC, session) WHERE listed AND deleted_at IS NULL;
CREATE INDEX heads_listed_by_user ON heads (tenant, end_user, updated_at DESC, session)
    WHERE listed AND deleted_at IS NULL AND end_user IS NOT NULL;
CREATE INDEX heads_open ON heads (tenant, session) WHERE open;
CREATE INDEX heads_deleted ON heads (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX heads_empty ON heads (updated_at) WHERE empty;

CREATE TABLE events (
    tenant   text COLLATE "C" NOT NULL,
    session  text COLLATE "C" NOT NULL,
    "offset" bigint NOT NULL,
    key_id   text   NOT NULL,
    body     bytea  NOT NULL,
    PRIMARY KEY (tenant, session, "offset")
);

CREATE TABLE commands (
    tenant    text COLLATE "C" NOT NULL,
    session   text COLLATE "C" NOT NULL,
    principal text COLLATE "C" NOT NULL,
    command   text COLLATE "C" NOT NULL,
    at        bigint NOT NULL,
    digest    bytea  NOT NULL,
    answer    bytea  NOT NULL,
    PRIMARY KEY (tenant, session, principal, command)
);
CREATE INDEX commands_at ON commands (at);

CREATE TABLE snapshots (
    tenant   text COLLATE "C" NOT NULL,
    session  text COLLATE "C" NOT NULL,
    "offset" bigint NOT NULL,
    key_id   text   NOT NULL,
    body     bytea  NOT NULL,
    PRIMARY KEY (tenant, session)
);

CREATE TABLE usage (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     text COLLATE "C" NOT NULL,
    session    text COLLATE "C" NOT NULL,
    response   text COLLATE "C" NOT NULL,
    principal_key  text NOT NULL,
    principal_user text,
    principal_role text NOT NULL,
    model      text   NOT NULL,
    status     text   NOT NULL,
    input_tokens      bigint NOT NULL,
    output_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    reasoning_tokens  bigint NOT NULL,
    recomputed_tokens bigint NOT NULL,
    withheld_tokens   bigint NOT NULL,
    at         bigint NOT NULL,
    relayed_at bigint,
    UNIQUE (tenant, session, response)
);
CREATE INDEX usage_at ON usage (tenant, at, seq);
CREATE INDEX usage_unrelayed ON usage (seq) WHERE relayed_at IS NULL;
