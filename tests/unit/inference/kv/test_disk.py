"""The disk tier: bounded, whole or absent, found again after a restart, and never a wrong byte."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from inference.kv import disk as disk_module
from inference.kv.cold_tier import ColdSnapshot, Ranked
from inference.kv.disk import DiskEntry, DiskTier
from inference.kv.envelope import KvIdentity, SnapshotRefused
from inference.kv.index import SAMPLE
from sessions.model.errors import BadInput
from tests.support.engines.kv import IDENTITY, key, snapshot, write_payload

SIZE = 50_000


async def opened(folder: Path, bytes_max: int = 1 << 30, identity: KvIdentity = IDENTITY) -> DiskTier:
    tier = DiskTier(folder, bytes_max, identity)
    await tier.open()
    return tier


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


async def put(tier: DiskTier, staging: Path, name: str, num_tokens: int = 10, salt: str = "") -> bool:
    manifest, payload = snapshot(key(name), num_tokens, SIZE, salt=salt)
    return await tier.put(manifest, write_payload(staging, manifest, payload))


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


async def test_the_index_is_whole_after_a_restart_and_leftovers_are_gone(folder: Path, staging: Path) -> None:
    tier = await opened(folder)
    for number in range(5):
        assert await put(tier, staging, f"s{number}", salt=str(number))
    (folder / "half.part").write_bytes(b"x" * 1000)
    (folder / "notes.txt").write_text("somebody's own file is left alone")
    again = await opened(folder)
    assert len(again) == 5 and not (folder / "half.part").exists()
    assert (folder / "notes.txt").exists()
    for number in range(5):
        (entry,) = again.of(key(f"s{number}"))
        assert list(entry.tokens) == list(range(100, 110))
        await again.fetch(entry, staging / "back")


async def test_making_room_among_many_ranks_a_few(folder: Path, staging: Path) -> None:
    """It is done on the event loop: a disk holds tens of thousands."""
    tier = await opened(folder)
    for number in range(2 * SAMPLE):
        manifest, payload = snapshot(key(f"s{number}"), 10, 100)
        assert await tier.put(manifest, write_payload(staging, manifest, payload))
    ranked = list[Ranked]()
    tier.rank = lambda entry: ranked.append(entry) or (entry.used_s,)  # type: ignore[func-returns-value]
    tier.bytes_max = tier.bytes
    assert await put(tier, staging, "one more")
    gone = tier.counters["disk_evictions"]
    assert gone and len(ranked) == gone * SAMPLE and tier.bytes <= tier.bytes_max


async def test_puts_at_once_keep_the_bound(folder: Path, staging: Path) -> None:
    bound = 4 * (SIZE + 2000)
    tier = await opened(folder, bound)
    stored = await asyncio.gather(*(put(tier, staging, f"s{n}", salt=str(n)) for n in range(16)))
    assert any(stored) and on_disk(folder) == tier.bytes <= bound


async def test_two_puts_of_one_snapshot_at_once_are_one_file_written_once(folder: Path, staging: Path) -> None:
    """A copy by write-behind and a move down may meet; two writers of one file would mix what they write."""
    tier = await opened(folder)
    manifest, payload = snapshot(key("a"), 10, SIZE)
    path = write_payload(staging, manifest, payload)
    assert await asyncio.gather(*(tier.put(manifest, path) for _ in range(3))) == [True] * 3
    assert tier.counters["disk_writes"] == 1 and not tier.counters["disk_write_failed"]
    (entry,) = tier.of(key("a"))
    await tier.fetch(entry, staging / "back")
    assert tier.bytes == on_disk(folder)


async def test_a_snapshot_larger_than_the_tier_is_not_stored(folder: Path, staging: Path) -> None:
    tier = await opened(folder, SIZE // 2)
    assert not await put(tier, staging, "a")
    assert on_disk(folder) == tier.bytes == 0


async def test_a_longer_snapshot_of_a_branch_replaces_the_shorter(folder: Path, staging: Path) -> None:
    tier = await opened(folder)
    for num_tokens in (10, 20, 30):
        assert await put(tier, staging, "a", num_tokens)
    (entry,) = tier.of(key("a"))
    assert len(entry.tokens) == 30 and tier.bytes == on_disk(folder)
    assert await put(tier, staging, "a", 30)  # the same once more changes nothing
    assert len(tier.of(key("a"))) == 1


async def test_erased_is_gone_even_while_it_is_being_written(
    folder: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = await opened(folder)
    assert await put(tier, staging, "a")
    loop = asyncio.get_running_loop()
    begun, write = asyncio.Event(), disk_module._write

    def slow(*arguments: object) -> None:
        loop.call_soon_threadsafe(begun.set)
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(disk_module, "_write", slow)
    writing = asyncio.create_task(put(tier, staging, "a", 20, salt="next"))
    await begun.wait()
    await tier.erase(key("a"))
    assert tier.of(key("a")) == [] and list(folder.iterdir()) == []
    assert not await writing
    assert tier.bytes == on_disk(folder) == 0
    assert await put(tier, staging, "a")  # a session of that name may live again


def path_of(snapshot: ColdSnapshot) -> Path:
    assert isinstance(snapshot, DiskEntry)
    return snapshot.path


async def test_swapped_files_are_refused(folder: Path, staging: Path) -> None:
    tier = await opened(folder)
    await put(tier, staging, "a", salt="a")
    await put(tier, staging, "b", salt="b")
    (one,), (two,) = tier.of(key("a")), tier.of(key("b"))
    data = path_of(one).read_bytes()
    path_of(one).write_bytes(path_of(two).read_bytes())
    path_of(two).write_bytes(data)
    for entry in (one, two):
        with pytest.raises(SnapshotRefused, match=r"^other_session$"):
            await tier.fetch(entry, staging / "back")
    assert tier.counters["refused_other_session"] == 2


async def test_a_damaged_file_is_removed_when_the_index_is_made(folder: Path, staging: Path) -> None:
    tier = await opened(folder)
    for number in range(4):
        await put(tier, staging, f"s{number}", salt=str(number))
    paths = sorted(folder.iterdir())
    paths[0].write_bytes(b"")
    paths[1].write_bytes(paths[1].read_bytes()[:-10])
    data = bytearray(paths[2].read_bytes())
    data[20] ^= 1
    paths[2].write_bytes(data)
    again = await opened(folder)
    assert len(again) == 1 and list(folder.iterdir()) == [paths[3]]


async def test_a_folder_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    with pytest.raises(BadInput) as refused:
        await opened(file)
    assert str(file) in refused.value.public_message
    if os.geteuid() != 0:  # root may write anywhere
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        with pytest.raises(BadInput):
            await opened(locked)


def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder lets go of no file any more, and takes no times of modification."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(os, "utime", refuse)


async def test_a_folder_that_lets_go_of_nothing_keeps_what_it_has_and_takes_no_more(
    folder: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 3 * (SIZE + 2000)
    tier = await opened(folder, bound)
    for number in range(3):
        assert await put(tier, staging, f"s{number}", salt=str(number))
    with monkeypatch.context() as failing, capture_logs() as logs:
        stuck(failing)
        for number in range(3, 9):
            assert not await put(tier, staging, f"s{number}", salt=str(number))
        assert len(tier) == 3 and tier.bytes == on_disk(folder) <= bound
        for number in range(3):
            (entry,) = tier.of(key(f"s{number}"))
            await tier.fetch(entry, staging / "back")
        await tier.erase(key("s0"))
        assert tier.of(key("s0")) == [] and tier.bytes == on_disk(folder)
    assert tier.counters["disk_remove_failed"] >= 6 and tier.counters["disk_evictions"] == 0
    assert [entry["event"] for entry in logs] == ["snapshot_removal_failed"]
    assert await put(tier, staging, "new", salt="new")  # the folder is well again: what was erased goes first
    assert len(tier) == 3 and tier.bytes == on_disk(folder) <= bound and not tier.of(key("s0"))


async def test_half_a_file_that_cannot_be_removed_still_counts(
    folder: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = await opened(folder)
    manifest, payload = snapshot(key("a"), 10, SIZE)
    short = staging / "short"
    short.write_bytes(payload[:-1])
    with monkeypatch.context() as failing:
        stuck(failing)
        assert not await tier.put(manifest, short)
        assert tier.bytes >= on_disk(folder) > 0
    assert await put(tier, staging, "b")
    assert tier.bytes == on_disk(folder) and [path.suffix for path in folder.iterdir()] == [".kv"]


# -- a file system that others use too ---------------------------------------------------------------------------


async def test_the_last_of_the_file_system_is_not_taken(
    folder: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = await opened(folder)
    free = disk_module.RESERVE_BYTES + 2 * SIZE
    monkeypatch.setattr(disk_module, "_free_bytes", lambda folder: free - on_disk(folder), raising=False)
    assert await put(tier, staging, "a") and not await put(tier, staging, "b")
    assert tier.counters["disk_write_failed"] == 1 and tier.bytes == on_disk(folder)
    await tier.erase(key("a"))
    assert await put(tier, staging, "b")


async def test_a_bound_that_the_file_system_has_no_room_for_is_said(
    folder: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = await opened(folder)
    assert await put(tier, staging, "a")
    room = 700_000_000 - tier.bytes
    monkeypatch.setattr(disk_module, "_free_bytes", lambda _: disk_module.RESERVE_BYTES + room, raising=False)
    with capture_logs() as logs:
        await opened(folder, 700_000_000)
        assert not logs
        await opened(folder, 800_000_000)
    (entry,) = logs
    assert (entry["event"], entry["room_mb"], entry["requested_mb"]) == ("disk_tier_reduced", 700, 800)
    assert "--kv-disk-mb" in entry["advice"]
