"""SQLite's own part: full and failing disks, crashes, restored backups."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from persistence.data_dir import MARKER_BYTES, MarkerRecord
from persistence.sqlite.journal import SqliteJournal
from persistence.sqlite.library import sqlite3
from sessions.model.errors import OutcomeUnknown, SessileError, Unavailable
from tests.support.stores.stores import (
    NOW,
    a_journal,
    append,
    delta,
    grant,
    key,
    no_file_may_grow_beyond,
    opened,
    overwrite,
    top_of,
)


class SmallDisk:
    """A disk of 2 MiB to be filled and freed: a mount of its own where we may, else a limit inside SQLite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
        self.mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0

    async def fill(self, journal: SqliteJournal) -> None:
        if not self.mounted:
            await self._limit(journal, 1)
            return
        with (self.folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))

    async def free(self, journal: SqliteJournal) -> None:
        if self.mounted:
            (self.folder / "filler").unlink()
        else:
            await self._limit(journal, 2**30)

    async def _limit(self, journal: SqliteJournal, pages: int) -> None:
        assert journal.database._writer is not None
        await journal.database._writer.execute_fetchall(f"PRAGMA max_page_count = {pages}")

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", self.folder], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.unmount()


async def test_on_a_full_disk_nothing_is_acknowledged_and_it_goes_on_when_there_is_space(small_disk: SmallDisk) -> None:
    async with opened(small_disk.folder) as journal:
        heads = [await grant(journal, f"s{n}") for n in range(4)]
        for head in heads:
            await append(journal, head, 0)
        await small_disk.fill(journal)
        stood = [1] * 4
        errors: list[SessileError] = []
        while len(errors) < 12:  # until what was left of the disk is used up, and then some more
            results = await asyncio.gather(
                *(append(journal, h, stood[n], text="x" * 3000) for n, h in enumerate(heads)), return_exceptions=True
            )
            for n, result in enumerate(results):
                if result is None:
                    stood[n] += 1
                else:
                    assert isinstance(result, SessileError)
                    errors.append(result)
        assert {error.code for error in errors} == {"journal_disk_full"}
        assert all(type(error) is Unavailable and error.retryable for error in errors)
        assert [await top_of(journal, f"s{n}") for n in range(4)] == stood
        await small_disk.free(journal)
        for n, head in enumerate(heads):
            await append(journal, head, stood[n], text="x" * 3000)
    async with opened(small_disk.folder) as journal:
        assert [await top_of(journal, f"s{n}") for n in range(4)] == [top + 1 for top in stood]


async def test_an_io_error_at_the_commit_is_unknown_until_a_later_commit_settled_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        head = await grant(journal)
        await append(journal, head, 0)
        wal = tmp_path / "journal.db-wal"
        with no_file_may_grow_beyond(wal.stat().st_size):
            with pytest.raises(OutcomeUnknown):
                await append(journal, head, 1)
            with pytest.raises(Unavailable):
                await journal.head(key())
            with pytest.raises(Unavailable):
                await journal.load(key(), now_ms=NOW)
            page = await journal.read(key(), after=0, limit=9, bytes_max=999)
            assert page is not None and page.head.top == 1, "what is durable may be shown"
        assert await top_of(journal) == 1
        await append(journal, head, 1)
    async with opened(tmp_path) as journal:
        assert await top_of(journal) == 2


async def test_a_file_that_turns_bad_while_it_is_used_stops_every_write(tmp_path: Path) -> None:
    await a_journal(tmp_path, 3000)
    async with opened(tmp_path) as journal:
        assert journal.database._writer is not None
        await journal.database._writer.execute_fetchall("PRAGMA shrink_memory")
        head = await grant(journal, fence=1)
        path = tmp_path / "journal.db"
        overwrite(path, 8192, b"\xde" * (path.stat().st_size - 8192))
        await journal.database._writer.execute_fetchall("PRAGMA cache_size = 1")
        await journal.database._writer.execute_fetchall("PRAGMA shrink_memory")
        for _ in range(3):
            with pytest.raises(Unavailable) as caught:
                await append(journal, head, 3000)
            assert caught.value.code == "journal_damaged"
            assert not caught.value.retryable


async def test_another_process_in_the_file_ends_the_journal(tmp_path: Path) -> None:
    """A lock can be got round (a network mount, a container without it): the store's own head cannot."""
    async with opened(tmp_path) as journal:
        head = await grant(journal)
        await append(journal, head, 0)
        with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as other:
            other.execute("UPDATE heads SET fence = fence + 1 WHERE tenant = ''")
            other.commit()
        for _ in range(2):
            with pytest.raises(Unavailable) as caught:
                await append(journal, head, 1)
            assert caught.value.code == "journal_taken"
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        assert file.execute("SELECT top FROM heads WHERE session = 's'").fetchone() == (1,)


CRASHING = """
import asyncio, sys
from pathlib import Path
from tests.support.stores.stores import append, grant, key, opened

async def one(journal, name):
    found = await journal.head(key(name))
    head = await grant(journal, name, found.fence if found else None)
    top = head.top
    while True:
        await append(journal, head, top)
        top += 1
        print("acknowledged", name, top, flush=True)

async def main():
    async with opened(Path(sys.argv[1]), checkpoint_pages=20) as journal:
        await asyncio.gather(*(one(journal, f"s{n}") for n in range(8)))

asyncio.run(main())
"""
ACKNOWLEDGED = re.compile(rb"acknowledged s[0-9] [0-9]+\n")  # a whole line: the kill may cut the last one


