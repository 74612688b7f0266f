-- compatible with 14
CREATE TABLE files (
    tenant     text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    end_user   text COLLATE "C" NOT NULL,
    purpose    text COLLATE "C" NOT NULL,
    size       bigint NOT NULL,
    blob       text COLLATE "C" NOT NULL,
    key_id     text COLLATE "C" NOT NULL,
    body       bytea NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX files_by_owner ON files (tenant, end_user, created_at, id);
CREATE INDEX files_by_time ON files (tenant, created_at, id);
CREATE INDEX files_by_blob ON files (tenant, blob);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE file_blobs (
    tenant     text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    end_user   text COLLATE "C" NOT NULL,
    address    text COLLATE "C" NOT NULL,
    chunks     bigint NOT NULL,
    created_at bigint NOT NULL,
    due_at     bigint,
    PRIMARY KEY (tenant, id)
);
CREATE UNIQUE INDEX file_blobs_by_address ON file_blobs (tenant, end_user, address) WHERE address <> '';
CREATE INDEX file_blobs_due ON file_blobs (due_at) WHERE due_at IS NOT NULL;
CREATE TABLE file_chunks (
    tenant   text COLLATE "C" NOT NULL,
    blob     text COLLATE "C" NOT NULL,
    place    bigint NOT NULL,
    end_user text COLLATE "C" NOT NULL,
    body     bytea NOT NULL,
    PRIMARY KEY (tenant, blob, place)
);
