"""Streams with ids: a reader that was cut off comes back with the last one alone, at any gateway, to its answer."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from inference.simulated import SimulatedOptions
from sessions.model.types import Epoch, Principal, SessionId, SessionKey, TenantId, UnixMs
from tests.support.doors.openai_server import SIMULATED, Serving, another_door, serving
from transport.auth.authenticator import key_digest

CHAT: dict[str, Any] = {
    "model": SIMULATED,
    "messages": [{"role": "user", "content": "hello"}],
    "stream": True,
    "stream_options": {"include_usage": True},
}
RESPONSE: dict[str, Any] = {"model": SIMULATED, "input": "hello", "stream": True}
DOORS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "n": 3, "temperature": 1}),
    ("/v1/responses", RESPONSE),
    ("/v1/responses", {**RESPONSE, "store": False}),
    ("/v1/responses", {**RESPONSE, "background": True}),
]
IDS = {"x-sessile-event-ids": "1"}


def say(server: Serving, body: dict[str, Any], words: int = 80) -> None:
    """The next answers are long enough to be cut."""
    server.engine.script += [f"{number}: " + "word " * words for number in range(body.get("n", 1))]


def parts(stream: str) -> list[str]:
    """The events of a stream, each as it was written."""
    return [part for part in stream.split("\n\n") if part]


def id_of(part: str) -> str | None:
    first = part.split("\n")[0]
    return first.removeprefix("id: ") if first.startswith("id: ") else None


async def cut(http: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> tuple[str, str]:
    """What came of a stream up to its third id, and that id."""
    seen, ids = "", []
    async with http.stream("POST", path, json=body, headers={**IDS, **headers}) as stream:
        assert stream.status_code == 200
        async for line in stream.aiter_lines():
            seen += line + "\n"
            if line.startswith("id: "):
                ids.append(line.removeprefix("id: "))
            if not line and len(ids) == 3:
                break
    return seen, ids[-1]


@pytest.mark.parametrize(
    ("path", "body"),
    [pytest.param(*door, marks=() if door in (DOORS[0], DOORS[2]) else pytest.mark.slow) for door in DOORS],
)
async def test_the_last_id_is_enough(server: Serving, http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    say(server, body, words=8)  # each of its ids is tried
    whole = parts((await http.post(path, json=body, headers=IDS)).text)
    ids = [(index, event_id) for index, part in enumerate(whole) if (event_id := id_of(part)) is not None]
    assert len({event_id for _, event_id in ids}) == len(ids) > 3
    sessions, usage = server.sessions, server.usage
    for index, event_id in ids:
        rest = await http.post(path, json=body, headers={**IDS, "last-event-id": event_id})
        assert rest.status_code == 200 and parts(rest.text) == whole[index + 1 :]
    assert (server.sessions, server.usage) == (sessions, usage) == (sessions, body.get("n", 1))


@pytest.mark.parametrize(("path", "body"), DOORS)
async def test_a_stream_that_was_cut_goes_on_at_another_gateway(
    server: Serving, http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    say(server, body)
    seen, last = await cut(http, path, body)
    first = next(index for index, part in enumerate(parts(seen)) if id_of(part) is not None)
    door = await another_door(server)
    try:
        async with httpx.AsyncClient(base_url=door.url, timeout=60) as other:
            rest = await other.post(path, json=body, headers={**IDS, "last-event-id": last})
        again = await http.post(path, json=body, headers={**IDS, "last-event-id": id_of(parts(seen)[first]) or ""})
    finally:
        await door.stop()
    assert rest.status_code == again.status_code == 200
    assert [*parts(seen)[first + 1 :], *parts(rest.text)] == parts(again.text)
    assert "word" in rest.text and server.usage == body.get("n", 1)


async def test_the_next_turn_finds_what_only_a_second_reader_saw_the_end_of(
    server: Serving, http: httpx.AsyncClient
) -> None:
    say(server, CHAT)
    _, last = await cut(http, "/v1/chat/completions", CHAT)
    await http.post("/v1/chat/completions", json=CHAT, headers={**IDS, "last-event-id": last})
    messages = [
        *CHAT["messages"],
        {"role": "assistant", "content": "0: " + "word " * 80},
        {"role": "user", "content": "and then?"},
    ]
    await http.post("/v1/chat/completions", json={**CHAT, "messages": messages})
    assert len(server.sessions) == 1


@pytest.mark.parametrize(("path", "body"), [DOORS[0], DOORS[2]])
async def test_an_id_that_cannot_be_followed_is_refused(
    server: Serving, http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    say(server, body)
    _, last = await cut(http, path, body)
    epoch, response, request, offset = re.split("[.:]", last)
    of_old = f"{epoch}:{offset}"
    other = {**body, "temperature": 0.5}

    async def refused(event_id: str, said: str, body: dict[str, Any] = body, headers: dict[str, str] = IDS) -> None:
        given = await http.post(path, json=body, headers={**headers, "last-event-id": event_id})
        error = given.json()["error"]
        assert (given.status_code, error["code"], error["param"]) == (400, "invalid_request", "last_event_id")
        assert said in error["message"]

    await refused("nonsense", "not an id")
    await refused(last, "X-Sessile-Event-Ids", headers={})
    await refused(of_old, "Idempotency-Key")
    await refused(last, "another request", body=other)
    await refused(f"elsewhere.{response}.{request}:{offset}", "not there")
    await refused(f"{epoch}.{response}.{request}:1000000", "not there")
    await refused(f"{epoch}.resp_unknown.{request}:{offset}", "not there")
    assert len(server.engine.asked) == len(server.sessions) == 1


@pytest.mark.parametrize(("path", "body"), [DOORS[0], DOORS[2]])
async def test_an_id_that_names_no_answer_needs_its_key(
    server: Serving, http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    headers = {**IDS, "idempotency-key": "k"}
    whole = parts((await http.post(path, json=body, headers=headers)).text)
    index, last = next((index, found) for index, part in enumerate(whole) if (found := id_of(part)) is not None)
    epoch, offset = last.split(":")
    rest = await http.post(path, json=body, headers={**headers, "last-event-id": f"{epoch}:{offset}"})
    assert parts(rest.text) == whole[index + 1 :]
    assert epoch in {(await http.get(f"/v1/sessions/{session}")).json()["epoch"] for session in server.sessions}
    for wrong in (f"elsewhere:{offset}", f"{epoch}:1000000"):
        given = await http.post(path, json=body, headers={**headers, "last-event-id": wrong})
        assert (given.status_code, given.json()["error"]["param"]) == (400, "last_event_id")
    assert server.usage == 1


async def test_the_answer_of_an_id_may_be_gone(server: Serving, http: httpx.AsyncClient) -> None:
    stream = (await http.post("/v1/responses", json=RESPONSE, headers=IDS)).text
    last = id_of(parts(stream)[3])
    assert last is not None
    (session,) = server.sessions
    response_id = last.split(".")[1]
    assert (await http.delete(f"/v1/responses/{response_id}")).status_code == 200
    erased = await http.post("/v1/responses", json=RESPONSE, headers={**IDS, "last-event-id": last})
    assert (erased.status_code, erased.json()["error"]["param"]) == (400, "last_event_id")
    assert (await http.delete(f"/v1/sessions/{session}")).status_code == 200
    deleted = await http.post("/v1/responses", json=RESPONSE, headers={**IDS, "last-event-id": last})
    assert (deleted.status_code, deleted.json()["error"]["param"]) == (400, "last_event_id")
    assert server.usage == 1


async def test_a_log_that_was_put_back_is_not_gone_on_with(server: Serving, http: httpx.AsyncClient) -> None:
    say(server, RESPONSE)
    _, last = await cut(http, "/v1/responses", RESPONSE)
    (session,) = server.sessions
    await server.ended(session)
    key, store = SessionKey(TenantId("local"), SessionId(session)), server.journal.database
    store.restore(store.backup())
    head = await server.journal.head(key)
    assert head is not None
    await server.journal.grant(key, expected_fence=head.fence, owner="r", new_epoch=Epoch("another"), now_ms=UnixMs(1))
    given = await http.post("/v1/responses", json=RESPONSE, headers={**IDS, "last-event-id": last})
    assert (given.status_code, given.json()["error"]["param"]) == (400, "last_event_id")


@pytest.mark.parametrize(("path", "body"), [DOORS[0], DOORS[2]])
async def test_nobody_comes_back_to_the_answers_of_others(
    options: SimulatedOptions, path: str, body: dict[str, Any]
) -> None:
    people = {name: Principal(tenant=TenantId("acme"), key_id="k", user=name) for name in ("ann", "bob")}
    people["eve"] = Principal(tenant=TenantId("other"), key_id="k", role="service")
    keys = {key_digest(name): who for name, who in people.items()}
    async with serving(options, keys=keys) as server, httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        say(server, body)
        _, last = await cut(http, path, body, authorization="Bearer ann")
        for name in ("bob", "eve"):
            headers = {**IDS, "last-event-id": last, "authorization": f"Bearer {name}"}
            given = await http.post(path, json=body, headers=headers)
            assert (given.status_code, given.json()["error"]["param"]) == (400, "last_event_id")
        assert len(server.sessions) == 1
        headers = {**IDS, "last-event-id": last, "authorization": "Bearer ann"}
        assert (await http.post(path, json=body, headers=headers)).status_code == 200


async def test_a_response_that_is_read_again_goes_on_behind_an_id(server: Serving, http: httpx.AsyncClient) -> None:
    made = parts((await http.post("/v1/responses", json=RESPONSE, headers=IDS)).text)
    posted = id_of(made[3])
    assert posted is not None
    path = f"/v1/responses/{posted.split('.')[1]}?stream=true"
    whole = parts((await http.get(path, headers=IDS)).text)
    read = id_of(whole[3])
    assert read is not None and [part.split("\n")[1:] for part in whole] == [part.split("\n")[1:] for part in made]
    for last in (posted, read):
        rest = await http.get(path, headers={**IDS, "last-event-id": last})
        assert parts(rest.text) == whole[4:]
    beside = id_of(parts((await http.post("/v1/responses", json=RESPONSE, headers=IDS)).text)[3])
    for wrong in (beside, "elsewhere:3"):
        given = await http.get(path, headers={**IDS, "last-event-id": wrong or ""})
        assert (given.status_code, given.json()["error"]["param"]) == (400, "last_event_id")
