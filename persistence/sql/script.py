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
    """Likewise of a tenant's audit chain."""

    tenant: TenantId


class Chain(NamedTuple):
    """Puts entries of one tenant behind its audit chain. The chain stays locked: for a last step before the commit."""

    entries: Sequence[AuditEntry]


Script = Generator[Query | Lock | LockChain | Chain, list[Any], T]


class SqlDatabase(Protocol):
    """What a view needs of its database; good for as long as that is open."""

    @property
    def codec(self) -> Codec: ...

    @property
    def sealer(self) -> Sealer: ...

    async def rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows of a read, after whatever was acknowledged before it."""
        ...

    async def run(self, script: Callable[[], Script[T]], *, timeout_s: float | None = None) -> T:
        """Runs a script in a transaction of its own. `timeout_s`: for one that goes over very many rows."""
        ...


class Parameters:
    """Those of a statement that is put together: each gets the mark that stands for it in the text."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def put(self, value: Any) -> str:
        self.values.append(value)
        return f"${len(self.values)}"


def one_query(text: str, values: Sequence[Any]) -> Script[list[Any]]:
    """The script of a single statement; its rows."""
    return (yield Query(text, values))
