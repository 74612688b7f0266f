"""Stores: the journal on memory, SQLite and PostgreSQL, and the codec of what they keep."""
