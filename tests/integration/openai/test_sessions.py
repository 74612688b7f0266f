"""Sessions over plain HTTP: listed, renamed, exported, deleted, and their logs as server-sent events."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai

from tests.support.doors.openai_server import SIMULATED, Serving


async def a_session(client: openai.AsyncOpenAI, turns: int = 1) -> str:
    conversation = await client.conversations.create()
    for turn in range(turns):
        await client.responses.create(model=SIMULATED, input=f"turn {turn}", conversation=conversation.id)
    return conversation.id


async def told(http: httpx.AsyncClient, path: str, **more: Any) -> list[dict[str, Any]]:
    """What a stream tells up to `caught_up`."""
    seen: list[dict[str, Any]] = []
    async with http.stream("GET", path, **more) as stream:
        assert stream.status_code == 200
        event: dict[str, Any] = {}
        async for line in stream.aiter_lines():
            if not line:
                seen.append(event)
                if event["event"] == "caught_up":
                    return seen
                event = {}
                continue
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value
    raise AssertionError("the stream ended before it had caught up")


async def test_list_read_rename_delete(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    made = [await a_session(client) for _ in range(3)]
    page = (await http.get("/v1/sessions", params={"limit": 2})).json()
    rest = (await http.get("/v1/sessions", params={"limit": 2, "after": page["last_id"]})).json()
    assert [each["id"] for each in page["data"] + rest["data"]] == made[::-1]
    assert page["has_more"] and not rest["has_more"]
    renamed = (await http.patch(f"/v1/sessions/{made[0]}", json={"title": "Rome"})).json()
    assert renamed["title"] == "Rome" == (await http.get(f"/v1/sessions/{made[0]}")).json()["title"]
    assert (await http.delete(f"/v1/sessions/{made[0]}")).json()["deleted"]
    assert (await http.get(f"/v1/sessions/{made[0]}")).status_code == 410
    assert (await http.get("/v1/sessions/unknown")).status_code == 404


async def test_a_change_has_the_limits_of_every_door(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    path = f"/v1/sessions/{await a_session(client)}"
    full: dict[str, Any] = {"title": "日" * 256, "metadata": {f"k{n}": [n] for n in range(64)}}
    changed = await http.patch(path, json=full)
    assert changed.status_code == 200 and {name: changed.json()[name] for name in full} == full
    for field, wrong in (
        ("metadata", {**full["metadata"], "one": "more"}),
        ("metadata", {"numbers": 2**53}),
        ("metadata", {"text": "\ud800"}),
        ("title", "日" * 257),
        ("temperature", 2.1),
        ("temperature", True),
        ("max_output_tokens", 0),
        ("temperature", "0.5"),
        ("max_output_tokens", True),
        ("max_output_tokens", "5"),
    ):
        refused = await http.patch(
            path, content=json.dumps({field: wrong}), headers={"content-type": "application/json"}
        )
        assert refused.status_code == 400, wrong
        assert refused.json()["error"]["code"] == "invalid_request", wrong
    deep = "[" * 70 + "]" * 70
    nested = await http.patch(
        path, content=f'{{"metadata": {{"deep": {deep}}}}}', headers={"content-type": "application/json"}
    )
    assert nested.status_code == 400
    told = (await http.get(path)).json()
    assert {name: told[name] for name in full} == full
    whole = await http.patch(path, json={"temperature": 1, "max_output_tokens": 5})
    assert (whole.json()["temperature"], whole.json()["max_output_tokens"]) == (1, 5)
    cleared = (await http.patch(path, json={"title": None, "metadata": None})).json()
    assert cleared["title"] is None and cleared["metadata"] == {}


async def test_export(client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: Serving) -> None:
    server.engine.script.append("an answer with ```code```")
    session = await a_session(client)
    whole = (await http.get(f"/v1/sessions/{session}/export")).json()
    assert [item["type"] for item in whole["state"]["items"]] == ["message", "message"]
    text = await http.get(f"/v1/sessions/{session}/export", params={"format": "markdown"})
    assert text.headers["content-type"].startswith("text/markdown")
    assert "## User\n\nturn 0" in text.text and "## Assistant\n\nan answer" in text.text


async def test_the_log_from_any_place(client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: Serving) -> None:
    session = await a_session(client, turns=2)
    path = f"/v1/sessions/{session}/events"
    whole = await told(http, path, params={"after": 0})
    offsets = [each["data"]["offset"] for each in whole if each["event"] == "event"]
    assert offsets == list(range(1, len(server.log(session)) + 1))
    middle = whole[len(whole) // 2]
    rest = await told(http, path, headers={"last-event-id": middle["id"]})
    assert rest == whole[len(whole) // 2 + 1 :]
    assert await told(http, path, params={"after": middle["data"]["offset"]}) == rest
    snapshot, _ = await told(http, path)
    assert snapshot["event"] == "snapshot" and len(snapshot["data"]["state"]["items"]) == 4
    reset = (await told(http, path, headers={"last-event-id": "other:3"}))[0]
    assert reset["event"] == "reset" and reset["data"]["reason"] == "epoch_changed"
    assert (await http.get(path, headers={"last-event-id": "nonsense"})).status_code == 400
    assert (await http.get("/v1/sessions/unknown/events")).status_code == 404


async def test_an_event_source_stops_behind_the_end_of_a_session(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    session = await a_session(client)
    path = f"/v1/sessions/{session}/events"
    ids: list[str] = []
    async with http.stream("GET", path, params={"after": 0}) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("id: "):
                ids.append(line.removeprefix("id: "))
            elif line == "event: caught_up":
                assert (await http.delete(f"/v1/sessions/{session}")).json()["deleted"]
    behind = await http.get(path, headers={"last-event-id": ids[-1]})
    assert (behind.status_code, behind.text) == (204, "")
    within = await http.get(path, headers={"last-event-id": ids[0]})
    assert (within.status_code, within.json()["error"]["code"]) == (410, "session_deleted")
    elsewhere = await http.get(path, headers={"last-event-id": f"other:{len(ids)}"})
    assert elsewhere.status_code == 410
    polled = await http.get(path, params={"wait_ms": 0}, headers={"last-event-id": ids[-1]})
    assert polled.status_code == 410  # no EventSource asks like this
