"""Responses over WebSocket, by OpenAI's own SDK and by clients that do what it does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from actors.hosting.runtime_limits import RuntimeLimits
from inference.simulated import SimulatedOptions
from sessions.model.errors import Unauthorized
from sessions.model.generation import KVPlace
from sessions.model.types import Principal, SessionKey, TenantId, Tokens
from tests.support.doors.openai_server import SIMULATED, WEATHER_CALL, WEATHER_TOOL, Serving, another_door, serving
from tests.support.doors.websocket_wire import wire
from transport.auth.authenticator import key_digest
from transport.openai.continued import TERMINAL

WAIT_S = 60.0
ENDED = ("response.completed", "response.incomplete", "response.failed", "error")
LONG = "word " * 400
ENDLESS = "word " * 10_000


class Socket:
    """A connection that sends frames as they are given."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, type_: str = "response.create", **fields: Any) -> None:
        await self.connection.send(json.dumps({"type": type_, **fields}))

    async def create(self, input_: Any = "hello", **fields: Any) -> None:
        await self.send(model=SIMULATED, input=input_, **fields)

    async def event(self) -> Any:
        return json.loads(await asyncio.wait_for(self.connection.recv(), WAIT_S))

    async def until(self, *types: str) -> list[Any]:
        """The events up to the first of one of these types."""
        events = [await self.event()]
        while events[-1]["type"] not in types:
            events.append(await self.event())
        return events

    async def turn(self, input_: Any = "hello", **fields: Any) -> Any:
        """The response that a turn ends with."""
        await self.create(input_, **fields)
        last = (await self.until(*ENDED))[-1]
        return last.get("response", last)

    async def closed(self) -> int | None:
        """The code that the connection is closed with, whatever comes before it."""
        try:
            while True:
                await asyncio.wait_for(self.connection.recv(), WAIT_S)
        except ConnectionClosed as closed:
            return None if closed.rcvd is None else closed.rcvd.code


@asynccontextmanager
async def socket(server: Any, key: str | None = None, **options: Any) -> AsyncIterator[Socket]:
    url = getattr(server, "url", None) or server.server.url
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    address = f"{url.replace('http', 'ws', 1)}/v1/responses"
    async with connect(address, additional_headers=headers, max_size=None, **options) as connection:
        yield Socket(connection)


async def test_a_turn_is_what_the_same_request_gets_as_a_stream(client: openai.AsyncOpenAI, server: Serving) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(model=SIMULATED, input="hello", instructions="be brief")
        events = [await connection.recv()]
        while events[-1].type != "response.completed":
            events.append(await connection.recv())
        first: Any = events[-1]
        await connection.response.create(model=SIMULATED, input="and then", previous_response_id=first.response.id)
        second: Any = await connection.recv()
        while second.type != "response.completed":
            second = await connection.recv()
    kept = await client.responses.retrieve(first.response.id)
    assert kept.output_text == first.response.output_text and kept.instructions == "be brief"
    stream = await client.responses.retrieve(first.response.id, stream=True)
    assert [event.to_dict() async for event in stream] == [event.to_dict() for event in events]
    assert second.response.previous_response_id == first.response.id and len(server.sessions) == 1
    assert second.response.usage.input_tokens_details.cached_tokens > 0


async def test_what_is_not_stored_goes_on_too_over_every_connection(
    server: Serving, client: openai.AsyncOpenAI
) -> None:
    async with socket(server) as first:
        made = await first.turn(store=False)
        again = await first.turn("more", store=False, previous_response_id=made["id"])
    async with socket(server) as second:
        third = await second.turn("and more", store=False, previous_response_id=again["id"])
    assert third["status"] == "completed" and third["store"] is False and len(server.sessions) == 1
    assert server.journal.database.query("SELECT listed FROM heads WHERE tenant <> ''") == [(0,)]
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(third["id"])
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model=SIMULATED, input="x", previous_response_id=third["id"])


