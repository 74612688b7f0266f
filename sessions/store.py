"""The port of a store: one database, and the six views of it that others are given.

All six share its transactions: a usage row, a review case and an audit row stand with the append that they belong to.
`persistence` has three drivers (memory, SQLite, PostgreSQL); the URL that it is opened with names the one.
"""

from __future__ import annotations

from typing import Protocol

from sessions.billing.metering import UsageStore
from sessions.governance.end_user_data import EndUserStore
from sessions.model.api_keys import ApiKeyStore
from sessions.model.audit import AuditLog
from sessions.model.reviews import ReviewStore
from sessions.ports import Journal

__all__ = ["Store"]


class Store(Protocol):
    """One database. `open` and `close` are its owner's; whoever is given a view never closes it."""

    @property
    def journal(self) -> Journal: ...

    @property
    def usage(self) -> UsageStore: ...

    @property
    def reviews(self) -> ReviewStore: ...

    @property
    def audit(self) -> AuditLog: ...

    @property
    def api_keys(self) -> ApiKeyStore: ...

    @property
    def end_users(self) -> EndUserStore: ...

    async def open(self) -> None:
        """Takes locks, checks integrity and migrates. Raises Unavailable saying what to do about it."""
        ...

    async def close(self) -> None:
        """Finishes what was accepted; afterwards every call raises Unavailable."""
        ...
