CREATE TABLE reviews (
    tenant        TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    session       TEXT    NOT NULL,
    cause         TEXT    NOT NULL,
    direction     TEXT    NOT NULL,
    action        TEXT    NOT NULL,
    category      TEXT    NOT NULL,
    score         REAL    NOT NULL,
    model         TEXT    NOT NULL,
    policy        TEXT    NOT NULL,
    end_user      TEXT,
    response      TEXT,
    item          TEXT,
    log_offset    INTEGER NOT NULL,
    span_start    INTEGER NOT NULL,
    span_end      INTEGER NOT NULL,
    kept          BLOB    NOT NULL,
    note          BLOB    NOT NULL,
    opened_at     INTEGER NOT NULL,
    appealed_at   INTEGER,
    remark        BLOB    NOT NULL DEFAULT x'',
    state         TEXT    NOT NULL DEFAULT 'open',
    claimed_by    TEXT    NOT NULL DEFAULT '',
    claimed_until INTEGER NOT NULL DEFAULT 0,
    claim_command TEXT    NOT NULL DEFAULT '',
    outcome       TEXT,
    decided_by    TEXT    NOT NULL DEFAULT '',
    decided_at    INTEGER,
    decide_command TEXT   NOT NULL DEFAULT '',
    decisions     INTEGER NOT NULL DEFAULT 0,
    told          INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID, STRICT;
CREATE INDEX reviews_id ON reviews (id);
CREATE INDEX reviews_opened ON reviews (tenant, opened_at, id);
CREATE INDEX reviews_of_session ON reviews (tenant, session);
CREATE INDEX reviews_untold ON reviews (decided_at) WHERE told = 0;
