"""`/v1/sessions`: read, listed, changed, exported, and its log as events."""

from __future__ import annotations

import asyncio

import pytest

from sessions.model.commands import SessionUpdate
from sessions.model.events import SessionCreated, SessionInfo
from sessions.model.types import UnixMs
from tests.support.doors.transport import begun, created, delta, gateway_over, http_client, memory_sessions
from tests.support.engines.engines import until


async def test_a_bare_number_is_of_the_log_as_it_is_and_must_exist() -> None:
    sessions = await memory_sessions()
    gateway = gateway_over(sessions)
    async with http_client(gateway) as client:
        assert (await client.get("/v1/sessions/nothing/events?after=3")).status_code == 404
        gateway.draining = True
        assert (await client.get("/v1/sessions/s/events")).status_code == 503
    assert len(gateway.feeds) == 0


async def test_a_search_shows_where_it_found_something() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a needle in hay", 3))
    await sessions.append("t", created())
    async with http_client(gateway_over(sessions)) as client:
        page = (await client.get("/v1/sessions/search?q=Hay%20needle")).json()
        assert (await client.get("/v1/sessions/search?q=")).status_code == 400
        assert (await client.get("/v1/sessions/search?q=x&after=nothing")).status_code == 404
    assert page == {"object": "list", "data": [], "has_more": False, "last_id": page["last_id"]}  # it is being written
    await sessions.append(
        "u", SessionCreated(info=SessionInfo(model="m", title="Needles in hay", created_at=UnixMs(1)))
    )
    async with http_client(gateway_over(sessions)) as client:
        (row,) = (await client.get("/v1/sessions/search?q=needle")).json()["data"]
    assert (row["object"], row["id"]) == ("session.match", "u")
    assert row["matches"] == [{"item_id": None, "role": None, "snippet": "Needles in hay", "start": 0, "end": 6}]


# -- where WebSocket is blocked --------------------------------------------------------------------------------------


async def test_a_long_poll_gives_what_lies_ready_then_what_comes_first_then_nothing() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a ", 2), delta("b ", 3))
    gateway = gateway_over(sessions)
    path = "/v1/sessions/s/events?epoch=ep_s&wait_ms"
    async with http_client(gateway) as client:
        ready = await client.get(f"{path}=0&after=4")
        assert ready.headers["cache-control"] == "no-store"
        event, caught_up = ready.json()
        assert (event["first_offset"], event["offset"], event["event"]["delta"]) == (5, 6, "a b ")
        assert caught_up == {"type": "caught_up", "session": "s", "offset": 6}
        assert (await client.get(f"{path}=0&after=6")).json() == []
        waiting = asyncio.create_task(client.get(f"{path}=20000&after=6"))
        async with asyncio.timeout(60):
            await until(lambda: len(gateway.feeds) > 0)
        await sessions.append("s", delta("c ", 4))
        assert [each["offset"] for each in (await waiting).json()] == [7, 7]
        (snapshot, _) = (await client.get("/v1/sessions/s/events?wait_ms=0")).json()
        assert (snapshot["type"], snapshot["mode"], snapshot["at"]) == ("resumed", "snapshot", 7)
        (reset, _) = (await client.get("/v1/sessions/s/events?wait_ms=0&after=3&epoch=other")).json()
        assert (reset["mode"], reset["reason"]) == ("reset", "epoch_changed")
        assert (await client.get(f"{path}=25001&after=6")).status_code == 400
        assert (await client.get("/v1/sessions/nothing/events?wait_ms=0&after=0")).status_code == 404
    assert len(gateway.feeds) == 0


async def test_commands_go_by_post_under_their_own_ids() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created())
    async with http_client(gateway_over(sessions)) as client:
        frame = {"type": "session.update", "id": "01K8000000000000000000000A", "session": "s", "title": "new"}
        assert (await client.post("/v1/commands", json=frame)).status_code == 200
        (command,) = sessions.executed
        assert isinstance(command, SessionUpdate) and (command.id, command.title) == (frame["id"], "new")
        asked = {"type": "session.get", "id": "01K8000000000000000000000B", "session": "s"}
        shown = (await client.post("/v1/commands", json=asked)).json()
        assert (shown["type"], shown["id"], shown["offset"]) == ("ok", asked["id"], 1)
        listed = (await client.post("/v1/commands", json={"type": "session.list", "id": "c"})).json()
        assert [each["id"] for each in listed["data"]] == ["s"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[]", "bad_frame"),
        (b'[{"type":"ping"},{"type":"ping"}]', "bad_frame"),
        (b"{", "bad_frame"),
        (b'{"type":"ping"}', "unknown_type"),
        (b'{"type":"subscribe","id":"c","session":"s"}', "unknown_type"),
        (b'{"type":"no.such","id":"c"}', "unknown_type"),
        (b'{"type":"session.get","id":"c"}', "invalid_request"),
    ],
)
async def test_what_is_no_command_is_refused_at_that_door(body: bytes, code: str) -> None:
    sessions = await memory_sessions()
    async with http_client(gateway_over(sessions)) as client:
        refused = await client.post("/v1/commands", content=body, headers={"content-type": "application/json"})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == code
    assert not sessions.executed