@pytest.mark.parametrize("store", [True, False])
async def test_generate_false_brings_up_what_the_next_turn_goes_on_from(server: Serving, store: bool) -> None:
    async with socket(server) as one:
        warm = await one.turn([], generate=False, store=store, instructions="be brief " * 50, tools=[WEATHER_TOOL])
        assert (warm["status"], warm["output"], warm["usage"]["output_tokens"]) == ("completed", [], 0)
        assert "generate" not in warm and warm["usage"]["input_tokens"] > 100
        turn = await one.turn(
            "hello", store=store, previous_response_id=warm["id"], instructions="be brief " * 50, tools=[WEATHER_TOOL]
        )
        assert turn["status"] == "completed" and turn["usage"]["input_tokens_details"]["cached_tokens"] > 100
        prepared = await one.turn("and", store=store, previous_response_id=turn["id"], generate=False)
        last = await one.turn("then", store=store, previous_response_id=prepared["id"])
    assert last["status"] == "completed" and len(server.sessions) == 1


@pytest.mark.parametrize("store", [True, False])
async def test_what_was_said_over_a_connection_is_found_when_it_is_resent_over_the_next(
    server: Serving, store: bool
) -> None:
    """As Codex does: what comes first is prepared, turns bring what is new, and a later process resends everything,
    its calls written anew: they were rendered again, and the whole work behind the first call was computed again."""
    server.engine.script += [WEATHER_CALL, "It is sunny.", "You are welcome."]
    opening = {"role": "developer", "content": "Be brief. " * 50}
    question: Any = {"role": "user", "content": "How is Rome?"}
    same: Any = {"store": store, "tools": [WEATHER_TOOL], "instructions": "Help."}
    async with socket(server) as one:
        warm = await one.turn([opening], generate=False, **same)
        asked = await one.turn([question], previous_response_id=warm["id"], **same)
        (call,) = asked["output"]
        told = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
        answer = await one.turn([told], previous_response_id=asked["id"], **same)
    again = {"type": "function_call", "call_id": "call_mine", "name": "weather", "arguments": '{"city":"Rome"}'}
    said = {"role": "assistant", "content": "It is sunny."}
    history = [question, again, {**told, "call_id": "call_mine"}, said, {"role": "user", "content": "Thank you"}]
    async with socket(server) as two:
        warm = await two.turn([opening], generate=False, **same)
        thanked = await two.turn(history, previous_response_id=warm["id"], **same)
        assert thanked["output"][0]["content"][0]["text"] == "You are welcome."
        assert thanked["previous_response_id"] == warm["id"]
        before = answer["usage"]
        assert thanked["usage"]["input_tokens_details"]["cached_tokens"] >= before["total_tokens"] - 1
        other = await two.turn(history, previous_response_id=warm["id"], **{**same, "instructions": "Other."})
        assert other["usage"]["input_tokens_details"]["cached_tokens"] < before["input_tokens"], "another opening"


async def test_turns_are_written_one_after_the_other(server: Serving) -> None:
    async with socket(server) as one:
        for number in range(3):
            await one.create(f"say {number}")
        order: list[str] = []
        for _ in range(3):
            events = await one.until("response.completed")
            names = {event["response"]["id"] for event in events if "response" in event}
            assert len(names) == 1
            order += names
    assert len(set(order)) == 3


async def test_too_many_turns_that_wait_are_refused(server: Serving) -> None:
    server.engine.script += [LONG] * 2
    async with socket(server) as one:
        for _ in range(12):
            await one.create()
        error = (await one.until("error"))[-1]
        assert (error["error"]["code"], error["status"]) == ("rate_limited", 429)


