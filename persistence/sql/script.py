"""Transactions of both databases, written once: a script yields statements and is sent their rows.

    def revoke(key_id) -> Script[bool]:
        yield Lock("api_keys")
        changed = yield Query("UPDATE api_keys ... WHERE id = $1 RETURNING id", (key_id,))
        yield Chain([entry])
        return bool(changed)

The driver runs it in one transaction: SQLite on its writer's thread, in a group commit; PostgreSQL over a connection of
its pool. A script may be run again from its start, so it has no effect but what it yields. A SessileError that it
raises reaches its caller; a script raises before it writes what must not be stored.

Parameters are written `$n` (SQLite's `?n`). Knows no driver.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from persistence.codec import Codec
from sessions.model.audit import Audited, AuditEntry, Sealer
from sessions.model.types import TenantId

T = TypeVar("T")


class Query(NamedTuple):
    text: str
    values: Sequence[Any] = ()


class Lock(NamedTuple):
    """Keeps other writers off a table until the transaction ends. It does nothing on SQLite, which has one writer."""

    table: str


class LockChain(NamedTuple):
    """Keeps other writers off a tenant's audit chain until the transaction ends. It does nothing on SQLite, which has
    one writer."""

    tenant: TenantId


class Chain(NamedTuple):
    """Appends entries of one tenant to its audit chain. The chain stays locked, so a script yields this just before its
    end."""

    entries: Sequence[AuditEntry]


Script = Generator[Query | Lock | LockChain | Chain, list[Any], T]


class SqlDatabase(Protocol):
    """The operations that a store's views need of its database; usable while the database is open."""

    @property
    def codec(self) -> Codec: ...

    @property
    def sealer(self) -> Sealer: ...

    async def rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """Returns the rows of a read. It sees every write that was acknowledged before the call."""
        ...

    async def run(self, script: Callable[[], Script[T]]) -> T:
        """Runs a script in a transaction of its own and returns its result."""
        ...


class Parameters:
    """Collects the values of a statement that is being built. `put` adds a value and returns its placeholder."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def put(self, value: Any) -> str:
        self.values.append(value)
        return f"${len(self.values)}"

    def put_ids(self, ids: Iterable[str]) -> str:
        """Adds ids, those without NUL, which no database stores, and returns a list of their placeholders for IN."""
        return ", ".join(self.put(each) for each in dict.fromkeys(ids) if "\0" not in each) or "NULL"


def chained(database: SqlDatabase, tenant: TenantId, audit: Audited | None) -> Script[None]:
    """Appends the entry of a change to a tenant's audit chain, if it is to be noted. The end of a script."""
    if audit is not None:
        yield Chain([database.sealer.entry(tenant, audit)])


def one_query(text: str, values: Sequence[Any]) -> Script[list[Any]]:
    """Returns a script that runs a single statement; its result is the statement's rows."""
    return (yield Query(text, values))
