CREATE INDEX heads_unlisted ON heads (updated_at) WHERE listed = 0 AND deleted_at IS NULL;
