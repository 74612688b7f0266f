"""Two gateways with one Valkey behind them: to clients they are one."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from inference.simulated import SimulatedEngine
from persistence.memory.journal import MemoryJournal
from persistence.memory.store import MemoryStore
from sessions.clock import Clock
from sessions.model.errors import Unavailable
from sessions.model.types import Principal
from testbed.real_cluster import ALICE, FAST, RealCluster, new_id, now_ms, real_cluster
from testbed.valkey_server import Server as Valkey
from testbed.valkey_server import running
from tests.support.doors.websocket_wire import shake_hands, wire
from tests.support.rounds.mutated_histories import sentence
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.tickets import MemoryTickets, Tickets
from transport.gateway import Gateway, GatewayServices
from transport.gateway_store.opening import open_shared_state
from transport.history_index import HistoryIndex, HistoryPlace, MemoryHistory
from transport.http_api.server import Server
from transport.model_catalog import card_of

KEY = {"authorization": "Bearer sk-1"}
pytestmark = pytest.mark.cluster


class Front(NamedTuple):
    """A gateway as its clients meet it."""

    server: Server
    gateway: Gateway
    http: httpx.AsyncClient

    async def ticket(self) -> httpx.Response:
        return await self.http.post("/v1/ws/tickets")

    async def redeem(self, ticket: str) -> int:
        """The status of a handshake with it."""
        connection = await shake_hands(self.server.port, path=f"/v1/ws?ticket={ticket}")
        connection.cut()
        return connection.handshake.status

    async def chat(self, messages: Sequence[Any], **headers: str) -> httpx.Response:
        body = {"model": "simulated", "messages": list(messages), "max_tokens": 8}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)


@asynccontextmanager
async def front(cluster: RealCluster, name: str, tickets: Tickets, history: HistoryIndex) -> AsyncIterator[Front]:
    clock = asyncio.get_running_loop().time
    assert isinstance(cluster.journal, MemoryJournal)
    gateway = Gateway(
        await cluster.add_gateway(name),
        MemoryStore(journal=cluster.journal),
        Authenticator({key_digest("sk-1"): ALICE}, clock=clock, now_ms=now_ms, tickets=tickets),
        Clock(now_ms, new_id),
        services=GatewayServices(models=lambda: (card_of(SimulatedEngine(FAST).info, created=0),), history=history),
    )
    server = Server(gateway, host="127.0.0.1", port=0)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, headers=KEY, timeout=60) as http:
            yield Front(server, gateway, http)
    finally:
        await server.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[RealCluster]:
    async with real_cluster(2) as made:
        yield made


def shared_state(valkey: Valkey) -> AbstractAsyncContextManager[tuple[Tickets, HistoryIndex]]:
    return open_shared_state(valkey.unix_url, b"of the cluster", time.monotonic)


@pytest.fixture
async def fronts(cluster: RealCluster, valkey: Valkey) -> AsyncIterator[tuple[Front, Front]]:
    async with AsyncExitStack() as stack:
        made = []
        for name in ("g1", "g2"):
            shared = await stack.enter_async_context(shared_state(valkey))
            made.append(await stack.enter_async_context(front(cluster, name, *shared)))
        near, far = made
        yield near, far


@pytest.fixture
def valkey() -> Any:
    with running() as server:
        yield server


async def test_a_ticket_of_one_is_good_once_at_the_other(fronts: tuple[Front, Front]) -> None:
    near, far = fronts
    ticket = (await near.ticket()).json()["ticket"]
    async with wire(far.server.port, path=f"/v1/ws?ticket={ticket}") as client:
        await client.hello()
        client.send({"type": "session.create", "id": "c", "session": "mine"})
        assert (await client.until(type="ok", id="c"))["session"] == "mine"
    assert [await each.redeem(ticket) for each in fronts] == [401, 401]
    ticket = (await near.ticket()).json()["ticket"]
    statuses = await asyncio.gather(*(each.redeem(ticket) for each in fronts * 4))
    assert sorted(statuses) == [101, *[401] * 7], "whoever comes first"


async def test_a_ticket_speaks_for_the_user_that_it_was_asked_for(cluster: RealCluster, valkey: Valkey) -> None:
    service = Principal(tenant=ALICE.tenant, key_id="k", role="service")
    async with (
        open_shared_state(valkey.unix_url, b"s", time.monotonic) as shared,
        front(cluster, "g1", *shared) as near,
    ):
        near.gateway.access._keys[key_digest("sk-2")] = service
        headers = {"authorization": "Bearer sk-2", "x-sessile-user": "ann"}
        ticket = (await near.http.post("/v1/ws/tickets", headers=headers)).json()["ticket"]
        principal = await near.gateway.access.redeem_ticket(ticket)
        assert (principal.user, principal.tenant, principal.role) == ("ann", ALICE.tenant, "user")


async def test_a_ticket_is_kept_for_30_seconds(fronts: tuple[Front, Front], valkey: Valkey) -> None:
    near, far = fronts
    ticket = (await near.ticket()).json()["ticket"]
    with valkey.client() as client:
        (key,) = client.scan_iter("*:ticket:*")
        assert 0 < client.pttl(key) <= 30_000
        client.pexpire(key, 0)
    assert await far.redeem(ticket) == 401


async def test_a_client_that_resends_its_history_is_known_at_both(fronts: tuple[Front, Front]) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hello"}]
    sessions, cached = set(), -1
    for number in range(4):
        said = await fronts[number % 2].chat(messages)
        sessions.add(said.headers["x-session-id"])
        found = said.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert found > cached
        cached = found
        messages += [said.json()["choices"][0]["message"], {"role": "user", "content": "Go on"}]
    assert len(sessions) == 1
    before = said.json()["usage"]
    for front in fronts:  # the last question once more: two branches beside the first
        again = await front.chat(messages[:-2])
        assert again.headers["x-session-id"] in sessions
        assert again.json()["usage"]["prompt_tokens"] == before["prompt_tokens"]
        assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= cached


async def test_a_chain_on_a_socket_of_one_goes_on_and_is_steered_at_the_other(fronts: tuple[Front, Front]) -> None:
    create = {"type": "response.create", "model": "simulated", "store": False}
    path: dict[str, Any] = {"path": "/v1/responses", "headers": {"Authorization": "Bearer sk-1"}, "subprotocols": ()}
    near, far = fronts
    async with wire(near.server.port, **path) as one, wire(far.server.port, **path) as two:
        one.send({**create, "input": "hello", "max_output_tokens": 8})
        first = (await one.until(type="response.incomplete"))["response"]["id"]
        two.send(
            {**create, "input": "on", "previous_response_id": first, "max_output_tokens": 4000, "min_tokens": 4000}
        )
        second = (await two.until(type="response.created"))["response"]["id"]
        await two.until(type="response.output_text.delta")
        one.send({"type": "response.steer", "previous_response_id": second, "input": "shorter"})
        assert (await one.until(type="response.steer.accepted"))["steer"]["previous_response_id"] == second
        ended = (await two.until(type="response.incomplete"))["response"]
        assert ended["incomplete_details"]["reason"] == "steered"
        third = (await two.until(type="response.created"))["response"]["id"]
        assert third == ended["incomplete_details"]["response_id"]
        one.send({"type": "response.cancel", "response_id": third})
        assert (await two.until(type="response.incomplete"))["response"]["status"] == "cancelled"


async def test_a_new_conversation_begins_on_the_replica_that_has_most_of_it_whichever_gateway_it_comes_by(
    fronts: tuple[Front, Front],
) -> None:
    near, far = fronts
    rng = random.Random(5)
    for _ in range(6):
        system = sentence(rng, 60)
        first = await near.chat([{"role": "system", "content": system}, {"role": "user", "content": "Hello"}])
        changed = [{"role": "system", "content": f"{system} Be brief."}, {"role": "user", "content": "Good morning"}]
        second = await far.chat(changed)
        assert first.headers["x-session-id"] != second.headers["x-session-id"]
        usage = second.json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 60, "not so by chance, six times"


async def test_without_valkey_tickets_are_to_be_tried_again_and_histories_are_new(
    fronts: tuple[Front, Front], valkey: Valkey
) -> None:
    near, far = fronts
    ticket = (await near.ticket()).json()["ticket"]
    messages: list[Any] = [{"role": "user", "content": "Hello"}]
    first = await near.chat(messages)
    messages += [first.json()["choices"][0]["message"], {"role": "user", "content": "Go on"}]
    valkey.kill()
    refused = await near.ticket()
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    error = refused.json()["error"]
    assert error["code"] == "directory_unavailable" and error["retryable"] and "try again" in error["message"]
    # No wrong keys: an address may not be wrong so often.
    assert {await far.redeem(ticket) for _ in range(40)} == {503}
    handshake = (await shake_hands(far.server.port, path=f"/v1/ws?ticket={ticket}")).handshake
    assert handshake.headers["retry-after"] == "1" and b"directory_unavailable" in handshake.body
    second = await near.chat(messages)
    assert second.status_code == 200 and second.headers["x-session-id"] != first.headers["x-session-id"]
    keyed = await far.chat(messages, **{"idempotency-key": "one"})
    assert keyed.status_code == 200


class LosesPlaces(MemoryHistory):
    """Goes away once a place has been taken."""

    away = False

    async def put(self, chain: bytes, place: HistoryPlace) -> None:
        if self.away:
            raise Unavailable("directory_unavailable", "away")
        await super().put(chain, place)


async def test_an_index_that_goes_away_hides_no_answer(cluster: RealCluster) -> None:
    loop = asyncio.get_running_loop()
    index = LosesPlaces(loop.time)
    async with front(cluster, "g1", MemoryTickets(loop.time), index) as near:
        for headers in ({}, {"idempotency-key": "one"}):
            index.away = False
            messages: list[Any] = [{"role": "user", "content": "Hello"}]
            first = await near.chat(messages)
            messages += [first.json()["choices"][0]["message"], {"role": "user", "content": "x" * 900_000}]
            index.away = True
            refused = await near.chat(messages, **headers)
            assert refused.json()["error"]["code"] == "context_length_exceeded"


class SlowTickets(MemoryTickets):
    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def take(self, digest: str) -> Principal | None:
        self.asked.set()
        await self.answer.wait()
        return await super().take(digest)


@pytest.mark.parametrize("how", ["answered", "left", "stopped"])
async def test_whoever_waits_for_a_ticket_to_be_looked_up_is_never_left_waiting(cluster: RealCluster, how: str) -> None:
    loop = asyncio.get_running_loop()
    tickets = SlowTickets(loop.time)
    async with front(cluster, "g1", tickets, MemoryHistory(loop.time)) as near:
        ticket = (await near.ticket()).json()["ticket"]
        reader, writer = await asyncio.open_connection("127.0.0.1", near.server.port)
        lines = (
            f"GET /v1/ws?ticket={ticket} HTTP/1.1",
            f"Host: 127.0.0.1:{near.server.port}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        )
        writer.write("\r\n".join((*lines, "", "")).encode())
        await tickets.asked.wait()
        if how == "left":
            writer.transport.abort()
        if how == "stopped":
            await near.gateway.close()
        tickets.answer.set()
        await near.gateway.tasks.settled()
        if how == "answered":
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        elif how == "stopped":
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.close()
        door = near.server._door
        assert door is not None
        await door.empty.wait()
        assert near.gateway.tasks.failures == 0