FAULTS: list[tuple[Any, int, str, str | None]] = [
    ('{"type": "response.create"', 400, "invalid_request", None),
    ("[]", 400, "invalid_request", None),
    ("[" * 5000, 400, "invalid_request", None),
    ({"type": "session.update"}, 400, "unknown_type", "type"),
    ({"input": "x"}, 400, "unknown_type", "type"),
    ({"type": "response.create", "input": "x", "stream_id": "a"}, 400, "unsupported_parameter", "stream_id"),
    ({"type": "response.create", "input": "x", "generate": 1}, 400, "invalid_request", "generate"),
    ({"type": "response.create", "input": "x", "idempotency_key": "é"}, 400, "invalid_request", "idempotency_key"),
    ({"type": "response.create", "input": "x", "nonsense": 1}, 400, "unknown_parameter", "nonsense"),
    ({"type": "response.create", "input": "x", "temperature": 9}, 400, "invalid_request", "temperature"),
    ({"type": "response.create", "input": "x\ud800"}, 400, "invalid_request", None),
    ({"type": "response.create", "input": "x", "model": "none"}, 404, "model_not_found", "model"),
    ({"type": "response.create"}, 400, "missing_required_parameter", "input"),
    (
        {"type": "response.create", "input": "x", "previous_response_id": "resp_none"},
        400,
        "previous_response_not_found",
        "previous_response_id",
    ),
    ({"type": "response.retrieve", "response_id": "resp_none"}, 404, "response_not_found", "response_id"),
    ({"type": "response.retrieve", "response_id": "../keys"}, 404, "response_not_found", "response_id"),
    ({"type": "response.retrieve"}, 400, "missing_required_parameter", "response_id"),
    ({"type": "response.retrieve", "response_id": "r", "starting_after": -1}, 400, "invalid_request", "starting_after"),
    ({"type": "response.cancel"}, 404, "response_not_found", "response_id"),
    ({"type": "response.cancel", "response_id": "resp_none"}, 404, "response_not_found", "response_id"),
]


async def test_a_bad_frame_is_an_error_event_and_no_more(server: Serving) -> None:
    async with socket(server) as one:
        for frame, status, code, param in FAULTS:
            await one.connection.send(frame if isinstance(frame, str) else json.dumps(frame))
            error = await one.event()
            assert (error["type"], error["status"]) == ("error", status), frame
            assert (error["error"]["code"], error["error"].get("param")) == (code, param), frame
            assert (error["code"], error["param"]) == (code, param)
            assert error["message"] == error["error"]["message"] != ""
        assert (await one.turn())["status"] == "completed"  # the connection lives on


async def test_binary_and_oversized_messages_end_the_connection(server: Serving) -> None:
    async with socket(server) as one:
        await one.connection.send(b"{}")
        assert (await one.event())["error"]["code"] == "bad_frame"
        assert await one.closed() == 1003
    async with wire(server.server.port, path="/v1/responses", subprotocols=()) as two:
        two.send_frame(0x81, b"x" * (4 * 1024 * 1024 + 1))
        assert (await two.until(type="error"))["error"]["code"] == "too_large"
        assert (await two.closed()).code == 1009


async def test_a_body_as_large_as_http_takes_is_judged_like_one(server: Serving) -> None:
    async with socket(server) as one:
        await one.create("x" * 1_500_000)
        error = await one.event()
        assert (error["status"], error["error"]["code"]) == (413, "content_too_large")


KEYS = {
    key_digest("ann"): Principal(tenant=TenantId("acme"), key_id="ann", role="user", user="ann"),
    key_digest("bob"): Principal(tenant=TenantId("acme"), key_id="bob", role="user", user="bob"),
    key_digest("reader"): Principal(tenant=TenantId("acme"), key_id="r", scopes=("read",)),
}


async def test_what_codex_sends_with_every_frame_is_taken(server: Serving) -> None:
    async with socket(server) as connection:
        own = {"client_metadata": {"turn": "1"}, "prompt_cache_key": "k", "x_trace": "t"}
        ended = await connection.turn("hello", store=False, include=["reasoning.encrypted_content"], **own)
        assert ended["status"] == "completed"


async def test_keys_are_judged_as_with_every_request(options: SimulatedOptions) -> None:
    async with serving(options, keys=KEYS) as server:
        for key in (None, "wrong"):
            with pytest.raises(InvalidStatus) as refused:
                async with socket(server, key):
                    pass
            assert refused.value.response.status_code == 401
            assert b"invalid_api_key" in (refused.value.response.body or b"")
        async with socket(server, "ann") as ann, socket(server, "bob") as bob, socket(server, "reader") as reader:
            made = await ann.turn(store=False)
            foreign = await bob.turn("x", previous_response_id=made["id"], store=False)
            assert foreign["error"]["code"] == "previous_response_not_found"
            assert (await reader.turn())["error"]["code"] == "forbidden"
            server.gateway.access.key_ended("ann", Unauthorized("unauthorized", "This key was revoked."))
            assert (await ann.event())["error"]["code"] == "invalid_api_key"
            assert await ann.closed() == 4401


