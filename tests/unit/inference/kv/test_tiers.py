"""Host and disk together: bounded, checked at every use, erased at once, moved down and up without loss."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from inference.kv.catalog import Snapshot
from inference.kv.disk import DiskTier
from inference.kv.envelope import SnapshotRefused
from inference.kv.host_tier import HostSnapshot
from inference.kv.tiers import POSTPONED_MAX, Tiers
from inference.tokens import as_tokens
from sessions.model.types import OPENINGS, SessionKey
from tests.support.engines.kv import IDENTITY, key, make_tiers, payload_of, spill

SIZE = 40_000
HOST = 4 * SIZE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "staging"
    made.mkdir()
    return made


async def opened(folder: Path, *, disk: Path | None = None, host: int = HOST, disk_max: int = 1 << 30) -> Tiers:
    tiers = make_tiers(folder, host, DiskTier(disk, disk_max, IDENTITY) if disk is not None else None)
    await tiers.open()
    return tiers


async def save(tiers: Tiers, who: SessionKey, num_tokens: int = 10, size: int = SIZE) -> bool:
    return await spill(tiers, who, range(num_tokens), payload=payload_of(f"{who}{num_tokens}", size))


async def exported(tiers: Tiers, who: SessionKey) -> AsyncGenerator[bytes, None] | None:
    export = await tiers.export(who, as_tokens(range(100)))
    return None if export is None else export.chunks


async def load(tiers: Tiers, who: SessionKey, num_tokens: int = 10) -> bytes | None:
    snapshot, _ = tiers.catalog.find(who, as_tokens(range(num_tokens)))
    if snapshot is None:
        return None
    async with tiers.payload(snapshot) as host:
        return host.path.read_bytes()


def files(folder: Path) -> int:
    """Bytes of the files in a folder; one that a thread removes at this moment has none."""
    total = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def snapshots_of(tiers: Tiers, who: SessionKey) -> list[Snapshot]:
    """In host memory and on disk."""
    return tiers.catalog.of(who)


async def test_an_opening_that_nobody_begins_with_any_more_goes_from_every_tier(folder: Path, tmp_path: Path) -> None:
    tiers = await opened(folder, disk=tmp_path / "kv", host=10 * SIZE)
    assert tiers.host.disk is not None
    for who in (key(OPENINGS), key(OPENINGS, "other"), key("a")):
        assert await save(tiers, who)
        await tiers.host.settle()
        for snapshot in snapshots_of(tiers, who):
            snapshot.used_s -= 29 * 86_400
    assert await save(tiers, key("b"))
    await tiers.host.settle()
    assert len(tiers.host.of(key(OPENINGS))) == len(tiers.host.disk.of(key(OPENINGS))) == 1
    for who in (key(OPENINGS), key(OPENINGS, "other"), key("a")):
        for snapshot in snapshots_of(tiers, who):
            snapshot.used_s -= 2 * 86_400
    assert await save(tiers, key("c"))
    await tiers.host.settle()
    assert tiers.catalog.place(key(OPENINGS)).tier == "none"
    assert tiers.catalog.place(key("a")).tokens == tiers.catalog.place(key(OPENINGS, "other")).tokens == 10
    assert tiers.catalog.held_sessions() == {key("a"), key("b"), key("c")}
    await tiers.close(1.0)


async def test_an_engine_that_writes_more_than_it_announced_is_cut_back(folder: Path) -> None:
    tiers = await opened(folder)
    assert await tiers.reserve(100)
    path = tiers.host.new_path()
    path.write_bytes(bytes(HOST + 1))
    tiers.adopt(key("a"), as_tokens(range(10)), path, HOST + 1, 100)
    await tiers.close(1.0)
    assert tiers.counters["host_overrun"] == 1 and tiers.host.bytes == 0 and not path.exists()


async def test_a_damaged_host_file_is_refused_and_dropped(folder: Path) -> None:
    tiers = await opened(folder)
    chance = random.Random(3)
    for round_ in range(60):
        assert await save(tiers, key("a"))
        snapshot, _ = tiers.catalog.find(key("a"), as_tokens(range(10)))
        assert isinstance(snapshot, HostSnapshot)
        assert snapshot.tagging is not None
        await snapshot.tagging
        data = bytearray(snapshot.path.read_bytes())
        match round_ % 3:
            case 0:
                data[chance.randrange(SIZE)] ^= 1 << chance.randrange(8)
            case 1:
                del data[chance.randrange(SIZE) :]
            case 2:
                data += b"x"
        snapshot.path.write_bytes(data)
        with pytest.raises(SnapshotRefused):
            await load(tiers, key("a"))
        assert tiers.catalog.place(key("a")).tier == "none" and tiers.host.bytes == 0
    await tiers.close(1.0)


async def test_erase_leaves_nothing_whatever_is_on_its_way(folder: Path, tmp_path: Path) -> None:
    disk = tmp_path / "kv"
    tiers = await opened(folder, disk=disk)
    for round_ in range(20):
        for number in range(6):  # more than host memory holds: some are being moved right now
            assert await save(tiers, key(f"s{number}"), 10 + round_)
        await asyncio.gather(*(tiers.erase(key(f"s{number}")) for number in range(6)))
        for number in range(6):
            assert tiers.catalog.place(key(f"s{number}")).tier == "none"
            assert await load(tiers, key(f"s{number}"), 10 + round_) is None
        assert list(disk.iterdir()) == []
    await tiers.close(1.0)
    assert list(folder.iterdir()) == [] and list(disk.iterdir()) == [] and tiers.host.bytes == 0


async def test_a_cancelled_promotion_leaves_books_and_files_in_order(folder: Path, tmp_path: Path) -> None:
    tiers = await opened(folder, disk=tmp_path / "kv", host=1 << 20)
    assert await save(tiers, key("a"))
    await tiers.close(5.0)
    for _ in range(20):
        tiers = await opened(folder, disk=tmp_path / "kv")
        task = asyncio.create_task(load(tiers, key("a")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await tiers.close(0.0)
        assert list(folder.iterdir()) == [] and tiers.host.bytes == 0


async def stream(data: bytes, piece: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), piece):
        yield data[start : start + piece]


async def test_snapshots_travel_from_host_and_from_disk(folder: Path, tmp_path: Path) -> None:
    size = 3_000_000
    tiers = await opened(folder, disk=tmp_path / "kv", host=1 << 24)
    assert await save(tiers, key("a"), size=size)
    chunks = await exported(tiers, key("a"))
    assert chunks is not None
    from_host = [chunk async for chunk in chunks]
    assert max(map(len, from_host)) <= 1 << 20
    await tiers.close(5.0)
    again = await opened(folder, disk=tmp_path / "kv", host=1 << 24)
    chunks = await exported(again, key("a"))
    assert chunks is not None
    from_disk = b"".join([chunk async for chunk in chunks])
    assert from_disk == b"".join(from_host)
    await again.close(0.0)

    other = tmp_path / "other"
    other.mkdir()
    target = await opened(other, host=1 << 24)
    for piece in (1 << 20, 4097, 3_100_000):
        assert await target.import_(key("a"), stream(from_disk, piece)) == 10
        assert await load(target, key("a")) == payload_of(f"{key('a')}10", size)
        await target.erase(key("a"))
    assert await target.import_(key("b"), stream(from_disk, 1 << 20)) == 0
    assert await target.import_(key("a"), stream(from_disk[:-1], 1 << 20)) == 0
    assert await target.import_(key("a"), stream(b"", 1)) == 0
    assert target.host.bytes == 0 and list(other.iterdir()) == []
    small = await opened(other, host=1000)
    assert await small.import_(key("a"), stream(from_disk, 1 << 20)) == 0
    await target.close(0.0)


async def test_a_snapshot_that_is_replaced_during_its_export_leaves_nothing_behind(folder: Path) -> None:
    tiers = await opened(folder, host=1 << 24)
    assert await save(tiers, key("a"), size=3_000_000)
    chunks = await exported(tiers, key("a"))
    assert chunks is not None
    first = await anext(chunks)
    assert await save(tiers, key("a"), 20)
    whole = b"".join([first, *[chunk async for chunk in chunks]])
    assert whole.endswith(payload_of(f"{key('a')}10", 3_000_000))
    await tiers.host.settle()
    assert files(folder) == tiers.host.bytes == SIZE and len(list(folder.iterdir())) == 1
    chunks = await exported(tiers, key("a"))
    assert chunks is not None
    await anext(chunks)
    await tiers.erase(key("a"))
    await chunks.aclose()  # whoever took it had enough
    assert tiers.host.bytes == 0 and list(folder.iterdir()) == []
    await tiers.close(0.0)


async def test_an_export_of_what_is_gone_or_no_good_ends_early_and_is_an_answer(folder: Path, tmp_path: Path) -> None:
    tiers = await opened(folder, disk=tmp_path / "kv", host=1 << 24)
    assert await save(tiers, key("a"), size=3_000_000)
    chunks = await exported(tiers, key("a"))
    assert chunks is not None
    await tiers.erase(key("a"))
    assert [chunk async for chunk in chunks] == [] and tiers.counters["exports_cut"] == 1

    assert await save(tiers, key("b"), size=3_000_000)
    await tiers.close(5.0)
    again = await opened(folder, disk=tmp_path / "kv", host=1 << 24)
    assert again.host.disk is not None
    (path,) = (tmp_path / "kv").iterdir()
    data = bytearray(path.read_bytes())
    data[2_000_000] ^= 1
    path.write_bytes(data)
    chunks = await exported(again, key("b"))
    assert chunks is not None
    sent = b"".join([chunk async for chunk in chunks])
    assert len(sent) < 2_000_000 and again.counters["exports_cut"] == 1
    assert again.host.disk.counters["refused_bad_chunk"] == 1
    assert again.catalog.place(key("b")).tier == "none" and list((tmp_path / "kv").iterdir()) == []
    assert await exported(again, key("b")) is None
    await again.close(0.0)


async def test_a_disk_that_lets_go_of_nothing_any_more_does_not_hold_up_host_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "kv"
    tiers = await opened(folder, disk=disk, disk_max=20 * (SIZE + 2000))
    for number in range(22):
        assert await save(tiers, key(f"s{number}"))
        await tiers.host.settle()
    unlink = Path.unlink

    def stuck(path: Path, missing_ok: bool = False) -> None:
        if path.parent == disk:
            raise OSError(errno.EROFS, "Read-only file system")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", stuck)
    async with asyncio.timeout(60):
        for number in range(22, 40):
            assert await save(tiers, key(f"s{number}"))
            assert files(folder) <= tiers.host.bytes <= HOST
            await tiers.host.settle()
        await tiers.erase(key("s21"))
    assert tiers.host.disk is not None and tiers.host.disk.counters["disk_remove_failed"] > 0
    assert not tiers.counters["host_full"]
    monkeypatch.undo()
    for number in range(40, 50):
        assert await save(tiers, key(f"s{number}"))
    await tiers.host.settle()
    assert tiers.host.disk.bytes == files(disk) <= tiers.host.disk.bytes_max
    await tiers.close(1.0)


async def test_a_move_down_that_breaks_frees_its_room_and_does_not_hold_up_the_next(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = await opened(folder, disk=tmp_path / "kv")

    async def broken(self: DiskTier, manifest: object, payload: Path) -> bool:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(DiskTier, "put", broken)
    for number in range(12):
        assert await save(tiers, key(f"s{number}"))
    await tiers.close(1.0)
    assert tiers.host.bytes == 0 and list(folder.iterdir()) == []


async def test_an_import_whose_source_dies_leaves_nothing(folder: Path) -> None:
    tiers = await opened(folder, host=1 << 24)
    assert await save(tiers, key("a"), size=3_000_000)
    chunks = await exported(tiers, key("a"))
    assert chunks is not None
    data = b"".join([chunk async for chunk in chunks])
    await tiers.erase(key("a"))

    async def dying() -> AsyncIterator[bytes]:
        yield data[:2_000_000]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await tiers.import_(key("a"), dying())
    assert tiers.host.bytes == 0 and list(folder.iterdir()) == []
    await tiers.close(0.0)


async def snapshot_before_tools(tiers: Tiers, num_tokens: int) -> None:
    """A turn that ended with a call, and its snapshot."""
    tiers.returns.on_turn(key("a"), num_tokens)
    tiers.on_tools(key("a"), ["build"], SIZE)
    assert await save(tiers, key("a"), num_tokens)
    await tiers.host.settle()


async def test_a_long_loop_of_tools_is_copied_down_once_in_a_while(folder: Path, tmp_path: Path) -> None:
    tiers = await opened(folder, disk=tmp_path / "disk")
    for turn in range(POSTPONED_MAX + 1):
        assert not tiers.cold[0].of(key("a"))
        await snapshot_before_tools(tiers, 10 + turn)
    assert [len(copied.tokens) for copied in tiers.cold[0].of(key("a"))] == [10 + POSTPONED_MAX]
    await tiers.close(1.0)


async def test_what_was_not_copied_yet_is_at_the_end_and_never_after_an_erasure(folder: Path, tmp_path: Path) -> None:
    tiers = await opened(folder, disk=tmp_path / "disk")
    await snapshot_before_tools(tiers, 10)
    await tiers.erase(key("a"))
    assert not tiers.cold[0].of(key("a"))
    await snapshot_before_tools(tiers, 20)
    await tiers.close(5.0)
    assert len(list((tmp_path / "disk").iterdir())) == 1
