"""Where takings are counted: in one process (`memory`), for a cluster (`valkey`), and without it (`lost`)."""
