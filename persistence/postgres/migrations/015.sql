-- compatible with 14
ALTER TABLE store ADD COLUMN applied integer NOT NULL DEFAULT 0;
