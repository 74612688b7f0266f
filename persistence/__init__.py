"""Stores: the journal on memory, SQLite and PostgreSQL, the key store, and the codec of what they keep."""

from persistence.choice import KeyStore, open_journal, open_keys

__all__ = ["KeyStore", "open_journal", "open_keys"]
