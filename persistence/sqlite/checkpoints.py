"""Checkpoints on a connection of their own, so that no commit waits for one.

SQLite by itself makes a checkpoint inside the commit that makes the write-ahead log long: 1,000 pages copied and two
syncs, which that commit's writers wait for. Here a second connection copies the log's pages (`PASSIVE`: it waits for
nobody and nobody waits for it) as soon as `pages` of them are new. While commits never pause, such a copy never reaches
the end of the log, and only a log that was copied to its end begins anew. So when the log is `RESTART` times as long,
the writer copies the remaining few pages itself, between two commits. SQLite's own checkpoints inside commits stay as a
last resort (`LAST_RESORT`), in case the copying connection fails.

The copying thread gets the processor when it is idle (`NICENESS`): a log that is a little longer costs less than a
commit that waits.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Final

import aiosqlite
import structlog

from persistence.sqlite.library import sqlite3

log = structlog.get_logger(__name__)

CHECK_EVERY: Final = 16
"""How many commits lie between two checks of the write-ahead log's length."""
RESTART: Final = 4
LAST_RESORT: Final = 16
NICENESS: Final = 15


def connector(connect: Callable[[], sqlite3.Connection]) -> Callable[[], sqlite3.Connection]:
    """Returns a function that connects like `connect`. Its first call also lowers the priority of the thread that calls
    it."""

    def quietly() -> sqlite3.Connection:
        if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        return connect()

    return quietly


def checkpoint(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Copies the write-ahead log into the database; returns one row: busy, pages in the log, pages of them copied."""
    return connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


class Checkpointer:
    """Makes checkpoints on a connection of its own. Call `committed()` after each commit; `rest` copies the rest of the
    log on the writer's connection."""

    def __init__(self, connection: aiosqlite.Connection, *, pages: int, rest: Callable[[], Awaitable[object]]) -> None:
        self._connection = connection
        self._pages = pages
        self._rest = rest
        self._commits = 0
        self._task: asyncio.Task[None] | None = None

    def committed(self) -> None:
        self._commits += 1
        if self._commits % CHECK_EVERY == 0 and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._check_log(), name="journal checkpoint")

    async def close(self) -> None:
        """Closes the connection; call it after the last commit. The connection that closes the file last copies what is
        left."""
        if self._task is not None:
            await self._task
        await self._connection.close()

    async def _check_log(self) -> None:
        try:
            length, copied = await self._run("NOOP")
            if length - copied < self._pages:
                return
            length, _ = await self._run("PASSIVE")
            if length >= RESTART * self._pages:
                await self._rest()
        except sqlite3.Error as exc:
            # The log keeps every commit: nothing is lost, it grows until a later checkpoint goes through.
            log.error("journal_checkpoint_failed", cause=repr(exc))

    async def _run(self, mode: str) -> tuple[int, int]:
        """Runs a checkpoint; returns how many pages the log has and how many of them are copied, both -1 if there is no
        log yet."""
        ((_, length, copied),) = await self._connection.execute_fetchall(f"PRAGMA wal_checkpoint({mode})")
        return length, copied
