ALTER TABLE usage ADD COLUMN cached_output_tokens bigint NOT NULL DEFAULT 0;
