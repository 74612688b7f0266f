CREATE TABLE erasures (
    tenant   text COLLATE "C" NOT NULL,
    end_user text COLLATE "C" NOT NULL,
    asked_at bigint NOT NULL,
    asked_by text   NOT NULL,
    released text   NOT NULL,
    done_at  bigint,
    PRIMARY KEY (tenant, end_user, asked_at)
);
CREATE INDEX erasures_pending ON erasures (asked_at) WHERE done_at IS NULL;
