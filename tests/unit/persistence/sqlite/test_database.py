"""A SQLite file: whose it is, which versions it takes, one group commit in it, its statements."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence.codec import PlainCodec
from persistence.group_commit import Write
from persistence.sql import end_users
from persistence.sql.migrations import read_migrations, required_version
from persistence.sqlite import schema as sqlite_schema
from persistence.sqlite import statements as sql
from persistence.sqlite.database import question_marks
from persistence.sqlite.error_mapping import StoreOvertaken
from persistence.sqlite.library import sqlite3
from persistence.sqlite.replication import replica_of
from persistence.sqlite.schema import MIGRATIONS
from persistence.sqlite.transaction import Transaction, WriterConnection, begin_incarnation
from persistence.write_batch import AppendWrite, GrantWrite
from sessions.model.audit import Sealer
from sessions.model.errors import Internal
from sessions.model.journal_types import Append, Due
from sessions.model.types import Epoch, TenantId
from tests.support.stores.journals import delta
from tests.support.stores.journals import key as acme_key
from tests.support.stores.stores import (
    NOW,
    a_journal,
    append,
    grant,
    key,
    one_more_migration,
    opened,
    overwrite,
    refused,
    top_of,
)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder that cannot be written. Root may write anything that its mode forbids: for it, a read-only mount."""
    if os.geteuid() != 0:
        folder.chmod(0o500)
        try:
            yield
        finally:
            folder.chmod(0o700)
        return
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode != 0:
        pytest.skip("root may not mount here, so no folder can be made read-only for it")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


async def test_a_read_only_folder_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    await a_journal(folder)
    with read_only(folder):
        error = await refused(folder)
    assert error.code == "journal_folder_unusable"
    assert str(folder) in error.public_message
    async with opened(folder) as journal:
        assert await top_of(journal) == 20


async def test_a_folder_where_the_file_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").mkdir()
    error = await refused(tmp_path)
    assert error.code == "journal_unusable"
    assert str(tmp_path / "journal.db") in error.public_message


async def test_readers_cannot_write(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        for reader in journal.database._readers:
            with pytest.raises(sqlite3.OperationalError):
                await reader.execute_fetchall("DELETE FROM heads")


def test_a_folder_is_the_one_that_its_url_spells() -> None:
    folder = Path("/srv/copies of ü")
    assert replica_of(folder.as_uri(), "replicate") == {"type": "file", "path": str(folder)}


@pytest.mark.parametrize(
    ("start", "length"),
    [(0, 100), (0, 16), (4096, 2000), (8192, 4096), (28, 4)],
    ids=["header", "magic", "second page", "third page", "page count"],
)
async def test_garbage_in_the_file_is_refused_and_left_as_it_is(tmp_path: Path, start: int, length: int) -> None:
    await a_journal(tmp_path, 300)
    path = tmp_path / "journal.db"
    overwrite(path, start, b"\xde" * length)
    before = path.read_bytes()
    error = await refused(tmp_path)
    assert error.code == "journal_damaged"
    assert str(path) in error.public_message
    assert path.read_bytes() == before


@pytest.mark.parametrize("whole_bytes_max", [2**30, 0], ids=["checked whole", "too large to check whole"])
async def test_a_truncated_file_is_refused(tmp_path: Path, whole_bytes_max: int) -> None:
    await a_journal(tmp_path, 300)
    path = tmp_path / "journal.db"
    os.truncate(path, path.stat().st_size - 4096 * 3)
    error = await refused(tmp_path, quick_check_bytes_max=whole_bytes_max)
    assert error.code == "journal_damaged"


@pytest.mark.parametrize(
    ("ours", "statement", "code"),
    [
        (True, "PRAGMA user_version = 99", "journal_newer"),
        (False, "CREATE TABLE theirs (x)", "journal_foreign"),
        (True, "CREATE TABLE backup_state (one INTEGER)", "journal_backed_up"),  # notes of the release before
    ],
    ids=["of a newer release", "another application's", "with a backup's notes"],
)
async def test_a_file_that_is_not_of_this_release_is_refused(
    tmp_path: Path, ours: bool, statement: str, code: str
) -> None:
    if ours:
        await a_journal(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        file.execute(statement)
        file.commit()
    assert (await refused(tmp_path)).code == code


@pytest.mark.parametrize("live", [True, False], ids=["in the archive", "brought back"])
async def test_archived_sessions_are_refused_and_stubs_of_those_brought_back_go(tmp_path: Path, live: bool) -> None:
    await a_journal(tmp_path)
    stub = ("acme", "s", "archive/1", 20, 9, "k", b"key", 1, None if live else 2)
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        file.execute(
            "INSERT INTO archived (tenant, session, object, top, size, key_id, sealed, archived_at, recalled_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            stub,
        )
        file.commit()
    if live:
        error = await refused(tmp_path)
        assert error.code == "journal_archived" and "ec02a8a4" in error.public_message
    else:
        async with opened(tmp_path) as journal:
            assert await top_of(journal) == 20
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        assert file.execute("SELECT count(*) FROM archived").fetchone() == (int(live),)


async def test_a_compatible_migration_leaves_the_file_to_the_release_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_journal(tmp_path)
    known = required_version(read_migrations(sqlite_schema.MIGRATIONS))
    text = f"-- compatible with {known}\nALTER TABLE heads ADD COLUMN mood TEXT NOT NULL DEFAULT 'new';"
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_schema, "MIGRATIONS", one_more_migration(sqlite_schema.MIGRATIONS, tmp_path, text))
        async with opened(tmp_path) as journal:
            assert await top_of(journal) == 20
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (known,)
    for patched_again in (False, True):  # the release before starts, and the new one again
        with monkeypatch.context() as patched:
            if patched_again:
                patched.setattr(sqlite_schema, "MIGRATIONS", tmp_path / "longer migrations")
            async with opened(tmp_path) as journal:
                assert await top_of(journal) == 20


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await a_journal(tmp_path)
    longer = one_more_migration(sqlite_schema.MIGRATIONS, tmp_path, "CREATE TABLE half (x); SELECT nonsense;")
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_schema, "MIGRATIONS", longer)
        assert (await refused(tmp_path)).code == "journal_unusable"
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        assert file.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").fetchone() == (0,)
    async with opened(tmp_path) as journal:
        assert await top_of(journal) == 20


