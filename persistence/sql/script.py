"""Transactions of both databases, written once: a script yields statements and is sent their rows.

    def revoke(key_id) -> Script[bool]:
        yield Lock("api_keys")
        changed = yield Query("UPDATE api_keys ... WHERE id = $1 RETURNING id", (key_id,))
        yield Chain([entry])
        return bool(changed)

The driver runs it in one transaction: SQLite on its writer's thread, in a group commit; PostgreSQL over a connection of
its pool. A script may be run again from its start, so it has no effect but what it yields. The SessileError that it
raises is its caller's; it raises before it writes what must not stand.

Parameters are written `$n` (SQLite's `?n`). Knows no driver.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from persistence.codec import Codec
from sessions.model.audit import AuditEntry, Sealer
from sessions.model.types import TenantId

T = TypeVar("T")


class Query(NamedTuple):
    text: str
    values: Sequence[Any] = ()


class Lock(NamedTuple):
    """Keeps other writers off a table until the transaction ends. SQLite has one writer and does nothing."""

    table: str


class LockChain(NamedTuple):
    """Keeps other writers off a tenant's audit chain until the transaction ends. SQLite has one writer and does
    nothing."""

    tenant: TenantId


class Chain(NamedTuple):
    """Appends entries of one tenant to its audit chain, which stays locked: yield it just before the commit."""

    entries: Sequence[AuditEntry]


Script = Generator[Query | Lock | LockChain | Chain, list[Any], T]


class SqlDatabase(Protocol):
    """The operations that a store's views need of its database; usable while the database is open."""

    @property
    def codec(self) -> Codec: ...

    @property
    def sealer(self) -> Sealer: ...

    async def rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """Returns the rows of a read, which sees every write that was acknowledged before it."""
        ...

    async def run(self, script: Callable[[], Script[T]]) -> T:
        """Runs a script in a transaction of its own."""
        ...


class Parameters:
    """Collects the values of a statement that is being put together; `put` returns the placeholder for its text."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def put(self, value: Any) -> str:
        self.values.append(value)
        return f"${len(self.values)}"


def one_query(text: str, values: Sequence[Any]) -> Script[list[Any]]:
    """Runs a single statement as a script; returns its rows."""
    return (yield Query(text, values))
