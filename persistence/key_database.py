"""The database of a key store: small, apart from what its keys encrypt, and not in the backups of anything else.

What SQLite deletes it overwrites (`secure_delete`); what a disk or its file system keeps below that is out of reach
for any program. Statements are written once for both: `$n` for parameters, a table's name in braces.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from persistence.sqlite.library import sqlite3
from sessions.model.errors import Unavailable

T = TypeVar("T")

TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS {{data_keys}} (
    tenant  TEXT NOT NULL,
    session TEXT NOT NULL,
    master  TEXT NOT NULL,
    id      TEXT NOT NULL,
    wrapped {bytes} NOT NULL,
    PRIMARY KEY (tenant, session, master)
)""",
    """CREATE TABLE IF NOT EXISTS {{tenant_keys}} (
    tenant     TEXT   NOT NULL,
    seq        BIGINT NOT NULL,
    id         TEXT   NOT NULL,
    wrapper    TEXT   NOT NULL,
    wrapped    {bytes} NOT NULL,
    created_at BIGINT NOT NULL,
    destroyed_at BIGINT,
    PRIMARY KEY (tenant, seq),
    UNIQUE (tenant, id)
)""",
)
NAME: Final = re.compile(r"\{(\w+)\}")


class KeyDatabase(Protocol):
    """A database with tables of keys; usable from `open` to `close`. All its coroutines raise Unavailable."""

    def has_file(self) -> bool:
        """Returns whether the keys are in a file on this machine, and that file exists already."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Runs one statement in a transaction of its own; returns its rows. Its changes are durable when the call
        returns."""
        ...

    async def wipe(self, table: str) -> None:
        """Removes a table's deleted and overwritten rows from the database's files, so that none can be read there
        after the call."""
        ...


def keys_unavailable(exc: BaseException) -> Unavailable:
    return Unavailable("keys_unavailable", f"The key store does not answer ({type(exc).__name__}).")


class SqliteKeyDatabase:
    """An SQLite file of one process, beside the journal's. Calls run one after another in threads and are never
    interrupted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self._database: sqlite3.Connection | None = None

    def has_file(self) -> bool:
        return self._path.is_file()

    async def open(self) -> None:
        await self._run(self._open)

    async def close(self) -> None:
        if self._database is not None:
            await self._run(self._close)

    async def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        text = re.sub(r"\$(\d+)", r"?\1", NAME.sub(r"\1", statement))
        return await self._run(lambda: self._rows(text, values))

    async def wipe(self, table: str) -> None:
        return

    async def _run(self, work: Callable[[], T]) -> T:
        async def locked() -> T:
            async with self._lock:
                return await asyncio.to_thread(work)

        try:
            return await asyncio.shield(locked())
        except sqlite3.Error as exc:
            raise keys_unavailable(exc) from exc

    # -- in a thread, one at a time ------------------------------------------------------------------

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
        database = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA secure_delete = ON")
        for table in TABLES:
            database.execute(NAME.sub(r"\1", table.format(bytes="BLOB")))
        self._database = database

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _rows(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        if self._database is None:
            raise sqlite3.ProgrammingError("closed")
        return self._database.execute(statement, values).fetchall()
