"""An export has every object of one end user and says at its end how many there were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from sessions.billing.metering import UsageEntry, UsageQuery
from sessions.governance.end_user_data import Erasure, export_user_data, status
from sessions.model.audit import Audited, AuditRow
from sessions.model.errors import Internal
from sessions.model.journal_types import Head, Page
from sessions.model.memories import MemoryId, UserMemory
from sessions.model.types import SessionKey, TenantId, UnixMs
from tests.support.machine.machine_fixture import KEY, Ground
from tests.support.stores.audit_chain import TENANT, AuditChain

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

    async def rows(
        self, tenant: TenantId, *, after: int, limit: int, about: Sequence[str] | None = None
    ) -> list[AuditRow]:
        assert about is not None
        return [row for row in self.stored if row.seq > after and row.about in about][:limit]


@pytest.fixture
def world() -> World:
    ground = Ground()
    ground.create(title="mine")
    response_id = ground.say().response_id
    assert response_id is not None
    ground.answer(response_id, "well")
    return World(ground)


async def exported(world: Any, user: str = ANA) -> list[dict[str, Any]]:
    objects = export_user_data(TENANT, user, personal=world, journal=world, usage=world, audit=world, at=NOW)
    return [each async for each in objects]


async def test_everything_of_a_user_and_of_nobody_else(world: World) -> None:
    objects = await exported(world)
    assert [each["object"] for each in objects] == [
        "user.export",
        "memory",
        "session",
        *["item"] * 2,
        "usage.response",
        *["audit.row"] * 2,
        "user.exported",
    ]
    assert objects[1]["text"] == "My cat is called Io."
    assert objects[2]["title"] == "mine" and objects[2]["top"] == len(world.ground.records)
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
