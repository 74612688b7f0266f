"""Sessions over plain HTTP, texts, streams with ids, and requests that are repeated."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import weakref
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from inference.simulated import SimulatedOptions
from inference.simulated.engine import SimulatedStream
from persistence.memory.database import MemoryDatabase
from sessions.model.types import Epoch, Principal, SessionId, SessionKey, TenantId, UnixMs
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.openai_server import SIMULATED, Serving, another_door, serving
from tests.support.rounds.openai_retries import retried
from tests.support.rounds.openai_users import interleaved
from transport.auth.authenticator import key_digest


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


WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


async def counted(client: openai.AsyncOpenAI, **request: Any) -> int:
    return (await client.responses.input_tokens.count(model=SIMULATED, **request)).input_tokens


async def test_input_tokens_are_those_of_the_response(client: openai.AsyncOpenAI) -> None:
    for request in (
        {"input": "hello there"},
        {"input": "hello", "instructions": "Be brief."},
        {"input": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}], "tools": [WEATHER]},
    ):
        made = await client.responses.create(model=SIMULATED, **request)
        assert await counted(client, **request) == made.usage.input_tokens
    conversation = await client.conversations.create(items=[{"role": "user", "content": "before"}])
    before = await counted(client, input="hello", conversation=conversation.id)
    first = await client.responses.create(model=SIMULATED, input="hello", conversation=conversation.id)
    assert first.usage is not None and before == first.usage.input_tokens
    after = await counted(client, input="and then", previous_response_id=first.id)
    second = await client.responses.create(model=SIMULATED, input="and then", previous_response_id=first.id)
    assert second.usage is not None and abs(after - second.usage.input_tokens) <= 2  # the answer's text, tokenised anew
    with pytest.raises(openai.NotFoundError):
        await counted(client, input="x", previous_response_id="resp_none")


async def test_token_ids_of_texts_and_conversations(http: httpx.AsyncClient) -> None:
    async def ids(**body: Any) -> Any:
        return (await http.post("/tokenize", json=body)).json()

    plain = await ids(model=SIMULATED, prompt="the river")
    assert plain["count"] == len(plain["tokens"]) == 2 and plain["max_model_len"] == 8192
    assert (await ids(content="the river"))["tokens"] == plain["tokens"]  # as llama.cpp's clients say it
    assert (await ids(prompt="the river", add_special_tokens=True))["tokens"][1:] == plain["tokens"]
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the river"}]
    whole, bare = await ids(messages=said), await ids(messages=said, add_generation_prompt=False)
    assert whole["tokens"][: bare["count"]] == bare["tokens"] and whole["count"] > bare["count"] > 2
    for wrong in ({}, {"prompt": "x", "messages": said}, {"prompt": "x", "model": None, "y": 1}):
        assert (await http.post("/tokenize", json=wrong)).status_code == 400
    assert (await http.post("/tokenize", json={"model": "none", "prompt": "x"})).status_code == 404


async def test_moderations_are_what_the_policy_finds(options: SimulatedOptions) -> None:
    filters = KeywordFilterSet(input_phrases=["nightjar"])
    async with serving(options, filters=filters) as server, server.client() as client:
        found = await client.moderations.create(input=["the project Nightjar", "a river"])
        assert [each.flagged for each in found.results] == [True, False]
        first: Any = found.results[0].to_dict()
        assert first["categories"]["keyword"] is True and first["category_scores"]["keyword"] == 1
        assert first["categories"]["violence"] is False and found.model == "keywords"
        parts: Any = [{"type": "text", "text": "nightjar"}]
        assert (await client.moderations.create(input=parts, model="omni-moderation-latest")).results[0].flagged


async def test_a_server_without_a_policy_calls_nothing_harmless(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.moderations.create(input="x")
    assert caught.value.code == "moderation_unavailable"


async def test_token_ids_become_their_text_again(http: httpx.AsyncClient) -> None:
    text = "the river é"
    tokens = (await http.post("/tokenize", json={"prompt": text})).json()["tokens"]
    assert (await http.post("/detokenize", json={"tokens": tokens})).json() == {"prompt": text}
    refused = await http.post("/detokenize", json={"tokens": [10_000_000]})
    error = refused.json()["error"]
    assert refused.status_code == 400 and "token id" in error["message"] and error["param"] == "tokens"


async def test_clients_learn_what_the_tokenizer_is(http: httpx.AsyncClient) -> None:
    shown = (await http.get("/tokenizer_info")).json()
    assert {"eos_token", "bos_token", "chat_template"} <= set(shown) and shown["model_max_length"] == 8192
    assert (await http.get("/tokenizer_info", params={"model": "none"})).status_code == 404


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
    """Returns a stream's events up to its third id, and that id."""
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


