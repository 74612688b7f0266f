"""The history index of one process over a restart: what is put is found again, bounded, and tells nothing."""

from __future__ import annotations

from pathlib import Path

from persistence.keys import MemoryKeyStore
from sessions.model.types import ItemId, SessionId, UnixMs
from transport.gateway_store.history_file import StoredHistory, open_history
from transport.history_index import HISTORY_TTL_S, HistoryPlace

SECRET = bytes(32)


class Times:
    """The wall clock goes on over restarts, the monotonic one does not."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def index(self, folder: Path, *, secret: bytes = SECRET, places_max: int = 1_000) -> StoredHistory:
        begun = self.now_s
        return StoredHistory(
            folder,
            secret,
            clock=lambda: self.now_s - begun,
            now_ms=lambda: UnixMs(round(self.now_s * 1000)),
            places_max=places_max,
        )


def place(number: int) -> HistoryPlace:
    return HistoryPlace(SessionId(f"ses_{number}"), ItemId(f"msg_{number}"))


def chain(number: int) -> bytes:
    return number.to_bytes(40)


async def found(index: StoredHistory, numbers: range) -> list[int]:
    return [number for number in numbers if await index.take([chain(number)]) == (0, place(number))]


async def test_what_was_put_outlives_restarts_for_a_day_from_then(tmp_path: Path) -> None:
    times = Times()
    for number in range(3):
        async with times.index(tmp_path) as index:
            await index.put(chain(number), place(number))
            assert await found(index, range(5)) == list(range(number + 1))
        times.now_s += 3600.0
    times.now_s += HISTORY_TTL_S - 2 * 3600.0
    async with times.index(tmp_path) as index:
        assert await found(index, range(5)) == [2], "the others a day ago"


async def test_the_files_are_bounded_and_the_newest_stay(tmp_path: Path) -> None:
    times = Times()
    sizes = []
    for number in range(60):
        async with times.index(tmp_path, places_max=20) as index:
            await index.put(chain(number), place(number))
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert max(sizes[30:]) <= max(sizes[:30])
    async with times.index(tmp_path, places_max=20) as index:
        kept = await found(index, range(60))
        assert kept == list(range(kept[0], 60)) and 10 <= len(kept) <= 20


async def test_what_is_damaged_or_under_another_key_is_left_out_and_nothing_is_in_the_clear(tmp_path: Path) -> None:
    times = Times()
    for number in range(3):
        async with times.index(tmp_path) as index:
            await index.put(chain(number), place(number))
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    assert b"ses_1" not in data and path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(data[:-5])
    async with times.index(tmp_path) as index:
        assert await found(index, range(3)) == [0, 1]
    path.write_bytes(data[:10] + bytes([data[10] ^ 1]) + data[11:])
    async with times.index(tmp_path) as index:
        assert await found(index, range(3)) == [1, 2]
    path.write_bytes(data)
    async with times.index(tmp_path, secret=bytes([1]) * 32) as index:
        assert await found(index, range(3)) == []


async def test_half_a_write_costs_nothing_that_is_written_later(tmp_path: Path) -> None:
    """After a kill in the middle of a write all that later starts wrote was unreadable."""
    times = Times()
    for number in range(4):
        async with times.index(tmp_path) as index:
            await index.put(chain(number), place(number))
        if number == 1:
            (path,) = tmp_path.iterdir()
            path.write_bytes(path.read_bytes()[:-5])
    async with times.index(tmp_path) as index:
        assert await found(index, range(4)) == [0, 2, 3]


async def test_a_folder_that_cannot_be_written_costs_the_file_alone(tmp_path: Path) -> None:
    async with Times().index(tmp_path / "missing") as index:
        await index.put(chain(1), place(1))
        assert await found(index, range(3)) == [1]


async def test_without_a_key_it_is_in_memory(tmp_path: Path) -> None:
    keys = MemoryKeyStore()
    for store, files in ((None, 0), (keys, 1)):
        async with open_history(tmp_path, store, clock=lambda: 0.0, now_ms=lambda: UnixMs(1)) as index:
            await index.put(chain(1), place(1))
        assert len(list(tmp_path.iterdir())) == files
    async with open_history(tmp_path, keys, clock=lambda: 0.0, now_ms=lambda: UnixMs(2)) as index:
        assert await index.take([chain(1)]) == (0, place(1))