async def test_after_a_kill_everything_that_was_acknowledged_is_there(tmp_path: Path) -> None:
    acknowledged = {f"s{n}": 0 for n in range(8)}
    incarnation = ""
    for round_ in range(2):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CRASHING, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        lines = [await process.stdout.readline() for _ in range(300 + 157 * round_)]
        process.send_signal(signal.SIGKILL)
        lines += (await process.stdout.read()).splitlines(keepends=True)
        await process.wait()
        for _, name, top in (line.decode().split() for line in lines if ACKNOWLEDGED.match(line)):
            acknowledged[name] = int(top)
        assert all(acknowledged.values())
        async with opened(tmp_path) as journal:
            assert incarnation in ("", journal.incarnation), "a crash is no restored backup"
            incarnation = journal.incarnation
            for name, last in acknowledged.items():
                loaded = await journal.load(key(name), now_ms=NOW)
                assert loaded is not None
                assert loaded.head.top in (last, last + 1), "all that was acknowledged, and at most what was under way"
                assert loaded.records == tuple(delta(n) for n in range(1, loaded.head.top + 1))


async def incarnation_of(folder: Path) -> str:
    async with opened(folder) as journal:
        return journal.incarnation


async def test_a_backup_from_the_same_opening_is_noticed(tmp_path: Path) -> None:
    """The copy is taken and put back between two openings: only the commits in between tell."""
    async with opened(tmp_path) as journal:
        first = journal.incarnation
        head = await grant(journal)
        with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as live:
            live.execute("VACUUM INTO ?", (str(tmp_path / "kept.db"),))
        await append(journal, head, 0)
    shutil.copy(tmp_path / "kept.db", tmp_path / "journal.db")
    async with opened(tmp_path) as journal:
        assert journal.incarnation != first
        second = journal.incarnation
    assert await incarnation_of(tmp_path) == second


def rewrite_marker(path: Path, **changes: object) -> None:
    mark = msgspec.json.decode(path.read_bytes(), type=MarkerRecord)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(mark, **changes)).ljust(MARKER_BYTES))


async def test_a_crash_between_commit_and_marker_is_no_restore(tmp_path: Path) -> None:
    await a_journal(tmp_path)
    first = await incarnation_of(tmp_path)
    marker = tmp_path / "journal.marker"
    mark = msgspec.json.decode(marker.read_bytes(), type=MarkerRecord)
    rewrite_marker(marker, position=mark.position - 1)
    assert await incarnation_of(tmp_path) == first


async def test_a_first_grant_that_a_power_failure_took_is_made_again(tmp_path: Path) -> None:
    """It waits for no disk: what is there afterwards is the store and the marker as they were before it."""
    marker = tmp_path / "journal.marker"
    async with opened(tmp_path) as journal:
        first = journal.incarnation
        await append(journal, await grant(journal), 0)
        before = marker.read_bytes()
        with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as live:
            live.execute("VACUUM INTO ?", (str(tmp_path / "kept.db"),))
        assert (await grant(journal, "another")).fence == 1
        assert marker.read_bytes() == before
    shutil.copy(tmp_path / "kept.db", tmp_path / "journal.db")
    rewrite_marker(marker, position=msgspec.json.decode(before, type=MarkerRecord).position)
    async with opened(tmp_path) as journal:
        assert journal.incarnation == first and await top_of(journal) == 1
        assert await journal.head(key("another")) is None
        head = await grant(journal, "another")
        assert head.fence == 1 and head.incarnation == first
        await append(journal, head, 0)


@pytest.mark.parametrize("doubt", ["missing", "unreadable", "another store's", "restored with the folder"])
async def test_every_doubt_makes_a_new_incarnation(tmp_path: Path, doubt: str) -> None:
    await a_journal(tmp_path)
    first = await incarnation_of(tmp_path)
    marker = tmp_path / "journal.marker"
    match doubt:
        case "missing":
            marker.unlink()
        case "unreadable":
            marker.write_bytes(b"?" * MARKER_BYTES)
        case "another store's":
            rewrite_marker(marker, incarnation="other")
        case _:  # what a copy that is put back a minute later looks like: younger than it says
            mark = msgspec.json.decode(marker.read_bytes(), type=MarkerRecord)
            rewrite_marker(marker, written_at=mark.written_at - 60)
    second = await incarnation_of(tmp_path)
    assert second != first
    assert await incarnation_of(tmp_path) == second


async def test_the_marker_may_lie_elsewhere(tmp_path: Path) -> None:
    marker = tmp_path / "elsewhere.marker"
    folder = tmp_path / "data"
    async with opened(folder, marker=marker) as journal:
        first = journal.incarnation
        await append(journal, await grant(journal), 0)
        shutil.copytree(folder, tmp_path / "kept", ignore=shutil.ignore_patterns("journal.lock"))
        await append(journal, await grant(journal, fence=1), 1)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "kept", folder)
    async with opened(folder, marker=marker) as journal:
        assert journal.incarnation != first
        assert await top_of(journal) == 1