async def test_a_page_that_is_not_listed_gets_no_socket(server: Serving) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(server, origin="https://elsewhere.test"):
            pass
    assert refused.value.response.status_code == 403


async def test_an_answer_outlives_its_connection_and_is_read_on_from_any_place(server: Serving) -> None:
    server.engine.script.append(LONG)
    door = await another_door(server)
    try:
        async with socket(server) as first:
            await first.create(store=False)
            begun = await first.until("response.output_text.delta")
            name = begun[0]["response"]["id"]
            first.connection.transport.abort()
        async with socket(door) as second:
            last = begun[-1]["sequence_number"]
            await second.send("response.retrieve", response_id=name, starting_after=last)
            rest = await second.until(*ENDED)
            assert [event["sequence_number"] for event in begun + rest] == list(range(len(begun + rest)))
            assert rest[-1]["response"]["status"] == "completed"
            text = "".join(event["delta"] for event in begun + rest if event["type"] == "response.output_text.delta")
            assert text == LONG
            assert (await second.turn("on", store=False, previous_response_id=name))["status"] == "completed"
    finally:
        await door.stop()


@pytest.mark.parametrize(
    ("fields", "reason"), [({"store": False}, "orphaned"), ({}, None), ({"store": False, "idempotency_key": "k"}, None)]
)
async def test_an_unstored_answer_ends_if_nobody_reads_it_on(
    options: SimulatedOptions, unread: asyncio.Event, fields: dict[str, Any], reason: str | None
) -> None:
    """Ctrl-C in an agent leaves such an answer: the agent has no name for it any more."""
    async with serving(options, runtime_limits=RuntimeLimits(attended_after_s=0.0)) as server:
        server.engine.script.append(ENDLESS if reason else LONG)
        async with socket(server) as agent:
            await agent.create(**fields)
            await agent.until("response.output_text.delta")
            agent.connection.transport.abort()
        await unread.wait()
        (session,) = server.sessions
        await server.ended(session)
        (last,) = [record.event for record in server.log(session) if isinstance(record.event, TERMINAL)]
        assert (last.response.incomplete_details or {}).get("reason") == reason


async def test_a_repeated_turn_is_the_same_turn(server: Serving) -> None:
    async with socket(server) as one:
        first = await one.turn(idempotency_key="k1")
    async with socket(server) as two:
        assert (await two.turn(idempotency_key="k1"))["id"] == first["id"]
        assert (await two.turn("else", idempotency_key="k1"))["error"]["code"] == "idempotency_conflict"
    assert server.usage == 1


async def test_cancel_ends_what_is_written_here_or_was_begun_elsewhere(
    server: Serving, client: openai.AsyncOpenAI
) -> None:
    server.engine.script += [LONG * 20] * 2
    async with socket(server) as one, socket(server) as two:
        await one.create()
        await one.until("response.output_text.delta")
        await one.send("response.cancel")
        assert (await one.until(*ENDED))[-1]["response"]["status"] == "cancelled"
        stream = await client.responses.create(model=SIMULATED, input="x", stream=True, background=True)
        created: Any = await anext(aiter(stream))
        name = created.response.id
        await stream.close()
        await two.send("response.retrieve", response_id=name, starting_after=1)
        await two.until("response.output_text.delta")
        await two.send("response.cancel")
        assert (await two.until(*ENDED))[-1]["response"]["status"] == "cancelled"


@pytest.mark.parametrize("background", [True, False])
async def test_a_stream_that_is_read_on_can_be_cancelled_over_http(
    server: Serving, client: openai.AsyncOpenAI, background: bool
) -> None:
    server.engine.script.append(LONG * 20)
    stream = await client.responses.create(
        model=SIMULATED, input="x", stream=True, background=background, extra_headers={"Idempotency-Key": "k"}
    )
    created: Any = await anext(aiter(stream))
    await stream.close()
    resumed = await client.responses.retrieve(created.response.id, stream=True, starting_after=0)
    events = aiter(resumed)
    while (await anext(events)).type != "response.output_text.delta":
        continue
    cancelled = await client.responses.cancel(created.response.id)
    assert cancelled.status == "cancelled"
    last = [event async for event in events][-1]
    assert last.type == "response.incomplete"
    if background:
        assert (await client.responses.cancel(created.response.id)).status == "cancelled"
    else:
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(created.response.id)


