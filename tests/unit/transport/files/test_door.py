"""Uploads within their limits, and files to who may see them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from persistence.memory.database import MemoryDatabase
from persistence.memory.files import MemoryFiles
from sessions.clock import Clock
from sessions.limits import Ceilings, TenantLimits
from sessions.model.errors import BadInput, Forbidden, Limited, Overloaded, TooLarge
from sessions.model.knowledge.files import StoredFile
from sessions.model.types import Principal, TenantId, UnixMs
from tests.support.documents.inline import InlineDocuments
from transport.files import door as module
from transport.files.door import FileDoor

ANA = Principal(tenant=TenantId("acme"), key_id="ana", user="ana")
SERVICE = Principal(tenant=TenantId("acme"), key_id="k", role="service")
READER = Principal(tenant=TenantId("acme"), key_id="r", user="ana", scopes=("read",))
NOBODY = Principal(tenant=TenantId("acme"), key_id="n")
BETA = Principal(tenant=TenantId("beta"), key_id="b", role="service")


def a_door(table: TenantLimits | None = None, **more: Any) -> tuple[FileDoor, MemoryDatabase]:
    database, numbers = MemoryDatabase(), itertools.count(1)
    clock = Clock(lambda: UnixMs(5), lambda: f"{next(numbers):04}")
    documents = more.pop("documents", InlineDocuments())
    return FileDoor(MemoryFiles(database), documents, clock, lambda tenant: table, **more), database


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
