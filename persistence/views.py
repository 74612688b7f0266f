"""A store made of a journal and the views of its database, until the drivers are stores themselves."""

from __future__ import annotations

from persistence.audit import audit_of
from persistence.end_users import end_users_of
from persistence.open_store import AnyJournal, api_keys_of
from persistence.reviews import reviews_of
from persistence.usage import usage_of
from sessions.store import Store


class _Views:
    """Implements `Store`."""

    def __init__(self, journal: AnyJournal) -> None:
        self.journal = journal
        self.open, self.close = journal.open, journal.close
        self.usage = usage_of(journal)
        self.reviews = reviews_of(journal)
        self.audit = audit_of(journal)
        self.api_keys = api_keys_of(journal)
        self.end_users = end_users_of(journal)


def views_of(journal: AnyJournal) -> Store:
    return _Views(journal)
