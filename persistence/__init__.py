"""Stores: the journal on memory, SQLite and PostgreSQL, the key store, and the codec of what they keep."""

from persistence.choice import open_journal, open_keys

__all__ = ["open_journal", "open_keys"]
