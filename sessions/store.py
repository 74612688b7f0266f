"""The port of a store: one database, and the views of it that the parts of a server get.

The views share its transactions: a usage row, a review case and an audit row are written with the append that they
belong to. `persistence` has three drivers (memory, SQLite, PostgreSQL); `persistence.open_store` picks one by URL.
"""

from __future__ import annotations

from typing import Protocol

from sessions.added_tools import AddedToolStore
from sessions.billing.metering import UsageStore
from sessions.governance.end_user_data import EndUserStore
from sessions.limits import Tallies
from sessions.model.api_keys import ApiKeyStore
from sessions.model.audit import AuditLog
from sessions.model.knowledge.files import FileStore
from sessions.model.push import PushStore
from sessions.model.reviews import ReviewStore
from sessions.model.revocations import RevocationStore
from sessions.model.shares import ShareStore
from sessions.ports import Journal
from sessions.tool_records import ToolRecordStore

__all__ = ["Store"]


class Store(Protocol):
    """One database. Only its owner calls `open` and `close`; users of its views never close it."""

    @property
    def journal(self) -> Journal: ...

    @property
    def tallies(self) -> Tallies: ...

    @property
    def usage(self) -> UsageStore: ...

    @property
    def reviews(self) -> ReviewStore: ...

    @property
    def shares(self) -> ShareStore: ...

    @property
    def push(self) -> PushStore: ...

    @property
    def files(self) -> FileStore: ...

    @property
    def audit(self) -> AuditLog: ...

    @property
    def api_keys(self) -> ApiKeyStore: ...

    @property
    def revocations(self) -> RevocationStore: ...

    @property
    def tool_records(self) -> ToolRecordStore: ...

    @property
    def added_tools(self) -> AddedToolStore: ...

    @property
    def end_users(self) -> EndUserStore: ...

    async def open(self) -> None:
        """Opens the database: takes locks, checks integrity and migrates. Raises Unavailable, whose text says what to
        do."""
        ...

    async def close(self) -> None:
        """Finishes the writes that were accepted. After that every call raises Unavailable."""
        ...