async def test_a_server_that_leaves_lets_an_answer_end_and_closes_with_1012(server: Serving) -> None:
    server.engine.script.append(LONG)
    async with socket(server) as idle, socket(server) as busy:
        await busy.create()
        await busy.until("response.output_text.delta")
        leaving = asyncio.create_task(server.server.drain("deploy", 20_000))
        assert await idle.closed() == 1012
        assert (await busy.until(*ENDED))[-1]["response"]["status"] == "completed"
        assert await busy.closed() == 1012
        await leaving
    with pytest.raises(InvalidStatus) as refused:
        async with socket(server):
            pass
    assert refused.value.response.status_code == 503


# -- steering ---------------------------------------------------------------------------------------------------------


async def test_a_steered_answer_ends_and_another_goes_on_behind_the_words(server: Serving) -> None:
    server.engine.script += [LONG, "d'accord"]
    async with socket(server) as one:
        await one.create(metadata={"a": "b"})
        begun = await one.until("response.output_text.delta")
        name = begun[0]["response"]["id"]
        await one.send("response.steer", previous_response_id=name, input="in French")
        events = begun + await one.until("response.incomplete")
        kinds = [event["type"] for event in events]
        accepted = events[kinds.index("response.steer.accepted")]
        assert accepted["steer"]["previous_response_id"] == name
        ended = events[-1]["response"]
        following = await one.until("response.completed")
        assert ended["incomplete_details"] == {"reason": "steered", "response_id": following[0]["response"]["id"]}
        after = following[-1]["response"]
        assert after["previous_response_id"] == name and after["metadata"] == {"a": "b"}
        assert after["output"][0]["content"][0]["text"] == "d'accord"
        assert after["usage"]["input_tokens_details"]["cached_tokens"] >= ended["usage"]["input_tokens"]
        await one.send("response.steer", previous_response_id=name, input="too late")
        failed = await one.event()
        assert failed["type"] == "response.steer.failed"
        assert failed["error"]["code"] == "response_already_completed" and failed["steer"]["input"] == "too late"
        goes_on = await one.turn("on", previous_response_id=after["id"])
        assert goes_on["status"] == "completed"


async def test_words_for_an_answer_that_calls_tools_wait_for_their_outputs(server: Serving) -> None:
    server.engine.script += [WEATHER_CALL, "sunny"]
    async with socket(server) as one:
        called = await one.turn("how is it", tools=[WEATHER_TOOL])
        call = called["output"][0]
        await one.send("response.steer", previous_response_id=called["id"], input="in French")
        accepted, pending = await one.event(), await one.event()
        assert accepted["type"] == "response.steer.accepted" and pending["type"] == "response.steer.pending"
        assert pending["required_input"] == [
            {"type": "function_call_output", "call_id": call["call_id"], "name": "weather"}
        ]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "20 degrees"}
        answer = await one.turn([output], previous_response_id=called["id"], tools=[WEATHER_TOOL])
        assert answer["output"][0]["content"][0]["text"] == "sunny"
    async with server.client() as client:
        items = [item async for item in client.responses.input_items.list(answer["id"], order="asc")]
    assert [item.type for item in items] == ["function_call_output", "message"]


async def test_an_answer_that_is_calling_is_let_end_before_the_words_are_taken_up(server: Serving) -> None:
    slow = WEATHER_CALL.replace("Rome", "Rome " * 200)
    server.engine.script += [WEATHER_CALL + slow, "sunny"]
    async with socket(server) as one:
        await one.create("how is it", tools=[WEATHER_TOOL])
        begun = await one.until("response.output_item.done")
        name = begun[0]["response"]["id"]
        await one.send("response.steer", previous_response_id=name, input="in French")
        events = await one.until("response.steer.pending")
        kinds = [event["type"] for event in events]
        assert kinds.index("response.steer.accepted") < kinds.index("response.completed") == len(kinds) - 2
        required = events[-1]["required_input"]
        assert [each["type"] for each in required] == ["function_call_output"] * 2
        outputs = [{**each, "output": "20 degrees"} for each in required]
        answer = await one.turn(outputs, previous_response_id=name, tools=[WEATHER_TOOL])
        assert answer["output"][0]["content"][0]["text"] == "sunny"


