CREATE TABLE responses (
    tenant   text COLLATE "C" NOT NULL,
    response text COLLATE "C" NOT NULL,
    session  text COLLATE "C" NOT NULL,
    "offset" bigint NOT NULL,
    PRIMARY KEY (tenant, response)
);
CREATE INDEX responses_of_session ON responses (tenant, session);
