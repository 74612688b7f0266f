CREATE INDEX heads_unlisted ON heads (updated_at) WHERE NOT listed AND deleted_at IS NULL;
