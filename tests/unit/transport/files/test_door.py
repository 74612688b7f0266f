"""Uploads within their limits, and files to who may see them."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from persistence.memory.database import MemoryDatabase
from persistence.memory.files import MemoryFiles
from sessions.clock import Clock
from sessions.limits import Ceilings, TenantLimits
from sessions.model import commands as cm
from sessions.model.errors import BadInput, Forbidden, Limited, Overloaded, TooLarge
from sessions.model.knowledge.files import StoredFile
from sessions.model.knowledge.images import DecodedImage
from sessions.model.types import CommandId, InputImage, Principal, SessionId, TenantId, UnixMs
from tests.support.documents.inline import InlineDocuments
from transport.files import attachments
from transport.files import door as module
from transport.files.attachments import CommandFiles, ImageBounds
from transport.files.door import FileDoor

ANA = Principal(tenant=TenantId("acme"), key_id="ana", user="ana")
SERVICE = Principal(tenant=TenantId("acme"), key_id="k", role="service")
READER = Principal(tenant=TenantId("acme"), key_id="r", user="ana", scopes=("read",))
NOBODY = Principal(tenant=TenantId("acme"), key_id="n")
BETA = Principal(tenant=TenantId("beta"), key_id="b", role="service")


class CountedFiles(MemoryFiles):
    """Counts the bytes of contents that were read."""

    read_bytes = 0

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        async for chunk in super().read(file):
            self.read_bytes += len(chunk)
            yield chunk


class RememberingDecoder:
    """An ImageDecoder that remembers all that it decoded."""

    def __init__(self) -> None:
        self.results: dict[str, DecodedImage] = {}
        self.waiting = 0
        self.may_decode = asyncio.Event()
        self.may_decode.set()
        self.is_full = asyncio.Event()  # as many wait to be decoded as may at once

    async def decode(self, content: bytes, *, edge_max: int = 0, bytes_max: int = 0) -> DecodedImage:
        self.waiting += 1
        if self.waiting == module.READS_MAX + module.FETCHES_MAX:
            self.is_full.set()
        await self.may_decode.wait()
        self.waiting -= 1
        image = DecodedImage("image/png", content[:9], 1, 1)
        return self.results.setdefault(hashlib.sha256(content).hexdigest(), image)

    def known(self, sha256: str, *, edge_max: int, bytes_max: int) -> DecodedImage | None:
        return self.results.get(sha256)


def a_door(table: TenantLimits | None = None, **more: Any) -> tuple[FileDoor, MemoryDatabase]:
    database, numbers = MemoryDatabase(), itertools.count(1)
    clock = Clock(lambda: UnixMs(5), lambda: f"{next(numbers):04}")
    documents = more.pop("documents", InlineDocuments())
    return FileDoor(CountedFiles(database), documents, clock, lambda tenant: table, **more), database


async def uploaded(door: FileDoor, content: bytes, principal: Principal = ANA) -> StoredFile:
    async with door.upload(principal) as upload:
        for at in range(0, len(content), 1000):
            await upload.feed(content[at : at + 1000])
        return await upload.finish(filename="../a.txt", media_type="TEXT/plain; x", purpose="user_data", expires_s=60)


async def test_what_is_left_halfway_leaves_nothing() -> None:
    door, database = a_door(bytes_max=1500)
    with pytest.raises(TooLarge):
        await uploaded(door, b"x" * 2000)
    with pytest.raises(KeyError):
        async with door.upload(ANA):
            raise KeyError
    assert not database.files and not database.file_blobs and not door._under_way


async def test_quotas_of_the_limits_file() -> None:
    door, database = a_door(TenantLimits(files=9, user=Ceilings(file_bytes=10)))
    await uploaded(door, b"12345")
    with pytest.raises(Limited):
        await uploaded(door, b"123456")
    await uploaded(door, b"123456", SERVICE)
    assert len(database.files) == 2 and all(blob.due_at is None for blob in database.file_blobs.values())


async def test_who_may_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    door, _ = a_door()
    for principal, error in ((READER, Forbidden), (NOBODY, BadInput)):
        with pytest.raises(error):
            door.upload(principal)
    monkeypatch.setattr(module, "UPLOADS_PER_KEY_MAX", 1)
    async with door.upload(ANA):
        with pytest.raises(Limited):
            door.upload(ANA)
        async with door.upload(SERVICE):
            monkeypatch.setattr(module, "UPLOADS_MAX", 2)
            with pytest.raises(Overloaded):
                door.upload(BETA)


async def test_an_image_whose_result_is_known_is_not_read() -> None:
    door, _ = a_door(images=RememberingDecoder())
    file, bounds = await uploaded(door, b"x" * 5_000), ImageBounds(9, 9)
    first = await door.stored(ANA, file.id, bounds, CommandFiles())
    assert await door.stored(ANA, file.id, bounds, CommandFiles()) is first
    assert isinstance(door._files, CountedFiles) and door._files.read_bytes == 5_000


async def test_what_one_command_has_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "READ_BYTES_MAX", 2_500)
    door, _ = a_door(images=RememberingDecoder())
    files = [(await uploaded(door, b"%d" % number * 1_000)).id for number in range(4)]
    content = tuple(InputImage(file_id=file) for file in files)
    command = cm.MessageCreate(id=CommandId("c"), session=SessionId("s"), content=content)
    with pytest.raises(TooLarge) as refused:
        await door.attachments.command(ANA, command)
    assert (refused.value.code, refused.value.param) == ("too_large", "content[2]")
    assert isinstance(door._files, CountedFiles) and door._files.read_bytes == 2_000
    await door.attachments.command(ANA, command)
    assert door._files.read_bytes == 4_000, "what is known is not counted: a second request gets further"


async def test_contents_in_memory_are_bounded_until_they_are_decoded() -> None:
    decoder = RememberingDecoder()
    decoder.may_decode.clear()
    fetched = list[str]()

    async def fetch(url: str) -> bytes:
        fetched.append(url)
        return url.encode()

    door, _ = a_door(images=decoder, fetch=fetch)
    assert isinstance(door._files, CountedFiles)
    ids = [(await uploaded(door, b"%d" % number * 100)).id for number in range(9)]
    bounds = ImageBounds(9, 9)
    calls = [asyncio.create_task(door.stored(ANA, file, bounds, CommandFiles())) for file in ids]
    calls += [asyncio.create_task(door.fetched(f"https://a/{n}", bounds, CommandFiles())) for n in range(9)]
    async with asyncio.timeout(60):
        await decoder.is_full.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (door._files.read_bytes, len(fetched)) == (100 * module.READS_MAX, module.FETCHES_MAX)
    decoder.may_decode.set()
    await asyncio.gather(*calls)
    assert (door._files.read_bytes, len(fetched)) == (900, 9)
