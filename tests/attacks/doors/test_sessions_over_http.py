"""Attacks on sessions over HTTP: other users' sessions by every command, one id with two bodies over both doors, bodies
that are no command, polls that wait in numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from inference.simulated import SimulatedOptions
from sessions.model.types import ALL_SCOPES, Principal, TenantId
from testbed.wire_client import connected
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.push_world import PushWorld, a_push_world
from tests.support.stores.tables import is_empty
from transport.auth.authenticator import key_digest

ANA = Principal(tenant=TenantId("acme"), key_id="ana", user="ana")
BEN = Principal(tenant=TenantId("acme"), key_id="ben", user="ben")
EVE = Principal(tenant=TenantId("evil"), key_id="eve", role="service", scopes=ALL_SCOPES)
KEYS = {key_digest(f"s3cret-of-{who.key_id}"): who for who in (ANA, BEN, EVE)}
OF_A_SESSION: dict[str, dict[str, Any]] = {
    "session.get": {},
    "session.update": {"title": "Mine"},
    "session.delete": {},
    "session.warm": {},
    "message.create": {"content": "x"},
    "response.create": {},
    "response.cancel": {"response_id": "resp_x"},
    "response.steer": {"response_id": "resp_x", "content": "x"},
    "tool.output": {"call_id": "call_x", "output": "x"},
    "tool.approve": {"call_id": "call_x"},
}


def by(who: str) -> dict[str, str]:
    return {"authorization": f"Bearer s3cret-of-{who}"}


@pytest.fixture
async def server() -> AsyncIterator[Assembly]:
    async with assembled(keys=KEYS, engine=SimulatedOptions(step_base_s=0.001, answer_tokens_mean=8)) as made:
        yield made


@pytest.fixture
async def http(server: Assembly) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60, limits=limits) as made:
        yield made


async def command(http: httpx.AsyncClient, who: str, kind: str, id: str, **fields: Any) -> httpx.Response:
    return await http.post("/v1/commands", json={"type": kind, "id": id, **fields}, headers=by(who))


async def a_session(http: httpx.AsyncClient) -> str:
    return str((await command(http, "ana", "session.create", "made")).json()["session"])


@pytest.mark.parametrize("kind", OF_A_SESSION)
async def test_every_command_for_somebody_elses_session_reads_like_one_for_none(
    http: httpx.AsyncClient, kind: str
) -> None:
    session = await a_session(http)
    for who in ("ben", "eve"):
        theirs = await command(http, who, kind, "x", session=session, **OF_A_SESSION[kind])
        none = await command(http, who, kind, "y", session="ses_none", **OF_A_SESSION[kind])
        assert theirs.status_code == none.status_code == 404, theirs.text
        assert theirs.text.replace(session, "") == none.text.replace("ses_none", "")
    shown = (await command(http, "ana", "session.get", "z", session=session)).json()
    assert shown["offset"] == 1


async def test_an_id_is_one_command_over_both_doors(server: Assembly, http: httpx.AsyncClient) -> None:
    session = await a_session(http)
    first = await command(http, "ana", "message.create", "one", session=session, content="hello")
    again = await command(http, "ana", "message.create", "one", session=session, content="hello")
    assert first.status_code == 200 and first.json() == again.json()
    async with connected(server.ws, auth="s3cret-of-ana") as wire:
        assert await wire.command("message.create", id="one", session=session, content="hello") == first.json()
        with pytest.raises(RuntimeError, match="idempotency_conflict"):
            await wire.command("message.create", id="one", session=session, content="another")
    other = await command(http, "ana", "message.create", "one", session=session, content="another")
    assert other.status_code == 409, other.text
    kind = await command(http, "ana", "session.update", "one", session=session, title="x")
    assert kind.status_code == 409, kind.text


@pytest.mark.parametrize("content_type", ["text/plain", "application/json", "multipart/form-data; boundary=x", ""])
async def test_a_page_of_another_site_commands_nothing_where_there_are_no_keys(content_type: str) -> None:
    async with assembled() as server, httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        body = json.dumps({"type": "session.create", "id": "a", "session": "planted"})
        for more in ({"origin": "https://evil.example"}, {"host": "evil.example"}, {"origin": "null"}):
            answer = await http.post("/v1/commands", content=body, headers={"content-type": content_type, **more})
            assert answer.status_code in (400, 403, 421), answer.text
        assert (await http.get("/v1/sessions")).json()["data"] == []


NO_COMMANDS = (
    b"",
    b"[]",
    b"{}",
    b"null",
    b'"session.list"',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"type": "session.list", "id": "a"} trailing',
    b'{"type": "session.list", "id": "a", "limit": 1e400}',
    b'{"type": "session.list", "id": "a", "limit": NaN}',
    b'{"type": "session.list", "id": "a", "limit": -1}',
    b'{"type": "session.list", "id": 5}',
    b'{"type": "session.list", "id": "' + b"a" * 100_000 + b'"}',
    b'{"type": "hello", "id": "a"}',
    b'{"type": "subscribe", "id": "a", "session": "s"}',
    b'{"type": "ack", "session": "s", "offset": 1}',
    b'{"type": "turn.create", "id": "a", "session": "s", "items": []}',
    b'{"type": "message.create", "id": "a", "session": "../s", "content": "x"}',
    b'{"type": "message.create", "id": "a", "session": "s", "content": "\xff"}',
    b'{"type": "message.create", "id": "a", "session": "s", "content": "\\ud800"}',
    b'[{"type": "session.list", "id": "a"}, {"type": "session.list", "id": "b"}]',
)


@pytest.mark.parametrize("body", NO_COMMANDS, ids=range(len(NO_COMMANDS)))
async def test_what_is_no_command_is_refused_in_words(http: httpx.AsyncClient, body: bytes) -> None:
    answer = await http.post("/v1/commands", content=body, headers={**by("ana"), "content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert error["message"] and len(answer.content) < 2_000, "and nothing long is said back"


@pytest.mark.parametrize("wrong", ["-1", "NaN", "1e3", "25001", "9" * 30, "", "0x1", "Infinity"])
async def test_how_long_a_poll_waits_is_a_number_in_bounds(http: httpx.AsyncClient, wrong: str) -> None:
    session = await a_session(http)
    answer = await http.get(f"/v1/sessions/{session}/events?after=0&wait_ms={wrong}", headers=by("ana"))
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "wait_ms", answer.text


@pytest.mark.parametrize("after", [2**53, 2**63, 10**40, -1])
async def test_offsets_beyond_what_there_can_be(http: httpx.AsyncClient, after: int) -> None:
    session = await a_session(http)
    for more in ("", "&wait_ms=0"):
        answer = await http.get(f"/v1/sessions/{session}/events?after={after}{more}", headers=by("ana"))
        assert answer.status_code == 400, answer.text


async def test_an_epoch_that_is_not_the_logs_is_told_so_and_nothing_else(http: httpx.AsyncClient) -> None:
    session = await a_session(http)
    for epoch in ("x", "a" * 128, "%00", "%F0%9F%99%82", "'--"):
        answer = await http.get(f"/v1/sessions/{session}/events?after=1&epoch={epoch}&wait_ms=0", headers=by("ana"))
        assert answer.status_code == 200 and answer.json()[0]["mode"] == "reset", answer.text
    other = await http.get(f"/v1/sessions/{session}/events?after=0&wait_ms=0", headers=by("ben"))
    assert other.status_code == 404


async def test_polls_that_wait_end_with_the_server_and_leave_nothing(server: Assembly, http: httpx.AsyncClient) -> None:
    """They held it up for five seconds, and then were cut without an answer."""
    session = await a_session(http)
    path = f"/v1/sessions/{session}/events?after=1&wait_ms=25000"
    polls = [asyncio.create_task(http.get(path, headers=by("ana"))) for _ in range(200)]
    async with asyncio.timeout(60):
        while sum(len(feed.readers) for feed in server.gateway.feeds._feeds.values()) < 200:
            await http.get("/healthz")
    await server.server.stop()
    answers = await asyncio.gather(*polls)
    assert {answer.status_code for answer in answers} == {200}
    assert all(json.loads(answer.text) == [] for answer in answers) and len(server.gateway.feeds) == 0


async def test_a_device_that_polls_has_read(world: PushWorld) -> None:
    """Between two polls nobody reads: an answer that ended then was told of, though the next poll brought it."""
    await world.subscribe()
    for wait in ("&wait_ms=0", ""):
        session = await world.session()
        await world.ask(session)
        assert not is_empty(world.server.journal.database, "push_outbox")
        path = f"/v1/sessions/{session}/events?after=0{wait}"
        async with world.http.stream("GET", path, headers=by("ana")) as answer:
            async for line in answer.aiter_lines():
                if "caught_up" in line:
                    break
        async with asyncio.timeout(60):
            while not is_empty(world.server.journal.database, "push_outbox"):
                await world.http.get("/v1/me", headers=by("ana"))
    await world.relay.relay_batch()
    assert world.service.pushes == []


@pytest.fixture
async def world() -> AsyncIterator[PushWorld]:
    async with a_push_world() as made:
        yield made
