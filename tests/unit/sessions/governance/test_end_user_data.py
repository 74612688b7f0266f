"""An export has every object of one end user and says at its end how many there were."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from persistence.memory.database import MemoryDatabase
from persistence.memory.files import MemoryFiles
from sessions.billing.metering import UsageEntry, UsageQuery
from sessions.governance.end_user_data import Erasure, KeptForUsers, export_user_data, status
from sessions.model.audit import Audited, AuditRow
from sessions.model.errors import Internal
from sessions.model.journal_types import Head, Page
from sessions.model.knowledge.files import FileQuery, StoredFile
from sessions.model.memories import MemoryId, UserMemory
from sessions.model.push import PushId, PushSubscription, WebPushTarget
from sessions.model.types import SessionKey, TenantId, UnixMs
from tests.support.machine.machine_fixture import KEY, Ground
from tests.support.stores.audit_chain import TENANT, AuditChain
from tests.support.stores.file_rows import a_file

ANA = "ana"
NOW = UnixMs(5)


class World(AuditChain):
    """One session of a user, its usage, and a chain with rows about her and another."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self.ground = ground
        self.page_records = 3
        self.add(*(Audited(action="session.deleted", at=NOW, user=user) for user in (ANA, "bob", ANA)))

    async def heads(self, tenant: TenantId, user: str, *, after: SessionKey | None, limit: int) -> list[Head]:
        return [self.ground.head()] if after is None and user == ANA else []

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page:
        return Page(self.ground.head(), tuple(self.ground.records[after : after + self.page_records]))

    async def entries(self, query: UsageQuery, *, after: int, limit: int) -> list[UsageEntry]:
        rows = [UsageEntry(seq, KEY, row) for seq, row in enumerate(self.ground.usage, 1)]
        return [row for row in rows if row.seq > after][:limit] if query.user == ANA else []

    async def memories(self, tenant: TenantId, user: str) -> list[UserMemory]:
        if user != ANA:
            return []
        name, text = MemoryId("mem_1"), "My cat is called Io."
        return [UserMemory(id=name, tenant=tenant, user=user, text=text, created_at=NOW, updated_at=NOW)]

    async def subscriptions(self, tenant: TenantId, user: str) -> list[PushSubscription]:
        target = WebPushTarget(endpoint="https://push.example/secret-address", p256dh="k", auth="a")
        mine = PushSubscription(id=PushId("push_1"), tenant=tenant, user=ANA, target=target, created_at=NOW)
        return [mine] if user == ANA else []

    async def rows(
        self, tenant: TenantId, *, after: int, limit: int, about: Sequence[str] | None = None
    ) -> list[AuditRow]:
        assert about is not None
        return [row for row in self.stored if row.seq > after and row.about in about][:limit]


class CountedUploads(MemoryFiles):
    """One file of hers."""

    def __init__(self) -> None:
        super().__init__(MemoryDatabase())

    async def files(self, query: FileQuery, now: UnixMs) -> list[StoredFile]:
        return [a_file(b"ab", blob="b")] if query.user == ANA and query.after is None else []

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"


@pytest.fixture
def world() -> World:
    ground = Ground()
    ground.create(title="mine")
    response_id = ground.say().response_id
    assert response_id is not None
    ground.answer(response_id, "well")
    return World(ground)


async def exported(world: Any, user: str = ANA) -> list[dict[str, Any]]:
    objects = export_user_data(
        TENANT,
        user,
        personal=world,
        kept=KeptForUsers(world, CountedUploads()),
        journal=world,
        usage=world,
        audit=world,
        at=NOW,
    )
    return [each async for each in objects]


async def test_everything_of_a_user_and_of_nobody_else(world: World) -> None:
    objects = await exported(world)
    assert [each["object"] for each in objects] == [
        "user.export",
        "memory",
        "push_subscription",
        "file",
        *["file.content"] * 2,
        "session",
        *["item"] * 2,
        "usage.response",
        *["audit.row"] * 2,
        "user.exported",
    ]
    assert objects[1]["text"] == "My cat is called Io."
    assert objects[2]["service"] == "push.example" and "secret" not in str(objects[2])
    assert objects[6]["title"] == "mine" and objects[6]["top"] == len(world.ground.records)
    assert objects[3]["filename"] == "Bericht ü.txt" and [each["data"] for each in objects[4:6]] == ["YQ==", "Yg=="]
    counts = {name: objects[-1][name] for name in ("memories", "sessions", "items", "responses", "audit_rows")}
    assert counts == {"memories": 1, "sessions": 1, "items": 2, "responses": 1, "audit_rows": 2}
    nobody = await exported(world, "nobody")
    assert [each["object"] for each in nobody] == ["user.export", "user.exported"]


async def test_a_session_without_records_is_left_out(world: World) -> None:
    world.ground.records.clear()
    assert (await exported(world))[-1]["sessions"] == 0


async def test_a_log_with_a_hole_is_our_failure(world: World) -> None:
    world.page_records = 0
    with pytest.raises(Internal):
        await exported(world)


def test_an_erasure_is_under_way_until_it_is_done() -> None:
    erasure = Erasure(tenant=KEY.tenant, user="u_1", asked_at=NOW, asked_by="boss")
    assert (status(erasure, ANA)["status"], status(erasure, ANA)["user"]) == ("under_way", ANA)
    done = status(msgspec.structs.replace(erasure, done_at=UnixMs(9)), ANA)
    assert (done["status"], done["done_at"]) == ("done", 9)
