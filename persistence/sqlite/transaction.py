"""One group commit as one call on the writer's thread: fence check, rows, commit, marker.

The steps of a transaction have nothing to await, and a trip to the thread costs more than most of them. So a whole
transaction is one call: `WriterConnection` is the class that SQLite's `factory` makes, and its `execute` runs a
`WriterCall` that it gets in place of parameters. Nothing can come between the steps, and a caller that is cancelled
cannot leave half of them behind.

I1 to the letter: the first statement moves the heads of all appends whose (fence, top) are as their writers believe,
together with the store's own head. If it moved fewer heads than the batch has appends, the transaction begins again
without those that were not moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from persistence.group_commit import Write
from persistence.sqlite import statements as sql
from persistence.sqlite.audit_rows import chain
from persistence.sqlite.error_mapping import CommitFailed, RollbackFailed, StoreOvertaken
from persistence.sqlite.library import sqlite3
from persistence.validation import FENCES_PER_INCARNATION, FIRST_KEY, fenced, purged_row
from persistence.write_batch import AppendWrite, GrantWrite, JobWrite
from sessions.model.audit import Sealer
from sessions.model.journal_types import Due
from sessions.model.types import SessionKey, UnixMs

STORE_KEY: Final = FIRST_KEY  # the row of `heads` that is the store itself


class WriterCall:
    """Runs a function on the writer's thread. For aiosqlite it looks like the parameters of a statement, and like the
    cursor with its rows."""

    def __init__(self, function: Callable[[sqlite3.Connection], list[Any]]) -> None:
        self._function = function
        self._result: list[Any] = []

    def run(self, connection: sqlite3.Connection) -> WriterCall:
        self._result = self._function(connection)
        return self

    def fetchall(self) -> list[Any]:
        return self._result


class WriterConnection(sqlite3.Connection):
    """An SQLite connection that can be given a whole transaction as one call."""

    def execute(self, statement: str, parameters: Any = (), /) -> Any:
        if isinstance(parameters, WriterCall):
            return parameters.run(self)
        return super().execute(statement, parameters)


class Transaction:
    """The writes of one batch. `run` returns one outcome for each: its result (or None), or the exception for its
    caller.

    Raises sqlite3.Error if the transaction failed as a whole and was rolled back, CommitFailed if that happened in its
    commit, StoreOvertaken and RollbackFailed if the connection is of no use any more. `mark` is called with the number
    of commits after the commit; if it raises OSError, `run` raises that and `committed` is set.
    """

    def __init__(
        self,
        writes: Sequence[Write],
        *,
        sealer: Sealer,
        incarnation: str,
        generation: int,
        commits: int,
        mark: Callable[[int], None],
    ) -> None:
        self.committed = False
        self._sealer = sealer
        self._writes = writes
        self._incarnation = incarnation
        self._generation = generation
        self._commits = commits
        self._mark = mark

    def run(self, connection: sqlite3.Connection) -> list[object]:
        if all(isinstance(write, GrantWrite) and write.expected_fence is None for write in self._writes):
            return self._run_unsynced(connection)
        outcomes = self._run(connection)
        self._mark(self._commits + 1)
        return outcomes

    def _run_unsynced(self, connection: sqlite3.Connection) -> list[object]:
        """Runs a batch of first grants without waiting for the disk or the marker. They are on the disk with the first
        append under them; if the machine fails before, only the name of an owner that failed with it is lost."""
        connection.execute("PRAGMA synchronous = NORMAL")
        try:
            return self._run(connection)
        finally:
            connection.execute("PRAGMA synchronous = FULL")

    def _run(self, connection: sqlite3.Connection) -> list[object]:
        try:
            connection.execute("BEGIN IMMEDIATE")
            outcomes = self._execute(connection)
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as exc:
                raise CommitFailed from exc
        except BaseException:
            try:
                connection.rollback()
            except sqlite3.Error as exc:
                raise RollbackFailed from exc
            raise
        self.committed = True
        return outcomes

    def _execute(self, connection: sqlite3.Connection) -> list[object]:
        appends = [write for write in self._writes if isinstance(write, AppendWrite)]
        heads: list[sql.Row] = [(*STORE_KEY, self._generation, self._commits, 1)]
        heads += [(*w.key, w.append.fence, w.append.top, len(w.events)) for w in appends]
        parts = sql.chunks(heads)
        moved = sum(connection.execute(sql.advance(size), values).rowcount for size, values in parts)
        outcomes: dict[SessionKey, object] = {}
        if moved != len(heads):
            connection.execute("ROLLBACK")
            connection.execute("BEGIN IMMEDIATE")
            won: set[object] = set()
            for size, values in parts:
                won.update(connection.execute(sql.advance(size, returning=True), values))
            if STORE_KEY not in won:
                raise StoreOvertaken
            outcomes = {write.key: fenced() for write in appends if write.key not in won}
            appends = [write for write in appends if write.key in won]
        self._insert(connection, appends)
        if len(appends) + len(outcomes) < len(self._writes):
            outcomes |= self._grant(connection, [w for w in self._writes if isinstance(w, GrantWrite)])
            outcomes |= {w.key: w.run(connection) for w in self._writes if isinstance(w, JobWrite)}
        return [outcomes.get(write.key) for write in self._writes]

    def _insert(self, connection: sqlite3.Connection, appends: Sequence[AppendWrite]) -> None:
        for size, values in sql.chunks([row for write in appends for row in write.events]):
            connection.execute(sql.insert_events(size), values)
        beside = [write for write in appends if not write.bare]
        if not beside:
            return
        if audit := [entry for w in beside for entry in w.audit]:
            chain(connection, self._sealer, audit)
        for statement, rows in (
            (sql.patch_heads, [w.patch for w in beside if w.patch is not None]),
            (sql.upsert_commands, [row for w in beside for row in w.commands]),
            (sql.insert_responses, [row for w in beside for row in w.responses]),
            (sql.insert_usage, [row for w in beside for row in w.usage]),
            (sql.upsert_pushes, [w.push for w in beside if w.push is not None]),
            (sql.upsert_reviews, [row for w in beside for row in w.reviews]),
            (sql.upsert_snapshots, [w.snapshot for w in beside if w.snapshot is not None]),
        ):
            for size, values in sql.chunks(rows):
                connection.execute(statement(size), values)

    def _grant(self, connection: sqlite3.Connection, grants: Sequence[GrantWrite]) -> dict[SessionKey, object]:
        fresh: list[sql.Row] = [
            (*g.key, g.new_epoch, self._incarnation, g.owner, g.key_id, g.about, g.now_ms)
            for g in grants
            if g.expected_fence is None
        ]
        onward: list[sql.Row] = [
            (*g.key, g.expected_fence, g.new_epoch, self._incarnation, g.owner, g.now_ms)
            for g in grants
            if g.expected_fence is not None
        ]
        outcomes: dict[SessionKey, object] = {g.key: fenced() for g in grants}
        for statement, rows in ((sql.grant_new, fresh), (sql.grant_next, onward)):
            for size, values in sql.chunks(rows):
                for row in connection.execute(statement(size), values).fetchall():
                    outcomes[sql.key_of(row)] = row  # decoded by whoever waits for it
        return outcomes


def begin_incarnation(
    incarnation: str, generation: int, commits: int, goes_on: bool, connection: sqlite3.Connection
) -> list[object]:
    """Writes the store's own row at an opening. Unless the store `goes_on`, all fences are raised, so that no earlier
    one ever matches again."""
    connection.execute("BEGIN IMMEDIATE")
    if not goes_on:
        connection.execute("UPDATE heads SET fence = fence + ?", (FENCES_PER_INCARNATION,))
    connection.execute(
        "INSERT OR REPLACE INTO heads (tenant, session, fence, top, epoch, incarnation, owner, key_id, about,"
        " created_at, updated_at) VALUES (?, ?, ?, ?, '', ?, '', '', x'', 0, 0)",
        (*STORE_KEY, generation, commits, incarnation),
    )
    connection.execute("COMMIT")
    return []


# -- purging, in steps ----------------------------------------------------------------------------------------------

PURGE_ROWS: Final = 2_000


def purge_step(key: SessionKey, due: Due, sealer: Sealer, at: UnixMs) -> Callable[[sqlite3.Connection], bool | None]:
    """Returns a step of a purge. The step returns True when the session is gone, False when it is not due, None when
    there is more to do."""

    def step(connection: sqlite3.Connection) -> bool | None:
        rows = connection.execute(sql.STANDING, key).fetchall()
        if not rows:
            return False
        top, listed, open_, updated_at, deleted_at, user = rows[0]
        reason = due.reason(
            user=user, top=top, listed=bool(listed), open=bool(open_), updated_at=updated_at, deleted_at=deleted_at
        )
        if reason is None:
            return False
        if connection.execute(sql.PURGE_EVENTS, (*key, PURGE_ROWS)).rowcount == PURGE_ROWS:
            connection.execute(sql.PURGE_BEGUN, (*key, at))
            return None
        for table in ("commands", "responses", "reviews", "shares", "push_outbox", "snapshots", "heads"):
            connection.execute(f"DELETE FROM {table} WHERE tenant = ?1 AND session = ?2", key)
        if top:
            chain(connection, sealer, [sealer.entry(key.tenant, purged_row(key, user, reason, at))])
        return True

    return step


def purge_commands_step(before: int) -> Callable[[sqlite3.Connection], bool]:
    """Returns a step that deletes some old commands and returns whether there may be more."""

    def step(connection: sqlite3.Connection) -> bool:
        return connection.execute(sql.PURGE_COMMANDS, (before, PURGE_ROWS)).rowcount == PURGE_ROWS

    return step


def no_op(connection: sqlite3.Connection) -> None:
    """Does nothing. As a job it makes a commit that only moves the store's own row."""
