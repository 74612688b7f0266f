"""Reads chains of segments in an object store: which there are, what leads to a time, and what is not needed any more.

Names are numbers, so a place in time is looked for by halves, in the beginnings of objects. Opens nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from persistence.backup.segments import (
    DamagedBackup,
    SegmentHeader,
    checked_segment,
    decode_header,
    folder_of,
    hash_of,
    number_of,
    segment_name,
)
from persistence.objects.object_store import ObjectStore
from sessions.model.errors import BadInput
from sessions.model.types import UnixMs

HEADER_BYTES: Final = 512  # more than a header without its parts takes
CHAINS_FOLDER: Final = "chains"  # an object for each chain, since listing all segments takes long
CHAIN_MAGIC: Final = b"SLCHN1\n"
DELETED_AT_ONCE: Final = 500


class Stretch(NamedTuple):
    """The segments that a restore goes through."""

    chain: str
    first: int
    last: int
    taken_at: UnixMs


class ReadSegment(NamedTuple):
    name: str
    header: SegmentHeader
    data: bytes
    begin: int
    """Where its parts begin."""


class ChainReader:
    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def header(self, chain: str, number: int) -> SegmentHeader:
        """Raises DamagedBackup; the hash is not looked at."""
        name, size = segment_name(chain, number), HEADER_BYTES
        while True:
            data = await self._objects.get_start(name, size)
            if data is None:
                raise DamagedBackup(f"{name}: it is missing")
            try:
                return decode_header(data)[0]
            except EOFError as needed:
                if len(data) < size:
                    raise DamagedBackup(f"{name}: it ends in its header") from needed
                size = int(needed.args[0])
            except DamagedBackup as damaged:
                raise DamagedBackup(f"{name}: {damaged}") from damaged

    async def segment(self, chain: str, number: int, *, previous: bytes | None) -> ReadSegment:
        """A whole segment, after its hash and that of the one before. Raises DamagedBackup."""
        name = segment_name(chain, number)
        data = await self._objects.get(name)
        if data is None:
            raise DamagedBackup(f"{name}: it is missing")
        try:
            header, begin = checked_segment(data)
        except DamagedBackup as damaged:
            raise DamagedBackup(f"{name}: {damaged}") from damaged
        if (header.chain, header.number) != (chain, number):
            raise DamagedBackup(f"{name}: it is another segment, {segment_name(header.chain, header.number)}")
        if previous is not None and header.previous != previous:
            raise DamagedBackup(f"{name}: it does not follow the segment before it")
        return ReadSegment(name, header, data, begin)

    async def segments(self, stretch: Stretch) -> AsyncIterator[ReadSegment]:
        """Raises DamagedBackup."""
        previous: bytes | None = None
        for number in range(stretch.first, stretch.last + 1):
            read = await self.segment(stretch.chain, number, previous=previous)
            previous = hash_of(read.data)
            yield read

    async def chains(self) -> list[str]:
        """The oldest first."""
        return sorted([name.rpartition("/")[2] async for name in self._objects.names(CHAINS_FOLDER)])

    async def numbers(self, chain: str) -> list[int]:
        """Of the segments that are there, in their order."""
        found = [number_of(name) async for name in self._objects.names(folder_of(chain))]
        return sorted(number for number in found if number is not None)

    async def stretch(self, at: UnixMs | None) -> Stretch:
        """What a restore to a time goes through: of the newest chain that has one. Raises BadInput, DamagedBackup."""
        for chain in reversed(await self.chains()):
            numbers = await self.numbers(chain)
            if (found := await self._last(chain, numbers, at)) is not None:
                if found.restore_from < numbers[0]:
                    raise DamagedBackup(f"{segment_name(chain, found.restore_from)}: it is missing")
                return Stretch(chain, found.restore_from, found.number, found.taken_at)
        raise BadInput(
            "backup_too_new",
            "There is no whole copy of that time in this backup." if at is not None else "There is no whole copy yet.",
            param="at",
        )

    async def _last(self, chain: str, numbers: list[int], at: UnixMs | None) -> SegmentHeader | None:
        """The last segment up to a time that is the end of a state that can be restored."""
        low, high = 0, len(numbers)
        while at is not None and low < high:
            middle = (low + high) // 2
            if (await self.header(chain, numbers[middle])).taken_at <= at:
                low = middle + 1
            else:
                high = middle
        for number in reversed(numbers[: len(numbers) if at is None else low]):
            header = await self.header(chain, number)
            if not header.restore_from:
                return None  # none of those before has one either
            if header.complete:
                return header
        return None

    async def prune(self, chain: str, before: UnixMs) -> int:
        """Deletes segments that no restore to `before` or later needs; how many. Raises DamagedBackup."""
        numbers = await self.numbers(chain)
        last = await self._last(chain, numbers, before)
        names = [segment_name(chain, each) for each in numbers if last is not None and each < last.restore_from]
        for start in range(0, len(names), DELETED_AT_ONCE):
            await self._objects.delete(names[start : start + DELETED_AT_ONCE])
        return len(names)
