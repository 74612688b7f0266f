"""What the gateways of a cluster share, tickets and the places of histories: one suite on memory, on Valkey and on a
cluster of Valkeys.

Time passes without waiting: the memory's clock is moved on, and on the server everything that is stored is dated back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest
import redis

from sessions.model import commands as cm
from sessions.model.errors import Limited, Unauthorized, Unavailable
from sessions.model.types import LOCAL_PRINCIPAL, SCOPES, ItemId, Principal, SessionId, TenantId, UnixMs
from testbed.valkey_server import Server, cluster_url, running
from transport.auth import tickets
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.tickets import MemoryTickets, Tickets
from transport.gateway_store import valkey
from transport.gateway_store.valkey import PAUSE_S, ValkeyGatewayStore, ValkeyHistory, ValkeyTickets
from transport.history_index import (
    GIVEN_MAX,
    GIVEN_TTL_S,
    HISTORY_TTL_S,
    PLACES_PER_KEY_MAX,
    HistoryIndex,
    HistoryPlace,
    MemoryHistory,
    Unit,
    chain_root,
    extend_chain_all,
    find_history,
)

ALICE = Principal(tenant=TenantId("acme {}"), key_id="k1", user="alice", scopes=SCOPES, expires_at=UnixMs(2**50))
BOB = Principal(tenant=TenantId("other"), key_id="k1", user="alice")
ASK = Unit((cm.NewMessage(content="hello"),))
ANSWER = Unit((cm.NewMessage(role="assistant", content="hi"),), answer=True)


def place(name: str) -> HistoryPlace:
    return HistoryPlace(SessionId(name), ItemId(f"msg_{name}"))


def history(turns: int, principal: Principal = ALICE) -> tuple[list[bytes], list[Unit]]:
    """The chains and the messages of a conversation."""
    units = [ASK, ANSWER] * turns
    return extend_chain_all(chain_root(principal, None, "m", (), None, listed=False), units), units


class Shared(NamedTuple):
    """What one gateway has of it."""

    tickets: Tickets
    history: HistoryIndex


class World:
    """Two gateways, and the clock of what they share."""

    def __init__(self, servers: list[Server], url: str) -> None:
        self._servers = servers
        self.now_s = 1_000.0
        self.stores: list[ValkeyGatewayStore] = []
        if servers:
            self.stores = [ValkeyGatewayStore(url, clock=lambda: self.now_s) for _ in range(2)]
            self.near, self.far = (Shared(ValkeyTickets(store), ValkeyHistory(store, b"s")) for store in self.stores)
        else:
            self.near = self.far = Shared(MemoryTickets(lambda: self.now_s), MemoryHistory(lambda: self.now_s))

    def clients(self) -> Iterator[redis.Redis]:
        for server in self._servers:
            with server.client() as client:
                yield client

    def keys(self) -> dict[bytes, int]:
        """What is stored, and for how many milliseconds."""
        return {key: client.pttl(key) for client in self.clients() for key in client.scan_iter("*")}

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        ms = round(seconds * 1000)
        for client in self.clients():
            for key in list(client.scan_iter("*")):
                if client.type(key) == b"zset":
                    scores: Any = client.zrange(key, 0, -1, withscores=True)
                    for member, score in scores:
                        client.zadd(key, {member: score - ms * 1000})
                left = client.pttl(key)
                client.pexpire(key, left - ms) if left > ms else client.delete(key)


@pytest.fixture(
    params=[
        "memory",
        pytest.param("valkey", marks=pytest.mark.cluster),
        pytest.param("cluster", marks=pytest.mark.cluster),
    ]
)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    servers: list[Server] = []
    url = ""
    if request.param == "valkey":
        servers = request.getfixturevalue("one_valkey")
        url = servers[0].unix_url
    elif request.param == "cluster":
        servers = request.getfixturevalue("many_valkeys")
        url = cluster_url(servers)
    made = World(servers, url)
    for client in made.clients():
        client.flushall()
    yield made
    for store in made.stores:
        await store.close()


async def test_whoever_is_asked_first_tells_who_stands_behind_a_ticket(world: World) -> None:
    for digest, principal in (("a", ALICE), ("b", BOB), ("c", LOCAL_PRINCIPAL)):
        await world.near.tickets.put(digest, principal)
    assert await world.far.tickets.take("b") == BOB
    assert await world.near.tickets.take("b") is None
    assert await world.far.tickets.take("a") == ALICE
    assert await world.far.tickets.take("a") is None
    assert await world.far.tickets.take("c") == LOCAL_PRINCIPAL
    assert await world.far.tickets.take("never") is None


async def test_of_many_who_ask_at_once_one_is_told(world: World) -> None:
    await world.near.tickets.put("a", ALICE)
    told = await asyncio.gather(*(each.tickets.take("a") for each in (world.near, world.far) * 20))
    assert [who for who in told if who is not None] == [ALICE]


async def test_a_ticket_is_good_for_30_seconds(world: World) -> None:
    await world.near.tickets.put("a", ALICE)
    await world.near.tickets.put("b", ALICE)
    assert all(20_000 < left <= 30_000 for left in world.keys().values())
    world.advance(20.0)
    assert await world.far.tickets.take("a") == ALICE
    world.advance(10.0)
    assert await world.far.tickets.take("b") is None
    assert world.keys() == {}


async def test_open_tickets_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "TICKETS_MAX", 2)
    for digest in ("a", "b"):
        await world.near.tickets.put(digest, ALICE)
    with pytest.raises(Limited) as caught:
        await world.near.tickets.put("c", ALICE)
    assert caught.value.retry_after_ms == 30_000
    world.advance(31.0)
    await world.near.tickets.put("c", ALICE)


async def test_a_ticket_itself_is_kept_nowhere(world: World) -> None:
    doors = [
        Authenticator({}, clock=lambda: world.now_s, now_ms=lambda: UnixMs(1), tickets=shared.tickets)
        for shared in (world.near, world.far)
    ]
    ticket = await doors[0].issue_ticket(ALICE)
    stored = [(key, client.get(key)) for client in world.clients() for key in client.scan_iter("*")]
    assert all(ticket.encode() not in key + value for key, value in stored)
    assert [key.split(b":")[-1] for key, _ in stored] == [key_digest(ticket).encode()] * len(stored)
    assert await doors[1].redeem_ticket(ticket) == ALICE
    with pytest.raises(Unauthorized):
        await doors[0].redeem_ticket(ticket)


async def test_the_longest_history_is_found_so_many_times_by_whichever_gateway(world: World) -> None:
    behind, units = history(3)
    await world.near.history.put(behind[1], place("short"))
    await world.far.history.put(behind[3], place("long"))
    for wanted in (("long", 4), ("short", 2)):
        for gateway in (world.far, world.near) * (GIVEN_MAX // 2):
            found = await find_history(gateway.history, behind, units)
            assert found is not None and (found.place, found.units) == (place(wanted[0]), wanted[1])
    assert await find_history(world.near.history, behind, units) is None
    assert await find_history(world.near.history, [], []) is None and world.keys() == {}


async def test_of_many_with_one_history_each_is_given_another_place_while_there_is_one(world: World) -> None:
    behind, units = history(1)
    for number in range(3):
        await world.near.history.put(behind[1], place(f"{number}"))
    gateways = (world.near, world.far)
    for _ in range(2):
        found = await asyncio.gather(*(find_history(each.history, behind, units) for each in (*gateways, world.near)))
        assert sorted(each.place for each in found if each is not None) == [place(f"{number}") for number in range(3)]
    found = await asyncio.gather(*(find_history(each.history, behind, units) for each in gateways * 3 * GIVEN_MAX))
    times = Counter(each.place for each in found if each is not None)
    assert times == {place(f"{number}"): GIVEN_MAX - 2 for number in range(3)}


async def test_the_newest_place_comes_first_and_a_chain_has_so_many(world: World) -> None:
    (_, chain), _ = history(1)
    for number in range(PLACES_PER_KEY_MAX + 3):
        await world.near.history.put(chain, place(f"{number}"))
    kept = [(0, place(f"{number}")) for number in range(PLACES_PER_KEY_MAX + 2, 2, -1)]
    for time in range(GIVEN_MAX):
        given = [await world.far.history.take([chain]) for _ in kept]
        assert given == kept if time == 0 else set(given) == set(kept)
    assert await world.far.history.take([chain]) is None


async def given(index: HistoryIndex, chain: bytes) -> str | None:
    """The name of the place that is given next."""
    found = await index.take([chain])
    return None if found is None else found[1].session


async def test_a_place_that_is_given_back_was_given_once_less(world: World) -> None:
    (_, chain), _ = history(1)
    near, far = world.near.history, world.far.history
    await near.put(chain, place("other"))
    await near.put(chain, place("mine"))
    for _ in range(2 * GIVEN_MAX):  # of somebody who is refused again and again
        assert await given(far, chain) == "mine"
        await near.give_back(chain, place("mine"))
    assert [await given(far, chain) for _ in range(2)] == ["mine", "other"]
    await near.drop(chain, place("other"))
    for _ in range(GIVEN_MAX - 1):
        assert await given(far, chain) == "mine"
    await near.give_back(chain, place("mine"))  # it had been given as often as may be
    assert [await given(far, chain) for _ in range(2)] == ["mine", None]
    assert world.keys() == {}


async def test_what_is_told_again_keeps_its_count(world: World) -> None:
    (_, chain), _ = history(1)
    near, far = world.near.history, world.far.history
    for _ in range(3):
        await near.put(chain, place("mine"))
    for _ in range(GIVEN_MAX - 1):
        assert await given(far, chain) == "mine"
        await near.put(chain, place("mine"))
    assert [await given(far, chain) for _ in range(2)] == ["mine", None]


async def test_a_place_that_is_gone_hides_no_other(world: World) -> None:
    behind, units = history(2)
    await world.near.history.put(behind[1], place("short"))
    await world.near.history.put(behind[3], place("long"))
    await world.near.history.drop(behind[3], place("nobody's"))
    await world.near.history.drop(behind[3], place("long"))
    found = await find_history(world.far.history, behind, units)
    assert found is not None and found.place == place("short")


async def test_a_place_is_forgotten_after_a_day(world: World) -> None:
    (_, chain), _ = history(1)
    await world.near.history.put(chain, place("old"))
    assert all(0 < left <= HISTORY_TTL_S * 1000 for left in world.keys().values())
    world.advance(HISTORY_TTL_S / 2)
    await world.near.history.put(chain, place("new"))
    world.advance(HISTORY_TTL_S / 2)
    for _ in range(GIVEN_MAX):
        assert await world.far.history.take([chain]) == (0, place("new"))
    assert await world.far.history.take([chain]) is None and world.keys() == {}


async def test_one_that_was_given_is_forgotten_an_hour_after_the_first_time(world: World) -> None:
    (_, chain), _ = history(1)
    await world.near.history.put(chain, place("given"))
    for _ in range(2):
        assert await world.far.history.take([chain]) == (0, place("given"))
        assert all(0 < left <= GIVEN_TTL_S * 1000 for left in world.keys().values())
        assert bool(world.keys()) == bool(world.stores)
        world.advance(GIVEN_TTL_S / 2)
    await world.near.history.put(chain, place("other"))
    assert all(left > GIVEN_TTL_S * 1000 for left in world.keys().values())
    for _ in range(GIVEN_MAX):
        assert await world.near.history.take([chain]) == (0, place("other"))
    assert await world.far.history.take([chain]) is None and world.keys() == {}


async def test_a_given_place_goes_with_its_day(world: World) -> None:
    (_, chain), _ = history(1)
    await world.near.history.put(chain, place("given"))
    world.advance(HISTORY_TTL_S - 60)
    assert await world.far.history.take([chain]) == (0, place("given"))
    world.advance(60)
    assert await world.far.history.take([chain]) is None and world.keys() == {}


async def test_tenants_do_not_meet_though_they_say_the_same(world: World) -> None:
    """Their names may hold what stands in keys."""
    names = ("acme {}", "acme", "}:history:{", "acme\0k1", "")
    principals = [Principal(tenant=TenantId(name), key_id=f"k{n}") for name in names for n in range(2)]
    for number, principal in enumerate(principals):
        behind, _ = history(1, principal)
        await world.near.history.put(behind[1], place(f"{number}"))
    for number, principal in enumerate(principals):
        for _ in range(GIVEN_MAX):
            found = await find_history(world.far.history, *history(1, principal))
            assert found is not None and found.place == place(f"{number}")
        assert await find_history(world.near.history, *history(1, principal)) is None


@pytest.mark.cluster
async def test_a_server_that_is_away_is_asked_once_a_second_and_comes_back() -> None:
    with running() as server:
        world = World([server], server.unix_url)
        store, (behind, units) = world.stores[0], history(1)
        try:
            server.kill()
            with pytest.raises(Unavailable) as put:
                await world.near.tickets.put("a", ALICE)
            with pytest.raises(Unavailable) as take:
                await world.near.tickets.take("a")
            for error in (put.value, take.value):
                assert error.code == "directory_unavailable" and error.retryable
                assert error.retry_after_ms == 1000 and "again" in error.public_message
            with pytest.raises(Unavailable):
                await find_history(world.near.history, behind, units)
            server.start()
            with pytest.raises(Unavailable):
                await world.near.history.put(behind[1], place("a"))
            assert store.lost
            world.now_s += PAUSE_S
            await world.near.history.put(behind[1], place("a"))
            assert not store.lost
            assert await world.near.tickets.take("a") is None
        finally:
            for each in world.stores:
                await each.close()


@pytest.mark.cluster
async def test_a_server_that_hangs_holds_up_one_call_at_a_time() -> None:
    with running() as server:
        world = World([server], server.unix_url)
        (store, other), (behind, units) = world.stores, history(1)
        try:
            await world.near.history.put(behind[1], place("a"))
            server.pause()
            with pytest.raises(Unavailable):
                await find_history(world.near.history, behind, units)
            world.now_s += PAUSE_S
            trying = asyncio.create_task(find_history(world.near.history, behind, units))
            await asyncio.sleep(0)
            for _ in range(100):  # they do not wait with it
                call = world.near.tickets.take("a")
                with pytest.raises(Unavailable):
                    call.send(None)
            server.go_on()
            await asyncio.wait([trying])
            trying.exception()
            world.now_s += PAUSE_S
            assert await world.near.tickets.take("a") is None and not store.lost and not other.lost
        finally:
            for each in world.stores:
                await each.close()


async def test_the_session_that_has_most_in_common_is_known_to_every_gateway_of_a_cluster(world: World) -> None:
    mine, theirs = b"m" * 16, b"t" * 16
    deep, middle, shallow = (bytes([number]) * 16 for number in range(3))
    await world.near.history.mark(mine, [deep, middle, shallow], SessionId("old"))
    await world.far.history.mark(mine, [middle, shallow], SessionId("new"))
    for gateway in (world.near, world.far):
        if not world.stores:
            assert await gateway.history.nearest(mine, [deep]) is None, "one process has one replica"
            continue
        assert await gateway.history.nearest(mine, [b"?" * 16, deep, middle]) == "old"
        assert await gateway.history.nearest(mine, [b"?" * 16, middle]) == "new"
        assert await gateway.history.nearest(mine, [b"?" * 16]) is None
        assert await gateway.history.nearest(theirs, [deep, middle, shallow]) is None
    assert all(0 < left <= HISTORY_TTL_S * 1000 for left in world.keys().values())


async def test_what_is_marked_for_one_caller_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey, "MARKS_PER_CALLER_MAX", 10)
    for number in range(30):
        marks = [number.to_bytes(16), (number + 1000).to_bytes(16)]
        await world.near.history.mark(b"m" * 16, marks, SessionId(f"s{number}"))
    kept = [client.hlen(key) for client in world.clients() for key in client.scan_iter("*")]
    assert kept == ([10] if world.stores else [])
