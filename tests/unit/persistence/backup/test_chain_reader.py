"""Which segments lead to a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.backup.chain_reader import ChainReader, Stretch
from persistence.backup.segments import DamagedBackup, SegmentHeader, encode_segment, first_hash, segment_name
from persistence.objects.folder import FolderObjects
from sessions.model.errors import BadInput
from sessions.model.types import UnixMs


async def a_chain(folder: Path, *segments: tuple[int, int, bool, int]) -> ChainReader:
    """Segments of (number, when, complete, where a restore begins)."""
    objects = FolderObjects(folder)
    await objects.put("chains/c", b"")
    for number, at, complete, restore_from in segments:
        header = SegmentHeader("c", number, first_hash("c"), UnixMs(at), complete, restore_from, 15, ())
        await objects.put(segment_name("c", number), encode_segment(header, []))
    return ChainReader(objects)


async def test_the_last_state_up_to_a_time(tmp_path: Path) -> None:
    reader = await a_chain(
        tmp_path, (1, 10, False, 0), (2, 20, True, 1), (3, 30, False, 1), (4, 40, True, 1), (5, 50, True, 4)
    )
    for at, last, first in ((20, 2, 1), (35, 2, 1), (49, 4, 1), (50, 5, 4), (99, 5, 4), (None, 5, 4)):
        found = await reader.stretch(None if at is None else UnixMs(at))
        assert found == Stretch("c", first, last, UnixMs(last * 10))
    for at in (9, 15):
        with pytest.raises(BadInput):
            await reader.stretch(UnixMs(at))
    assert await reader.prune("c", UnixMs(49)) == 0
    assert await reader.prune("c", UnixMs(50)) == 3 and await reader.numbers("c") == [4, 5]
    with pytest.raises(DamagedBackup):
        await reader.stretch(UnixMs(49))


async def test_what_is_missing_is_named(tmp_path: Path) -> None:
    reader = await a_chain(tmp_path, (1, 10, True, 1))
    for number in (2, 3):
        with pytest.raises(DamagedBackup, match="is missing"):
            await reader.segment("c", number, previous=None)
    with pytest.raises(DamagedBackup, match="does not follow"):
        await reader.segment("c", 1, previous=b"x" * 32)
    (tmp_path / segment_name("c", 1)).write_bytes(b"short")
    with pytest.raises(DamagedBackup):
        await reader.header("c", 1)
