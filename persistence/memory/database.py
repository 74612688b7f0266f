"""The tables of a store in memory: those of SQLite, in a database without a file.

Each statement runs where it is called, on the event loop: nothing waits, nothing is durable. A database may be shared
by many journals, each one process's way to it: a simulated replica that dies takes its journal with it and leaves the
database. `backup` and `restore` play an operator who puts an older copy back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import Any, TypeVar
from uuid import uuid4

from persistence.codec import PlainCodec
from persistence.group_commit import GroupLimits, Write
from persistence.sql.migrations import read_migrations
from persistence.sql.script import Script
from persistence.sqlite.database import question_marks, run_script
from persistence.sqlite.error_mapping import ONE_WRITE_IS_BAD
from persistence.sqlite.journal import SqliteCalls
from persistence.sqlite.library import sqlite3
from persistence.sqlite.schema import MIGRATIONS
from persistence.sqlite.transaction import STORE_KEY, Transaction, begin_incarnation
from persistence.write_batch import JobWrite
from sessions.model.audit import Sealer
from sessions.model.errors import Internal

T = TypeVar("T")


class MemoryDatabase:
    """All tables of a store. Implements `JournalDatabase`; `journal` is the way to them on which nothing goes wrong."""

    def __init__(self, *, new_id: Callable[[], str] = lambda: uuid4().hex) -> None:
        self._new_id = new_id
        self._connection = _copy_of(_empty_tables())
        self._commits = 0
        self.codec = PlainCodec()
        self.write_bytes_max = GroupLimits().write_bytes_max
        self._begin_incarnation()
        self.sealer = Sealer(hashlib.sha256(self.incarnation.encode()).digest())
        self.journal = SqliteCalls(self)

    def _begin_incarnation(self) -> None:
        self.incarnation = self._new_id()
        self._commits += 1
        begin_incarnation(self.incarnation, 1, self._commits, False, self._connection)

    def backup(self) -> sqlite3.Connection:
        """Returns a copy of all tables as they are now, for `restore`."""
        return _copy_of(self._connection)

    def restore(self, backup: sqlite3.Connection) -> None:
        """Replaces all tables by a backup's, as a new incarnation in which no fence of the old one matches."""
        backup.backup(self._connection)
        self._begin_incarnation()

    def query(self, statement: str, *values: Any) -> list[Any]:
        """Runs a statement and returns its rows."""
        return self._connection.execute(statement, values).fetchall()

    async def submit(self, write: Write) -> Any:
        transaction = Transaction(
            [write],
            sealer=self.sealer,
            incarnation=self.incarnation,
            generation=1,
            commits=self._commits,
            mark=lambda commits: None,
        )
        try:
            (outcome,) = transaction.run(self._connection)
        except ONE_WRITE_IS_BAD as exc:
            raise Internal("journal_refused", "This change cannot be stored.") from exc
        finally:
            self._commits += transaction.committed
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def run(self, script: Callable[[], Script[T]]) -> T:
        write = JobWrite(STORE_KEY, lambda connection: run_script(connection, self.sealer, script()))
        result: T = await self.submit(write)
        return result

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        return self.query(statement, *values)

    async def rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        return self.query(question_marks(text), *values)

    async def resolve_unknown(self) -> None:
        """Does nothing: the outcome of each commit is known."""


def run_now(call: Coroutine[Any, Any, T]) -> T:
    """Runs a call that waits for nothing, as all calls of a database in memory are, and returns its result."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a call of a database in memory waits")


@cache
def _empty_tables() -> sqlite3.Connection:
    connection = _connect()
    for migration in read_migrations(MIGRATIONS):
        connection.executescript(f"BEGIN;\n{migration}\nCOMMIT;")
    return connection


def _copy_of(tables: sqlite3.Connection) -> sqlite3.Connection:
    connection = _connect()
    tables.backup(connection)
    return connection


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
