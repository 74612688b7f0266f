"""Documents that tests and benches make: whole ones of each format, and hostile ones."""
