CREATE TABLE reviews (
    tenant        text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    session       text COLLATE "C" NOT NULL,
    cause         text   NOT NULL,
    direction     text   NOT NULL,
    action        text   NOT NULL,
    category      text   NOT NULL,
    score         double precision NOT NULL,
    model         text   NOT NULL,
    policy        text   NOT NULL,
    end_user      text,
    response      text,
    item          text,
    log_offset    bigint NOT NULL,
    span_start    bigint NOT NULL,
    span_end      bigint NOT NULL,
    kept          bytea  NOT NULL,
    note          bytea  NOT NULL,
    opened_at     bigint NOT NULL,
    appealed_at   bigint,
    remark        bytea  NOT NULL DEFAULT '',
    state         text   NOT NULL DEFAULT 'open',
    claimed_by    text   NOT NULL DEFAULT '',
    claimed_until bigint NOT NULL DEFAULT 0,
    claim_command text   NOT NULL DEFAULT '',
    outcome       text,
    decided_by    text   NOT NULL DEFAULT '',
    decided_at    bigint,
    decide_command text  NOT NULL DEFAULT '',
    decisions     bigint NOT NULL DEFAULT 0,
    told          bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX reviews_id ON reviews (id);
CREATE INDEX reviews_opened ON reviews (tenant, opened_at, id);
CREATE INDEX reviews_of_session ON reviews (tenant, session);
CREATE INDEX reviews_untold ON reviews (decided_at) WHERE told = 0;
