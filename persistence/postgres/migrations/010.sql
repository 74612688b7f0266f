CREATE TABLE reencryptions (
    tenant  text COLLATE "C" NOT NULL PRIMARY KEY,
    key_id  text NOT NULL,
    place   text NOT NULL,
    changed bigint NOT NULL,
    plain   bigint NOT NULL,
    done_at bigint
);
