"""Stores: the journal on memory, SQLite and PostgreSQL, the key store, API keys, the audit log, and the codec of what
they keep."""

from persistence.audit import audit_of
from persistence.end_users import personal_of
from persistence.open_store import JournalStore, KeyStore, api_keys_of, open_journal, open_keys, opened_journal

__all__ = [
    "JournalStore",
    "KeyStore",
    "api_keys_of",
    "audit_of",
    "open_journal",
    "open_keys",
    "opened_journal",
    "personal_of",
]
