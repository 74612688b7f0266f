"""`/v1/sessions`: read, listed, changed, exported, and its log as events."""

from __future__ import annotations

import pytest

from sessions.model.audit import public
from sessions.model.commands import SessionUpdate
from sessions.model.events import SessionCreated, SessionDeleted, SessionInfo
from sessions.model.types import LOCAL_PRINCIPAL, UnixMs
from tests.support.doors.transport import begun, created, delta, gateway_over, http_client, key_of, memory_sessions
from transport.http.routes.sessions import stream_log
from transport.openai.log_cursor import LogCursor


async def test_a_session_is_shown_with_its_place_in_the_log() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun())
    async with http_client(gateway_over(sessions)) as client:
        shown = (await client.get("/v1/sessions/s")).json()
        assert (shown["epoch"], shown["offset"], shown["open"]) == ("ep_s", 4, ["resp_1"])
        listed = (await client.get("/v1/sessions?limit=1")).json()
        assert [each["id"] for each in listed["data"]] == ["s"] and not listed["has_more"]
        assert (await client.get("/v1/sessions/nothing")).status_code == 404


async def test_a_change_sends_only_what_was_given() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created())
    async with http_client(gateway_over(sessions)) as client:
        assert (await client.patch("/v1/sessions/s", json={"title": None})).status_code == 200
    (command,) = sessions.executed
    assert isinstance(command, SessionUpdate) and command.title is None
    assert command.metadata is not None  # unset: it stays


async def test_an_export_is_a_row_of_the_audit_log() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created())
    gateway = gateway_over(sessions)
    async with http_client(gateway) as client:
        text = await client.get("/v1/sessions/s/export?format=markdown")
        assert text.headers["content-type"].startswith("text/markdown") and text.text.startswith("# ")
        assert (await client.get("/v1/sessions/s/export")).json()["offset"] == 1
    rows = await gateway.store.audit.rows(LOCAL_PRINCIPAL.tenant, after=0, limit=9)
    assert [public(row)["action"] for row in rows] == ["session.exported"] * 2


@pytest.mark.parametrize(("offset", "first"), [(None, b"event: snapshot"), (4, b"id: ep_s:5\nevent: event")])
async def test_the_log_as_events_begins_with_how_it_goes_on(offset: int | None, first: bytes) -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a", 3))
    gateway = gateway_over(sessions)
    cursor = LogCursor(gateway, LOCAL_PRINCIPAL, key_of("s"))
    plan = await cursor.standing(None if offset is None else cursor.epoch, offset)
    if offset is not None:
        await cursor.check(0)
        plan = await cursor.standing(cursor.epoch, offset)
    chunks = stream_log(cursor, plan)
    assert (first in await anext(chunks)) and b"event: caught_up" in await anext(chunks)
    await sessions.append("s", SessionDeleted(), deleted=True)
    assert b"session.deleted" in await anext(chunks)
    with pytest.raises(StopAsyncIteration):
        await anext(chunks)
    assert len(gateway.feeds) == 0


async def test_a_bare_number_is_of_the_log_as_it_is_and_must_exist() -> None:
    sessions = await memory_sessions()
    gateway = gateway_over(sessions)
    async with http_client(gateway) as client:
        assert (await client.get("/v1/sessions/nothing/events?after=3")).status_code == 404
        gateway.draining = True
        assert (await client.get("/v1/sessions/s/events")).status_code == 503
    assert len(gateway.feeds) == 0


async def test_settings_are_changed_within_their_bounds() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created())
    async with http_client(gateway_over(sessions)) as client:
        given = {"instructions": "Be brief.", "temperature": 0, "max_output_tokens": None}
        assert (await client.patch("/v1/sessions/s", json=given)).status_code == 200
        for wrong in ({"temperature": 2.1}, {"max_output_tokens": 0}, {"model": "m2"}):
            assert (await client.patch("/v1/sessions/s", json=wrong)).status_code == 400
        shown = (await client.get("/v1/sessions/s")).json()
    (command,) = sessions.executed
    assert isinstance(command, SessionUpdate)
    assert (command.instructions, command.temperature, command.max_output_tokens) == ("Be brief.", 0, None)
    assert (shown["temperature"], shown["max_output_tokens"]) == (None, None)


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
