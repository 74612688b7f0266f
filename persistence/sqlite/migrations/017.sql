-- compatible with 14
CREATE TABLE push_subscriptions (
    tenant     TEXT NOT NULL,
    end_user   TEXT NOT NULL,
    id         TEXT NOT NULL,
    address    BLOB NOT NULL,
    key_id     TEXT NOT NULL,
    body       BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, end_user, id)
) WITHOUT ROWID, STRICT;
CREATE INDEX push_subscriptions_by_address ON push_subscriptions (address);
CREATE TABLE push_outbox (
    tenant       TEXT NOT NULL,
    session      TEXT NOT NULL,
    subscription TEXT NOT NULL,
    end_user     TEXT NOT NULL,
    cause        TEXT NOT NULL,
    response     TEXT NOT NULL,
    log_offset   INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    PRIMARY KEY (tenant, session, subscription)
) WITHOUT ROWID, STRICT;
CREATE INDEX push_outbox_due ON push_outbox (due_at);
