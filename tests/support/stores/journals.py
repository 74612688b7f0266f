"""Makes stores for the contract suite, and what the suite puts into them.

A `Bed` is one database with everything beside it. `open` gives a store on it; a bed may be reopened after a close, and
`backup`/`restore` do what an operator would do with the files while nothing runs.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import asyncpg
import pytest

from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.tenant_keys import TenantKeys
from persistence.at_rest.wrapping import MasterKeyWrapper
from persistence.group_commit import GroupLimits
from persistence.key_database import KeyDatabase, SqliteKeyDatabase
from persistence.master_key import MasterKey, MasterKeyRing
from persistence.memory.database import MemoryDatabase
from persistence.memory.store import MemoryStore
from persistence.postgres.database import PostgresDatabase
from persistence.postgres.store import PostgresStore
from persistence.sql.script import Query, Script, SqlDatabase
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore
from sessions.model.commands import Ok
from sessions.model.events import OutputTextDelta, Private, Record
from sessions.model.journal_types import Append, CommandRecord, Due, Head, HeadPatch, UsageRow
from sessions.model.types import (
    CommandId,
    Epoch,
    ItemId,
    Principal,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
    Usage,
    pack_tokens,
)
from sessions.ports import Journal
from sessions.store import Store

if TYPE_CHECKING:  # where vLLM's tests run there is no PostgreSQL
    from testbed.postgres_server import PostgresServer

NOW = UnixMs(1_750_000_000_000)
DAY_MS = 24 * 3600 * 1000
ACME = TenantId("acme")


class Bed(Protocol):
    async def open(self, limits: GroupLimits | None = None) -> Store: ...

    async def backup(self) -> None: ...

    async def restore(self) -> None: ...


@asynccontextmanager
async def reopened(bed: Bed, store: Store) -> AsyncIterator[Store]:
    """Closes a store of a bed, and opens the bed anew for as long as the block lasts."""
    await store.close()
    again = await bed.open()
    try:
        yield again
    finally:
        await again.close()


class MemoryBed:
    def __init__(self) -> None:
        self.database = MemoryDatabase()
        self._kept: Any = None

    async def open(self, limits: GroupLimits | None = None) -> Store:
        self.database.write_bytes_max = (limits or GroupLimits()).write_bytes_max
        store = MemoryStore(self.database)
        await store.open()
        return store

    async def backup(self) -> None:
        self._kept = self.database.backup()

    async def restore(self) -> None:
        assert self._kept is not None
        self.database.restore(self._kept)


class SqliteBed:
    def __init__(self, folder: Path, *, sealed: bool = False) -> None:
        self.folder = folder / "data"
        self._kept = folder / "kept.db"
        self._sealed = sealed

    async def open(self, limits: GroupLimits | None = None) -> Store:
        codec = await a_codec(SqliteKeyDatabase(self.folder / "keys.db")) if self._sealed else None
        store = SqliteStore(SqliteDatabase(self.folder, limits=limits, codec=codec))
        await store.open()
        return store

    async def backup(self) -> None:
        shutil.copy(self.folder / "journal.db", self._kept)

    async def restore(self) -> None:
        shutil.copy(self._kept, self.folder / "journal.db")


class PostgresBed:
    """A schema of its own on the server that all tests share."""

    _numbers = itertools.count()

    def __init__(
        self, server: PostgresServer, folder: Path, *, sealed: bool = False, schema: str | None = None
    ) -> None:
        self._server = server
        self._folder = folder
        self._sealed = sealed
        self.schema = schema or f"bed_{os.getpid()}_{next(self._numbers)}"

    async def open(self, limits: GroupLimits | None = None) -> Store:
        # The keys lie beside the server, which a restore puts back: without the keys of what came after.
        codec = await a_codec(SqliteKeyDatabase(self._folder / "keys.db")) if self._sealed else None
        database = PostgresDatabase(
            self._server.dsn, schema=self.schema, marker_folder=self._folder, limits=limits, codec=codec
        )
        store = PostgresStore(database)
        await store.open()
        return store

    async def backup(self) -> None:
        self._server.stop()
        self._server.backup()
        self._server.start()

    async def restore(self) -> None:
        self._server.stop()
        self._server.restore()
        self._server.start()

    async def tables(self) -> list[bytes]:
        """The content of every table, as COPY has it."""
        connection = await asyncpg.connect(self._server.dsn)
        try:
            names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", self.schema)
            found = []
            for (name,) in names:
                content = io.BytesIO()
                await connection.copy_from_table(name, schema_name=self.schema, output=content, format="binary")
                found.append(content.getvalue())
            return found
        finally:
            await connection.close()


@functools.cache
def postgres() -> PostgresServer:
    """The server that all tests share; made by the first that asks."""
    from testbed.postgres_server import PostgresServer

    server = PostgresServer()
    server.start()
    return server


MASTER = MasterKey(bytes(range(32)))


async def a_codec(database: KeyDatabase, *, writes: bool = True, master: MasterKey = MASTER) -> SealingCodec:
    """What encrypts bodies, on keys that lie in this database; opened here, and left to the end of the test."""
    await database.open()
    return SealingCodec(
        TenantKeys(database, MasterKeyWrapper(MasterKeyRing([master])), now_ms=lambda: NOW), writes=writes
    )


# `make test` takes each store as it is by default: a file is sealed, and what else there is comes with `make test-all`.
KINDS = [
    "memory",
    pytest.param("sqlite", marks=pytest.mark.slow),
    "sqlite-sealed",
    pytest.param("postgres", marks=pytest.mark.cluster),
    pytest.param("postgres-sealed", marks=[pytest.mark.cluster, pytest.mark.slow]),
]
# For tests that stop a server and start it again.
BESIDE_A_STOP = pytest.mark.parametrize(
    "bed",
    ["memory", "sqlite-sealed", pytest.param("postgres", marks=[pytest.mark.cluster, pytest.mark.slow])],
    indirect=True,
)


@asynccontextmanager
async def a_bed(kind: str, folder: Path) -> AsyncIterator[Bed]:
    match kind:
        case "memory":
            yield MemoryBed()
        case "sqlite" | "sqlite-sealed":
            yield SqliteBed(folder, sealed=kind == "sqlite-sealed")
        case _:
            yield PostgresBed(postgres(), folder, sealed=kind == "postgres-sealed")


# -- what is put into them --------------------------------------------------------------------------------------------


def key(session: str, tenant: str = ACME) -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(session))


def delta(offset: int, text: str = "word ") -> Record:
    event = OutputTextDelta(
        response_id=ResponseId("resp_1"),
        sequence_number=offset,
        item_id=ItemId("msg_1"),
        output_index=0,
        content_index=0,
        delta=text,
    )
    return Record(offset, UnixMs(NOW + offset), event, Private(tokens=pack_tokens([offset, offset + 1])))


def deltas(top: int, count: int) -> tuple[Record, ...]:
    return tuple(delta(top + n) for n in range(1, count + 1))


def patch(**fields: Any) -> HeadPatch:
    return HeadPatch(**{"open": False, "user": None, "model": "m", "title": None, "metadata": {}, **fields})


def an_append(head: Head, count: int = 0, /, **fields: Any) -> Append:
    return Append(
        **{
            "key": head.key,
            "fence": head.fence,
            "top": head.top,
            "records": deltas(head.top, count),
            "at": NOW,
            **fields,
        }
    )


def a_command(number: int, *, at: int = NOW, principal: str = "k1") -> CommandRecord:
    return CommandRecord(
        principal_id=principal,
        command_id=CommandId(f"c{number:05}"),
        digest=bytes([number % 256]) * 16,
        answer=Ok(id=CommandId(f"c{number:05}"), offset=number, item_id=ItemId("msg_é")),
        at=UnixMs(at),
    )


def a_usage(response: str, *, at: int = NOW, tenant: str = ACME, output: int = 7) -> UsageRow:
    return UsageRow(
        response_id=ResponseId(response),
        principal=Principal(tenant=TenantId(tenant), key_id="k1", user="ü", role="service"),
        model="m",
        usage=Usage(input_tokens=5, output_tokens=output, cached_tokens=3, reasoning_tokens=1),
        status="completed",
        recomputed_tokens=2,
        withheld_tokens=4,
        at=UnixMs(at),
    )


async def purge(
    journal: Journal, due: Due, *, commands_before: UnixMs, limit: int, at: UnixMs = NOW
) -> list[SessionKey]:
    """Whatever is due, at most `limit`."""
    keys = await journal.purgeable(due, limit=limit)
    return await journal.purge(keys, due, commands_before=commands_before, at=at)


async def grant(
    journal: Journal, at: SessionKey, fence: int | None = None, *, now: int = NOW, epoch: str = "e1"
) -> Head:
    return await journal.grant(at, expected_fence=fence, owner=f"r/{fence}", new_epoch=Epoch(epoch), now_ms=UnixMs(now))


@asynccontextmanager
async def billed(names: Sequence[str]) -> AsyncIterator[MemoryStore]:
    """A store in memory with a usage row for each of these responses."""
    store = MemoryStore()
    await store.open()
    await a_log(store.journal, "s", 1, usage=tuple(a_usage(name) for name in names))
    yield store
    await store.close()


async def overwrite_added_tools(database: SqlDatabase) -> None:
    """Overwrites the bodies of all added tools, so that they cannot be read."""

    def script() -> Script[None]:
        yield Query("UPDATE added_tools SET body = $1", (b"overwritten",))

    await database.run(script)


async def a_log(journal: Journal, session: str, count: int = 3, *, tenant: str = ACME, **fields: Any) -> Head:
    """A session with `count` records; its head as it stands."""
    head = await grant(journal, key(session, tenant))
    await journal.append(an_append(head, count, **fields))
    stored = await journal.head(head.key)
    assert stored is not None
    return stored
