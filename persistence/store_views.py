"""The views of an opened journal as a `Store`; stands in until the drivers are stores themselves."""

from __future__ import annotations

from typing import cast

from persistence.audit import audit_of
from persistence.end_users import end_users_of
from persistence.open_store import AnyJournal, api_keys_of
from persistence.reviews import reviews_of
from persistence.usage import usage_of
from sessions.ports import Journal


class StoreViews:
    def __init__(self, journal: Journal) -> None:
        opened = cast(AnyJournal, journal)
        self.journal = journal
        self.usage = usage_of(opened)
        self.reviews = reviews_of(opened)
        self.audit = audit_of(opened)
        self.api_keys = api_keys_of(opened)
        self.end_users = end_users_of(opened)

    async def open(self) -> None:
        await self.journal.open()

    async def close(self) -> None:
        await self.journal.close()