@pytest.mark.parametrize("version", [1, 3, 6])
async def test_a_file_of_an_old_version_gets_to_the_newest_with_its_rows(tmp_path: Path, version: int) -> None:
    """The same tables as a new file has, and what the old server wrote."""
    texts = read_migrations(sqlite_schema.MIGRATIONS)
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        file.executescript("".join(texts[:version]))
        file.executescript(
            f"PRAGMA application_id = {sqlite_schema.APPLICATION_ID}; PRAGMA user_version = {version};"
            " INSERT INTO usage (tenant, session, response, principal_key, principal_role, model, status, input_tokens,"
            " output_tokens, cached_tokens, reasoning_tokens, recomputed_tokens, withheld_tokens, at"
            ") VALUES ('t', 's', 'r', 'k', 'user', 'm', 'completed', 1, 2, 3, 4, 5, 6, 7)"
        )
    await a_journal(tmp_path)
    await a_journal(tmp_path / "new")
    tables = []
    for folder in (tmp_path, tmp_path / "new"):
        with contextlib.closing(sqlite3.connect(folder / "journal.db")) as file:
            assert file.execute("PRAGMA user_version").fetchone() == (required_version(texts),)
            assert file.execute("SELECT number FROM applied_migrations").fetchone() == (len(texts),)
            tables.append(set(file.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()))
            rows = file.execute("SELECT output_tokens, cost, currency FROM usage").fetchall()
            assert rows == ([(2, 0, "")] if folder == tmp_path else [])
    assert tables[0] == tables[1]


async def test_every_statement_goes_by_an_index(tmp_path: Path) -> None:
    """No read and no write of one session may look at all of a table."""
    await a_journal(tmp_path)
    plans: dict[str, str] = {}
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        statements = {
            "advance": sql.advance(4),
            "insert": sql.insert_events(4),
            "patch": sql.patch_heads(2),
            "grant": sql.grant_next(2),
            "head": sql.HEAD,
            "read": sql.READ,
            "load": sql.LOAD,
            "find": sql.FIND_COMMAND,
            "list": sql.list_heads(TenantId("t"), None, 5, (1, "s"))[0],
            "list of a user": sql.list_heads(TenantId("t"), "u", 5, None)[0],
            "open": sql.OPEN_HEADS,
            "purgeable": sql.purgeable(Due(deleted_before=NOW), 5)[0],
            "idle": sql.purgeable(Due(deleted_before=NOW, idle_before=NOW), 5)[0],
            "idle of a tenant": sql.purgeable(Due(deleted_before=NOW, idle_before=NOW, tenant=TenantId("t")), 5)[0],
            "usage of a user": question_marks(end_users._USAGE_ROWS_BEHIND),
            "nameless usage": question_marks(end_users._NAMELESS_USAGE),
            "purge": sql.PURGE_EVENTS,
            "purge commands": sql.PURGE_COMMANDS,
        }
        for name, statement in statements.items():
            count = max((int(n) for n in re.findall(r"\?(\d+)", statement)), default=statement.count("?"))
            rows = file.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * count).fetchall()
            plans[name] = "\n".join(row[3] for row in rows)
    for name, plan in plans.items():
        for table in ("heads", "events", "commands", "snapshots", "usage"):
            assert f"SCAN {table}" not in plan.replace(f"SCAN {table} USING INDEX {table}_", ""), f"{name}: {plan}"
    assert "heads_listed" in plans["list"] and "TEMP B-TREE" not in plans["list"]
    assert "heads_listed_by_user" in plans["list of a user"] and "TEMP B-TREE" not in plans["list of a user"]


async def test_a_hole_in_a_log_is_damage_and_no_shorter_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await append(journal, await grant(journal), 0, 5)
        with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
            file.execute('DELETE FROM events WHERE "offset" = 3')
            file.commit()
        with pytest.raises(Internal) as caught:
            await journal.read(key(), after=0, limit=9, bytes_max=10**6)
        assert caught.value.code == "journal_hole"
    codec = PlainCodec()
    assert sql.records_of(codec, key(), ("", "[]", None), after=7) == ()
    assert sql.snapshot_of(codec, key(), ("", "[]", None)) is None


SEALER = Sealer(b"secret")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(tmp_path / "journal.db", isolation_level=None, factory=WriterConnection)
    made.executescript("".join(read_migrations(MIGRATIONS)))
    begin_incarnation("one", 1, 1, False, made)
    yield made
    made.close()


class Commits:
    """The commits of one database, whose own row moves with each of them."""

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
    made = Append(key=acme_key(session), fence=fence, top=top, records=(delta(top + 1),), at=NOW, **fields)  # type: ignore[arg-type]
    return AppendWrite(PlainCodec(), made, sealer=SEALER, bytes_max=10_000)


def a_grant(session: str, fence: int | None = None) -> GrantWrite:
    return GrantWrite(PlainCodec(), acme_key(session), fence, "o", Epoch("e"), NOW)


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
