"""The `ResultStore` port's suite, on every implementation: memory, and Valkey with its script."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from actors.results.cache import ProcessKeys, TenantResultCache
from actors.results.store import MemoryResultStore, ResultStore, StoredResult
from actors.results.valkey import ValkeyResultStore
from sessions.limits import Limits, TenantLimits
from sessions.metrics import Metrics
from sessions.model.generation import Chunk
from sessions.model.types import Principal, SessionId, SessionKey, TenantId
from sessions.turn.ledger import PromptPlan
from testbed.valkey_server import Server

ACME, LIKE = TenantId("acme {}"), TenantId("acme {} ")
ROOM = 10_000
OVERHEAD = 256


class World:
    """A store and its clock."""

    def __init__(self, server: Server | None) -> None:
        self._server = server
        self.now = 1_000.0
        self.store: ResultStore = (
            MemoryResultStore(1 << 30, lambda: self.now) if server is None else ValkeyResultStore(server.unix_url)
        )

    def advance(self, seconds: int) -> None:
        """On the server everything that is stored is dated back."""
        self.now += seconds
        if self._server is None:
            return
        client = self._server.client()
        for key in client.scan_iter("*:ends"):
            scores: Any = client.zrange(key, 0, -1, withscores=True)
            for member, score in scores:
                client.zadd(key, {member: score - seconds * 1000})
        client.close()

    async def put(
        self, name: str, *, tenant: TenantId = ACME, mark: str = "m", size: int = 100, ttl_s: int = 60
    ) -> None:
        result = StoredResult(wide(name, 32), wide(mark, 16), name.encode() * size)
        await self.store.put(tenant, result, ttl_s=ttl_s, bytes_max=ROOM)

    async def has(self, name: str, tenant: TenantId = ACME) -> bool:
        body = await self.store.get(tenant, wide(name, 32))
        assert body is None or body.startswith(name.encode())
        return body is not None


def wide(name: str, size: int) -> bytes:
    """Bytes of every kind, those that end texts and lines among them."""
    return (b"\xff\x00\r\n" + name.encode()).ljust(size, b"\xff")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    running.start()
    yield running
    running.stop()


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.cluster)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    made = World(request.getfixturevalue("server") if request.param == "valkey" else None)
    yield made
    for tenant in (ACME, LIKE):
        await made.store.drop(tenant, None)
    await made.store.close()


async def test_what_was_put_is_there_for_its_tenant_alone(world: World) -> None:
    await world.put("a")
    assert await world.has("a")
    assert not await world.has("b") and not await world.has("a", LIKE)
    await world.put("a", tenant=LIKE, size=1)
    assert await world.store.get(ACME, wide("a", 32)) == b"a" * 100
    assert await world.store.get(LIKE, wide("a", 32)) == b"a"


async def test_time_ends_it(world: World) -> None:
    await world.put("a", ttl_s=60)
    await world.put("b", ttl_s=600)
    world.advance(59)
    assert await world.has("a")
    world.advance(2)
    assert not await world.has("a") and await world.has("b")


async def test_the_least_recently_used_make_room(world: World) -> None:
    size = ROOM // 4 - OVERHEAD
    for name in "abcd":
        await world.put(name, size=size)
        world.advance(1)
    assert await world.has("a")
    await world.put("e", size=size)
    assert [name for name in "abcde" if await world.has(name)] == ["a", "c", "d", "e"]
    await world.put("f", size=ROOM)
    assert not await world.has("f"), "it would take more than all of the room"
    assert await world.has("e")
    await world.put("e", size=1)
    await world.put("g", size=size - 500)
    assert await world.has("a"), "what is put again counts once"


async def test_what_came_from_a_session_goes_with_it(world: World) -> None:
    for name, mark in (("a", "one"), ("b", "two"), ("c", "one")):
        await world.put(name, mark=mark)
    await world.put("a", tenant=LIKE, mark="one")
    await world.store.drop(ACME, wide("one", 16))
    assert [name for name in "abc" if await world.has(name)] == ["b"]
    assert await world.has("a", LIKE)
    await world.put("b", mark="one")
    await world.store.drop(ACME, wide("two", 16))
    assert await world.has("b")
    await world.store.drop(ACME, None)
    assert not await world.has("b") and await world.has("a", LIKE)
    size = ROOM // 2 - OVERHEAD
    await world.put("x", size=size)
    await world.put("y", size=size)
    assert await world.has("x") and await world.has("y"), "nothing of what was dropped is counted any more"


@pytest.mark.cluster
async def test_replicas_find_what_another_one_kept_until_it_is_forgotten_anywhere(server: Server) -> None:
    class Impersonal:
        async def is_personal(self, principal: Principal, text: str) -> bool:
            return False

    limits, keys = Limits(default=TenantLimits(result_cache_s=60)), ProcessKeys()
    one, other = (
        TenantResultCache(ValkeyResultStore(server.unix_url), keys, lambda: limits, Impersonal(), Metrics())
        for _ in range(2)
    )
    plan = PromptPlan(array("I", [1]), array("I"), 0, 10, 0, None)
    here, there = (SessionKey(ACME, SessionId(name)) for name in ("s1", "s2"))
    forgetting: tuple[Callable[[], Awaitable[None]], ...] = (
        lambda: other.forget_session(here),
        lambda: other.forget_tenant(ACME),
    )
    for forget in forgetting:
        lookup = await one.find(here, b"question", plan)
        lookup.record(Chunk((1,), "answer"))
        lookup.close()
        await one.store(lookup, Principal(tenant=ACME, key_id="k"), ["question"])
        found = await other.find(there, b"question", plan)
        assert found.answer is not None and found.answer.text == "answer"
        await forget()
        assert (await one.find(here, b"question", plan)).answer is None
    await one.close()
    await other.close()
