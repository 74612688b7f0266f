-- compatible with 14
CREATE TABLE push_subscriptions (
    tenant     text COLLATE "C" NOT NULL,
    end_user   text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    address    bytea NOT NULL,
    key_id     text NOT NULL,
    body       bytea NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant, end_user, id)
);
CREATE INDEX push_subscriptions_by_address ON push_subscriptions (address);
CREATE TABLE push_outbox (
    tenant       text COLLATE "C" NOT NULL,
    session      text COLLATE "C" NOT NULL,
    subscription text COLLATE "C" NOT NULL,
    end_user     text COLLATE "C" NOT NULL,
    cause        text NOT NULL,
    response     text NOT NULL,
    log_offset   bigint NOT NULL,
    at           bigint NOT NULL,
    due_at       bigint NOT NULL,
    attempts     bigint NOT NULL,
    PRIMARY KEY (tenant, session, subscription)
);
CREATE INDEX push_outbox_due ON push_outbox (due_at);