OPENING: list[Any] = [{"role": "user", "content": "hello"}]


async def turn(client: openai.AsyncOpenAI, messages: list[Any], key: str | None = None, **more: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.chat.completions.create(
        model=SIMULATED, messages=messages, temperature=1, extra_headers=headers, **more
    )


async def second_turn(client: openai.AsyncOpenAI, question: str) -> list[Any]:
    """The messages of a client that asks for its second turn, which goes on in a session that there is."""
    first = await turn(client, [{"role": "user", "content": question}])
    said = first.choices[0].message.model_dump(exclude_none=True)
    return [{"role": "user", "content": question}, said, {"role": "user", "content": "more"}]


@pytest.mark.parametrize("rounds", [24, pytest.param(1_000, marks=pytest.mark.slow)])
async def test_cut_anywhere_it_is_one_answer(rounds: int) -> None:
    done = await retried(rounds=rounds, seed=5)
    assert done["problems"] == [] and done["generations"] == done["usage rows"] == rounds


async def test_a_repeated_turn_is_found_and_another_body_under_its_key_refused_after_a_restart(
    options: SimulatedOptions,
) -> None:
    store = MemoryDatabase()
    async with serving(options, store=store) as server, server.client() as client:
        messages = await second_turn(client, "hello")
        before = await turn(client, messages, key="k")
        sessions, usage = len(server.sessions), server.usage
    async with serving(options, store=store) as server, server.client() as client:
        assert await turn(client, messages, key="k") == before
        assert (len(server.sessions), server.usage) == (sessions, usage) and server.engine.asked == []
        for other in ([*messages[:-1], {"role": "user", "content": "else"}], OPENING):
            with pytest.raises(openai.ConflictError) as caught:
                await turn(client, other, key="k")
            assert caught.value.code == "idempotency_conflict"


async def test_two_gateways_that_are_asked_at_once_give_one_answer(options: SimulatedOptions) -> None:
    async with serving(options) as server, server.client() as one:
        door = await another_door(server)
        try:
            async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as other:
                for number in range(8):
                    messages = await second_turn(one, f"question {number}")
                    asked = len(server.engine.asked)
                    answers = await asyncio.gather(
                        *(turn(client, messages, key=f"k{number}") for client in (other, one, other, one))
                    )
                    assert all(answer == answers[0] for answer in answers)
                    assert len(server.engine.asked) == asked + 1
        finally:
            await door.stop()


async def test_interleaved_turns_of_two_users_stay_apart() -> None:
    done = await interleaved(rounds=20, seed=3)
    assert done["turns at the same moment"] > 10
    assert (done["shared"], done["moved"]) == (0, 0)


WORDS = "hello to whoever keeps this"
PARTS = [{"type": "text", "text": WORDS}] * 3
DOORS_THAT_FREE_BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": PARTS}]}),
    ("/v1/completions", {"prompt": [WORDS, "another prompt"], "max_tokens": 9_999}),
    ("/v1/messages", {"messages": [{"role": "user", "content": PARTS}], "max_tokens": 9_999}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": WORDS}] * 3}]}),
]


def models_with(words: str) -> list[BaseModel]:
    """The models that hold these words themselves, or in one of their lists."""
    gc.collect()
    models = (each for each in gc.get_objects() if BaseModel in type(each).__mro__)  # `isinstance` takes much longer
    return [each for each in models if words in repr(vars(each))]


@pytest.mark.parametrize(("path", "body"), DOORS_THAT_FREE_BODIES)
async def test_a_body_is_freed_while_its_answer_is_written(
    server: Serving, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    server.engine.script.append("word " * 10_000)
    draw, drawn = server.engine.draw, asyncio.Event()

    def drawing(run: SimulatedStream) -> int | None:
        drawn.set()
        return draw(run)

    monkeypatch.setattr(server.engine, "draw", drawing)
    request = asyncio.create_task(http.post(path, json={"model": SIMULATED, **body}))
    await drawn.wait()
    held = [weakref.ref(each) for each in models_with(WORDS)]
    while any(each() is not None for each in held):
        drawn.clear()
        await drawn.wait()
    assert not models_with(WORDS)
    assert not request.done() and server.engine.prompts
    request.cancel()
    await asyncio.wait((request,))
