CREATE TABLE responses (
    tenant   TEXT    NOT NULL,
    response TEXT    NOT NULL,
    session  TEXT    NOT NULL,
    "offset" INTEGER NOT NULL,
    PRIMARY KEY (tenant, response)
) WITHOUT ROWID, STRICT;
CREATE INDEX responses_of_session ON responses (tenant, session);
