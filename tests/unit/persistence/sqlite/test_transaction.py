"""One group commit on the writer's thread: who wins, who is fenced, and a store that was overtaken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence.codec import PlainCodec
from persistence.group_commit import Write
from persistence.sql.migrations import read_migrations
from persistence.sqlite.error_mapping import StoreOvertaken
from persistence.sqlite.library import sqlite3
from persistence.sqlite.schema import MIGRATIONS
from persistence.sqlite.transaction import (
    Transaction,
    WriterConnection,
    begin_incarnation,
)
from persistence.write_batch import AppendWrite, GrantWrite
from sessions.model.audit import Sealer
from sessions.model.journal_types import Append
from sessions.model.types import Epoch
from tests.support.stores.journals import NOW, delta, key

SEALER = Sealer(b"secret")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(tmp_path / "journal.db", isolation_level=None, factory=WriterConnection)
    made.executescript("".join(read_migrations(MIGRATIONS)))
    begin_incarnation("one", 1, 1, False, made)
    yield made
    made.close()


class Commits:
    """What the database counts: the store's own row moves with each of them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.count = 1
        self.marks: list[int] = []

    def run(self, *writes: Write, generation: int = 1) -> list[object]:
        beliefs = {"incarnation": "one", "generation": generation, "commits": self.count}
        made = Transaction(writes, sealer=SEALER, mark=self.marks.append, **beliefs)  # type: ignore[arg-type]
        try:
            return made.run(self.connection)
        finally:
            self.count += made.committed


def an_append(session: str, fence: int = 1, top: int = 0, **fields: object) -> AppendWrite:
    made = Append(key=key(session), fence=fence, top=top, records=(delta(top + 1),), at=NOW, **fields)  # type: ignore[arg-type]
    return AppendWrite(PlainCodec(), made, sealer=SEALER, bytes_max=10_000)


def a_grant(session: str, fence: int | None = None) -> GrantWrite:
    return GrantWrite(PlainCodec(), key(session), fence, "o", Epoch("e"), NOW)


def test_a_store_that_another_process_opened_takes_nothing(connection: sqlite3.Connection) -> None:
    commits = Commits(connection)
    commits.run(a_grant("a"))
    with pytest.raises(StoreOvertaken):
        commits.run(an_append("a"), generation=2)
    assert connection.execute("SELECT count(*) FROM events").fetchone() == (0,) and commits.marks == []


def test_an_incarnation_that_does_not_go_on_raises_every_fence(connection: sqlite3.Connection) -> None:
    commits = Commits(connection)
    commits.run(a_grant("a"))
    begin_incarnation("one", 2, 5, True, connection)
    assert connection.execute("SELECT fence FROM heads WHERE session = 'a'").fetchone() == (1,)
    begin_incarnation("two", 3, 6, False, connection)
    assert connection.execute("SELECT fence > 1 FROM heads WHERE session = 'a'").fetchone() == (1,)


def test_first_grants_wait_for_no_disk_and_move_no_marker(connection: sqlite3.Connection) -> None:
    commits, synced = Commits(connection), list[int]()
    connection.set_trace_callback(
        lambda text: synced.append(connection.execute("PRAGMA synchronous").fetchone()[0]) if text == "COMMIT" else None
    )
    commits.run(a_grant("a"), a_grant("b"))
    assert (synced, commits.marks) == ([1], [])
    commits.run(an_append("a"), a_grant("c"))
    commits.run(a_grant("b", 1))
    assert (synced, commits.marks) == ([1, 2, 2], [3, 4]), "with a session that is there all is on the disk"
