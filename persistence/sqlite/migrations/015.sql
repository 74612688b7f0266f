-- compatible with 14
CREATE TABLE applied_migrations (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    number INTEGER NOT NULL
) STRICT;
INSERT INTO applied_migrations (one, number) VALUES (1, 15);
