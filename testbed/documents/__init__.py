"""Documents: whole ones of each format, and hostile ones."""
