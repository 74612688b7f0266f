"""Stores: the journal on memory, SQLite and PostgreSQL, the key store, API keys, and the codec of what they keep."""

from persistence.choice import JournalStore, KeyStore, api_keys_of, open_journal, open_keys

__all__ = ["JournalStore", "KeyStore", "api_keys_of", "open_journal", "open_keys"]
