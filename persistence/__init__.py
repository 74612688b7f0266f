"""Stores: the journal on memory, SQLite and PostgreSQL, the key store, API keys, the audit log, and the codec of what
they keep."""

from persistence.audit import audit_of
from persistence.end_users import end_users_of
from persistence.open_store import AnyJournal, KeyStore, api_keys_of, connect_journal, open_journal, open_key_store

__all__ = [
    "AnyJournal",
    "KeyStore",
    "api_keys_of",
    "audit_of",
    "connect_journal",
    "end_users_of",
    "open_journal",
    "open_key_store",
]
