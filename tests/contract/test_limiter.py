"""The `Limiter` port's suite, on every implementation: memory, and Valkey with its script.

Time passes without waiting: the memory's clock is moved on, and on the server everything that is stored is dated back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from actors.limits.fallback import FallbackLimiter
from actors.limits.memory import MemoryLimiter
from actors.limits.valkey import ValkeyLimiter
from sessions.limits import Ceilings, Demand, Grant, Limiter, Limits
from sessions.model.errors import Unavailable
from sessions.model.types import ResponseId, SessionId, TenantId
from testbed.valkey_server import Server, cluster_url, running_cluster

TENANT = TenantId("acme {}")
FREE = Ceilings()


class World:
    """A limiter and its clock."""

    def __init__(self, server: Server | None) -> None:
        self._server = server
        self.now_ms = 1_000_000.0
        self.limiter: Limiter = MemoryLimiter(lambda: self.now_ms) if server is None else ValkeyLimiter(server.unix_url)

    async def advance(self, ms: int) -> None:
        self.now_ms += ms
        if self._server is None:
            return
        client = self._server.client()
        for key in client.scan_iter("*"):
            left = client.pttl(key)
            kind = client.type(key)
            if kind == b"hash":
                for field in ("ra", "ta"):
                    at = client.hget(key, field)
                    if at is not None:
                        client.hset(key, field, float(at) - ms)
            elif kind == b"zset":
                scores: Any = client.zrange(key, 0, -1, withscores=True)
                for member, score in scores:
                    client.zadd(key, {member: score - ms})
            if left > 0:
                client.pexpire(key, left - ms) if left > ms else client.delete(key)
        client.close()

    async def ask(
        self,
        name: str,
        *,
        session: str | None = "s",
        user: str = "u:ann",
        tenant: TenantId = TENANT,
        of_tenant: Ceilings = FREE,
        of_user: Ceilings = FREE,
        tokens: int = 10,
        hold_ms: int = 900_000,
    ) -> Grant:
        demand = Demand(
            tenant=tenant,
            user=user,
            session=None if session is None else SessionId(session),
            name=ResponseId(name),
            input_tokens=tokens // 2,
            output_tokens=tokens - tokens // 2,
            tenant_ceilings=of_tenant,
            user_ceilings=of_user,
            hold_ms=hold_ms,
        )
        return await self.limiter.reserve(demand)

    async def settle(self, name: str, tokens: int, session: str | None = "s") -> None:
        of = None if session is None else SessionId(session)
        await self.limiter.settle(TENANT, ResponseId(name), of, tokens)


@pytest.fixture(scope="module")
def valkey() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.cluster)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    server: Server | None = request.getfixturevalue("valkey") if request.param == "valkey" else None
    if server is not None:
        client = server.client()
        client.flushall()
        client.close()
    made = World(server)
    yield made
    if isinstance(made.limiter, ValkeyLimiter):
        await made.limiter.close()


def near(found: int, wanted: int, slack: int = 300) -> bool:
    """Equal but for the time that passes on a real server."""
    return abs(found - wanted) <= slack


async def test_without_ceilings_everything_is_granted_and_nothing_is_told(world: World) -> None:
    grant = await world.ask("r1", tokens=10**9)
    assert grant.refusal is None
    assert grant.standing.requests is None and grant.standing.tokens is None


async def test_requests_are_counted_and_come_back_with_time(world: World) -> None:
    two = Ceilings(requests_per_minute=2)
    standings = [(await world.ask(f"r{n}", of_tenant=two)).standing.requests for n in range(2)]
    assert [gauge.remaining for gauge in standings if gauge is not None] == [1, 0]
    assert all(gauge is not None and gauge.limit == 2 for gauge in standings)
    refused = (await world.ask("r2", of_tenant=two)).refusal
    assert refused is not None and (refused.what, refused.scope, refused.limit) == ("requests_per_minute", "tenant", 2)
    assert near(refused.retry_after_ms, 30_000)
    await world.advance(refused.retry_after_ms)
    assert (await world.ask("r2", of_tenant=two)).refusal is None


async def test_a_refusal_charges_neither_scope(world: World) -> None:
    tenant, user = Ceilings(requests_per_minute=10), Ceilings(requests_per_minute=1)
    assert (await world.ask("r1", of_tenant=tenant, of_user=user)).refusal is None
    refused = await world.ask("r2", of_tenant=tenant, of_user=user)
    assert refused.refusal is not None and refused.refusal.scope == "user"
    other = await world.ask("r3", user="u:bob", of_tenant=tenant)
    assert other.standing.requests is not None and other.standing.requests.remaining == 8


async def test_tokens_are_reserved_and_settled(world: World) -> None:
    thousand = Ceilings(tokens_per_minute=1000)
    grant = await world.ask("r1", of_tenant=thousand, tokens=800)
    assert grant.standing.tokens is not None and near(grant.standing.tokens.remaining, 200, 10)
    refused = (await world.ask("r2", of_tenant=thousand, tokens=300)).refusal
    assert refused is not None and refused.what == "tokens_per_minute" and near(refused.retry_after_ms, 6000)
    await world.settle("r1", 100)
    again = await world.ask("r3", session="other", of_tenant=thousand, tokens=300)
    assert again.refusal is None
    assert again.standing.tokens is not None and near(again.standing.tokens.remaining, 600, 20)


async def test_what_was_used_beyond_the_reservation_is_taken_too(world: World) -> None:
    thousand = Ceilings(tokens_per_minute=1000)
    await world.ask("r1", of_tenant=thousand, tokens=100)
    await world.settle("r1", 1600)
    refused = (await world.ask("r2", session="other", of_tenant=thousand, tokens=100)).refusal
    assert refused is not None and near(refused.retry_after_ms, 42_000, 600)


async def test_settling_twice_or_too_late_changes_nothing(world: World) -> None:
    thousand = Ceilings(tokens_per_minute=1000)
    await world.ask("r1", of_tenant=thousand, tokens=500)
    for _ in range(2):
        await world.settle("r1", 100)
    await world.settle("never", 5_000)
    grant = await world.ask("r2", session="other", of_tenant=thousand, tokens=100)
    assert grant.standing.tokens is not None and near(grant.standing.tokens.remaining, 800, 20)


async def test_a_session_is_charged_for_what_it_holds(world: World) -> None:
    thousand = Ceilings(tokens_per_minute=1000)
    await world.ask("r1", of_tenant=thousand, tokens=10)
    await world.settle("r1", 300)
    await world.advance(60_000)
    grant = await world.ask("r2", of_tenant=thousand, tokens=100)
    assert grant.standing.tokens is not None and near(grant.standing.tokens.remaining, 600, 10)


async def test_a_demand_of_no_session_is_charged_for_its_own_tokens_alone(world: World) -> None:
    thousand = Ceilings(tokens_per_minute=1000)
    for name in ("r1", "r2"):
        await world.ask(name, session=None, of_tenant=thousand, tokens=300)
        await world.settle(name, 300, session=None)
    grant = await world.ask("r3", session=None, of_tenant=thousand, tokens=100)
    assert grant.standing.tokens is not None and near(grant.standing.tokens.remaining, 300, 20)


async def test_one_larger_than_a_minute_goes_when_the_minute_is_unspent(world: World) -> None:
    hundred = Ceilings(tokens_per_minute=100)
    assert (await world.ask("r1", session="a", of_tenant=hundred, tokens=250)).refusal is None
    refused = (await world.ask("r2", session="b", of_tenant=hundred, tokens=1)).refusal
    assert refused is not None and near(refused.retry_after_ms, 90_600, 700)


async def test_a_repeat_is_granted_and_charged_once(world: World) -> None:
    one = Ceilings(requests_per_minute=1, tokens_per_minute=1000, concurrent_turns=1)
    first = await world.ask("r1", of_tenant=one)
    assert first.refusal is None
    assert (await world.ask("r1", of_tenant=one)).refusal is None
    await world.settle("r1", 5)
    assert (await world.ask("r1", of_tenant=one)).refusal is None
    assert (await world.ask("r2", of_tenant=one)).refusal is not None


async def test_a_reservation_that_has_lapsed_grants_nothing_any_more(world: World) -> None:
    two = Ceilings(requests_per_minute=2)
    for number in range(4):  # in front of it in the order of coming, and longer under way
        assert (await world.ask(f"long{number}", user=f"u:{number}")).refusal is None
    assert (await world.ask("r1", of_user=two, hold_ms=1_000)).refusal is None
    await world.advance(1_001)
    again = await world.ask("r1", of_user=two)
    assert again.standing.requests is not None and again.standing.requests.remaining == 0, "it is paid for again"
    assert (await world.ask("r1", of_user=two)).refusal is None


async def test_turns_that_lapse_out_of_order_free_their_places(world: World) -> None:
    two = Ceilings(concurrent_turns=2)
    assert (await world.ask("long", of_user=two)).refusal is None
    assert (await world.ask("short", of_user=two, hold_ms=1_000)).refusal is None
    assert (await world.ask("r3", of_user=two)).refusal is not None
    await world.advance(1_001)
    assert (await world.ask("r3", of_user=two)).refusal is None
    assert (await world.ask("r4", of_user=two)).refusal is not None


async def test_turns_under_way_are_counted_until_they_end_or_lapse(world: World) -> None:
    two = Ceilings(concurrent_turns=2)
    for name in ("r1", "r2"):
        assert (await world.ask(name, of_user=two, hold_ms=10_000)).refusal is None
    refused = (await world.ask("r3", of_user=two)).refusal
    assert refused is not None and (refused.what, refused.scope) == ("concurrent_turns", "user")
    assert refused.retry_after_ms > 0
    await world.settle("r1", 1)
    assert (await world.ask("r3", of_user=two, hold_ms=10_000)).refusal is None
    assert (await world.ask("r4", of_user=two)).refusal is not None
    await world.advance(10_001)
    assert (await world.ask("r4", of_user=two)).refusal is None


async def test_a_turn_that_did_not_begin_gives_back(world: World) -> None:
    one = Ceilings(requests_per_minute=2, tokens_per_minute=1000, concurrent_turns=1)
    await world.ask("r1", of_tenant=one, tokens=500)
    await world.limiter.release(TENANT, ResponseId("r1"), unasked=False)
    grant = await world.ask("r2", of_tenant=one, tokens=900)
    assert grant.refusal is None and grant.standing.requests is not None and grant.standing.requests.remaining == 0
    await world.limiter.release(TENANT, ResponseId("r2"), unasked=True)
    grant = await world.ask("r3", of_tenant=one, tokens=900)
    assert grant.standing.requests is not None and grant.standing.requests.remaining == 0
    assert grant.refusal is None


async def test_a_ceiling_that_changes_keeps_what_was_spent(world: World) -> None:
    await world.ask("r1", of_tenant=Ceilings(tokens_per_minute=1000), tokens=900)
    more = await world.ask("r2", of_tenant=Ceilings(tokens_per_minute=2000), tokens=100)
    assert more.standing.tokens is not None and near(more.standing.tokens.remaining, 1000, 40)
    less = await world.ask("r3", of_tenant=Ceilings(tokens_per_minute=500), tokens=100)
    assert less.refusal is not None and near(less.refusal.retry_after_ms, 72_000, 3000)


async def test_tenants_do_not_meet(world: World) -> None:
    one = Ceilings(requests_per_minute=1)
    for name, tenant in (("r1", TENANT), ("r2", TenantId("other"))):
        assert (await world.ask(name, tenant=tenant, of_tenant=one)).refusal is None


async def test_many_at_once_never_pass_the_limit(world: World) -> None:
    ten = Ceilings(requests_per_minute=10, tokens_per_minute=10_000, concurrent_turns=10)
    grants = await asyncio.gather(*(world.ask(f"r{n}", session=f"s{n}", of_tenant=ten) for n in range(60)))
    assert sum(grant.refusal is None for grant in grants) == 10


@pytest.mark.cluster
async def test_a_cluster_of_valkeys_is_found_by_the_first_that_asks() -> None:
    with running_cluster() as servers:
        world = World(None)
        world.limiter = limiter = ValkeyLimiter(cluster_url(servers))
        try:
            for name in ("acme", "other", "third"):  # on both servers
                assert (await world.ask("r1", tenant=TenantId(name))).refusal is None
        finally:
            await limiter.close()


async def test_what_was_granted_before_is_granted_again_and_says_so(world: World) -> None:
    one = Ceilings(concurrent_turns=1)
    assert [(await world.ask("r1", of_tenant=one)).again for _ in range(2)] == [False, True]
    refused = await world.ask("r2", of_tenant=one)
    assert refused.refusal is not None and not refused.again
    await world.settle("r1", 5)
    assert (await world.ask("r1", of_tenant=one)).again, "for an hour after its end"
    assert not (await world.ask("r2", of_tenant=one)).again


class Gone:
    """A limiter whose store does not answer, while `gone`."""

    def __init__(self) -> None:
        self.gone = True
        self.asked = 0
        self.settled: list[str] = []
        self.inner = MemoryLimiter(lambda: 0.0)

    async def reserve(self, demand: Demand) -> Grant:
        self.asked += 1
        if self.gone:
            raise Unavailable("limits_unavailable", "gone")
        return await self.inner.reserve(demand)

    async def settle(self, tenant: TenantId, name: ResponseId, session: SessionId | None, tokens: int) -> None:
        if self.gone:
            raise Unavailable("limits_unavailable", "gone")
        self.settled.append(name)

    async def release(self, tenant: TenantId, name: ResponseId, *, unasked: bool) -> None:
        return


@pytest.mark.parametrize(("setting", "granted"), [("local", 2), ("open", 8), ("closed", 0)])
async def test_a_lost_store_means_what_the_file_says(setting: str, granted: int) -> None:
    clock = [0.0]
    store = Gone()
    limits = Limits(store_lost=setting, local_share=0.25)  # type: ignore[arg-type]
    tolerant = FallbackLimiter(store, lambda: limits, lambda: clock[0])
    world = World(None)
    world.limiter = tolerant
    eight = Ceilings(requests_per_minute=8)
    let_in = 0
    for number in range(8):
        if setting == "closed":
            with pytest.raises(Unavailable) as caught:
                await world.ask(f"r{number}", of_tenant=eight)
            assert caught.value.retry_after_ms
        else:
            let_in += (await world.ask(f"r{number}", of_tenant=eight)).refusal is None
    assert let_in == granted
    assert store.asked == 1 and tolerant.lost, "it is left alone for a moment"
    clock[0] = 1_001.0
    store.gone = False
    assert (await world.ask("later", of_tenant=eight)).refusal is None
    assert not tolerant.lost
