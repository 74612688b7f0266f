CREATE TABLE erasures (
    tenant   TEXT    NOT NULL,
    end_user TEXT    NOT NULL,
    asked_at INTEGER NOT NULL,
    asked_by TEXT    NOT NULL,
    released TEXT    NOT NULL,
    done_at  INTEGER,
    PRIMARY KEY (tenant, end_user, asked_at)
) WITHOUT ROWID, STRICT;
CREATE INDEX erasures_pending ON erasures (asked_at) WHERE done_at IS NULL;