async def test_where_an_answer_calls_nothing_after_all_the_words_are_answered_behind_it(server: Serving) -> None:
    server.engine.script += [WEATHER_CALL + WEATHER_CALL.replace("Rome", "Rome " * 200), "sunny"]
    async with socket(server) as one:
        await one.create("how is it", tools=[WEATHER_TOOL], max_output_tokens=len(WEATHER_CALL) + 300)
        begun = await one.until("response.output_item.done")
        await one.send("response.steer", previous_response_id=begun[0]["response"]["id"], input="in French")
        events = await one.until("response.incomplete")
        accepted = next(event for event in events if event["type"] == "response.steer.accepted")
        following = await one.until("response.completed")
        assert following[-1]["response"]["id"] == accepted["response_id"]
        assert following[-1]["response"]["output"][0]["content"][0]["text"] == "sunny"


async def test_http_steers_what_any_door_began(server: Serving, client: openai.AsyncOpenAI) -> None:
    server.engine.script += [LONG * 5, "d'accord"]
    stream = await client.responses.create(model=SIMULATED, input="x", stream=True)
    events = aiter(stream)
    created: Any = await anext(events)
    while (await anext(events)).type != "response.output_text.delta":
        continue
    path = f"/responses/{created.response.id}/steer"
    message = {"role": "user", "content": [{"type": "input_text", "text": "in French"}]}
    steered: Any = await client.post(path, body={"input": [message]}, cast_to=object)
    assert steered["status"] == "accepted" and steered["required_input"] == []
    last: Any = [event async for event in events][-1]
    assert last.response.incomplete_details.reason == "steered"
    assert last.response.incomplete_details.response_id == steered["response_id"]
    following = await client.responses.retrieve(steered["response_id"], stream=True)
    final: Any = [event async for event in following][-1]
    assert final.response.output_text == "d'accord"
    bodies: list[Any] = [
        {},
        {"input": ""},
        {"input": []},
        {"input": [{"role": "system", "content": "x"}]},
        {"input": "x", "a": 1},
    ]
    for body in bodies:
        with pytest.raises(openai.BadRequestError):
            await client.post(path, body=body, cast_to=object)
    with pytest.raises(openai.ConflictError):
        await client.post(path, body={"input": "late"}, cast_to=object)


async def test_the_first_bytes_of_an_output_bring_the_kv_back_while_the_rest_comes(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed = asyncio.Event()

    async def warm(key: SessionKey, prompt: Tokens) -> None:
        assert len(prompt) > 10
        warmed.set()

    monkeypatch.setattr(server.engine, "warm", warm)
    monkeypatch.setattr(server.engine, "place", lambda key: KVPlace("host", 10))
    server.engine.script += [WEATHER_CALL, "sunny"]
    async with socket(server) as one:
        called = await one.turn("how is it", tools=[WEATHER_TOOL])
        output = {"type": "function_call_output", "call_id": called["output"][0]["call_id"], "output": "20 " * 100}
        frame = {"type": "response.create", "model": SIMULATED, "previous_response_id": called["id"], "input": [output]}
        text = json.dumps({**frame, "tools": [WEATHER_TOOL]})

        async def pieces() -> AsyncIterator[str]:
            yield text[:300]
            await asyncio.wait_for(warmed.wait(), WAIT_S)  # it has not seen what the message is
            yield text[300:]

        await one.connection.send(pieces())
        last = (await one.until(*ENDED))[-1]
        assert last["response"]["output"][0]["content"][0]["text"] == "sunny"
        warmed.clear()
        await one.turn("and now", previous_response_id=last["response"]["id"])
        assert not warmed.is_set(), "nothing was waited for"
