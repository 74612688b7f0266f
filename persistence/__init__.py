"""Stores: the journal on memory, SQLite and PostgreSQL, and the codec of what they keep."""

from persistence.choice import open_journal

__all__ = ["open_journal"]
