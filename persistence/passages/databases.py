"""The database behind the index on an SQLite file, one writer and some readers; `postgres` has a pool.

Scripts are run in a transaction each (`persistence.sql.script`). Reads are single statements beside them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy

from persistence.passages.dialects import SqliteDialect, passages_unavailable
from persistence.sql.script import Query, Script
from persistence.sqlite.library import sqlite3

if TYPE_CHECKING:
    from persistence.passages.postgres import PostgresPassages

T = TypeVar("T")

READERS: Final = 2
CACHE_KIB: Final = 65_536
_MARK: Final = re.compile(r"\$(\d+)")


def cosine(stored: bytes, vector: bytes) -> float:
    """Returns the cosine of a vector as it is stored, in 16 bits a number, and of a query's."""
    return float(numpy.frombuffer(stored, "<f2").astype("<f4") @ numpy.frombuffer(vector, "<f4"))


class SqlitePassages:
    """An SQLite file of one process, or a database in memory if `path` is None. Deleted rows are overwritten."""

    dialect = SqliteDialect()

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._connections: list[Any] = []
        self._writer: asyncio.Queue[Any] = asyncio.Queue()
        self._readers = self._writer if path is None else asyncio.Queue[Any]()

    async def open(self) -> None:
        try:
            await self._add_connection(self._writer)
            await asyncio.to_thread(self._connections[0].executescript, self.dialect.tables())
            for _ in range(READERS if self._path is not None else 0):
                await self._add_connection(self._readers)
        except (OSError, sqlite3.Error) as exc:
            await self.close()
            raise passages_unavailable(exc) from exc

    async def close(self) -> None:
        """Closes each connection when what it runs has ended."""
        connections, self._connections = self._connections, []
        for place in range(len(connections)):
            connection = await (self._readers if place else self._writer).get()
            await asyncio.to_thread(connection.close)

    async def run(self, script: Callable[[], Script[T]]) -> T:
        """Runs a script in a transaction and returns its result. Raises Unavailable, and what the script raises; then
        nothing of it is stored."""
        return await self._on(self._writer, lambda writer: self._run(writer, script))

    async def rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        return await self._on(self._readers, lambda reader: self._execute(reader, text, values))

    async def _on(self, idle: asyncio.Queue[Any], work: Callable[[Any], T]) -> T:
        """Waits for a connection, and works with it in a thread. Whoever is cancelled while waiting leaves the line;
        work that has begun runs to its end, and only then gives its connection to the next."""
        if not self._connections:
            raise passages_unavailable(ConnectionError())
        connection = await idle.get()

        async def worked() -> T:
            try:
                return await asyncio.to_thread(work, connection)
            finally:
                idle.put_nowait(connection)

        try:
            return await asyncio.shield(worked())
        except sqlite3.Error as exc:
            raise passages_unavailable(exc) from exc

    async def _add_connection(self, idle: asyncio.Queue[Any]) -> None:
        self._connections.append(await asyncio.to_thread(self._connect))
        idle.put_nowait(self._connections[-1])

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        if self._path is not None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(self._path or ":memory:", check_same_thread=False, isolation_level=None)
        connection.create_function("cosine", 2, cosine, deterministic=True)
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON", "busy_timeout = 5000"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        return connection

    @staticmethod
    def _execute(connection: Any, text: str, values: Sequence[Any]) -> list[Any]:
        return list(connection.execute(_MARK.sub(r"?\1", text), tuple(values)))

    def _run(self, writer: Any, script: Callable[[], Script[T]]) -> T:
        writer.execute("BEGIN IMMEDIATE")
        steps, rows = script(), None
        try:
            while True:
                step = steps.send(rows)  # type: ignore[arg-type]
                assert isinstance(step, Query)
                rows = self._execute(writer, step.text, step.values)
        except StopIteration as done:
            writer.execute("COMMIT")
            result: T = done.value
            return result
        except BaseException:
            writer.execute("ROLLBACK")
            raise


PassageDatabase: TypeAlias = "SqlitePassages | PostgresPassages"
