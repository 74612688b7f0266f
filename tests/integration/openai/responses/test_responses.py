"""Responses and conversations by OpenAI's own SDK: kept, continued, in the background, resumed, cancelled, erased."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseErrorEvent

from inference.simulated import SimulatedOptions
from inference.simulated.vocabulary import decode
from persistence.memory.database import MemoryDatabase
from sessions.model.errors import BadInput, Unauthorized
from sessions.model.types import Principal, Sampling, TenantId
from tests.support.doors.openai_server import SIMULATED, ScriptedEngine, Serving, serving
from transport.auth.authenticator import key_digest

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


async def test_a_stream_that_breaks_ends_in_an_error_event_of_openais(options: SimulatedOptions) -> None:
    keys = {key_digest("ann"): Principal(tenant=TenantId("acme"), key_id="k")}
    async with serving(options, keys=keys) as server, server.client("ann") as client:
        server.engine.script.append("word " * 10_000)
        stream = await client.responses.create(model=SIMULATED, input="hello", stream=True)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                server.gateway.access.key_ended("k", Unauthorized("unauthorized", "This key was revoked."))
        last = events[-1]
        assert isinstance(last, ResponseErrorEvent) and last.type == "error"
        assert (last.code, last.message, last.param) == ("invalid_api_key", "This key was revoked.", None)
        assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_nothing_goes_on_from_what_is_not_shown(client: openai.AsyncOpenAI, server: Serving) -> None:
    erased = await client.responses.create(model=SIMULATED, input="hello")
    await client.responses.delete(erased.id)
    unstored = await client.responses.create(model=SIMULATED, input="hello", store=False)
    asked = len(server.engine.asked)
    for before in (erased, unstored):
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError) as caught:
                await client.responses.create(
                    model=SIMULATED, input="and then", previous_response_id=before.id, stream=stream
                )
            assert (caught.value.code, caught.value.param) == ("response_not_found", "previous_response_id")
    assert len(server.engine.asked) == asked


async def test_what_went_on_from_a_response_is_answered_again_when_that_is_erased(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model=SIMULATED, input="hello")
    ask: dict[str, Any] = {"model": SIMULATED, "input": "and then", "previous_response_id": first.id}
    second = await client.responses.create(**ask, extra_headers={"Idempotency-Key": "k"})
    await client.responses.delete(first.id)
    assert await client.responses.create(**ask, extra_headers={"Idempotency-Key": "k"}) == second
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(**ask, extra_headers={"Idempotency-Key": "another"})


async def test_what_is_not_stored_is_not_shown_again(client: openai.AsyncOpenAI, server: Serving) -> None:
    history: list[Any] = [{"role": "user", "content": "hello"}]
    for turn in range(3):
        made = await client.responses.create(model=SIMULATED, input=history, store=False)
        history += [item.model_dump(exclude_none=True) for item in made.output]
        history.append({"role": "user", "content": f"turn {turn}"})
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
    assert len(server.sessions) == 1


async def test_a_call_is_answered_by_the_next_response(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script += [CALL, "Sunny."]
    first = await client.responses.create(model=SIMULATED, input="weather?", tools=[WEATHER])
    (call,) = first.output
    assert call.type == "function_call" and call.arguments == '{"city": "Rome"}'
    with pytest.raises(openai.APIStatusError) as caught:
        await client.responses.create(model=SIMULATED, input="well?", previous_response_id=first.id, tools=[WEATHER])
    assert caught.value.status_code in (400, 409)
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    second = await client.responses.create(
        model=SIMULATED, input=[output], previous_response_id=first.id, tools=[WEATHER]
    )
    assert second.output_text == "Sunny."


async def test_a_key_is_one_request_wherever_its_answer_goes(options: SimulatedOptions) -> None:
    store = MemoryDatabase()
    async with serving(options, store=store) as server, server.client() as client:
        first = await client.responses.create(model=SIMULATED, input="hello")
        one, other = [(await client.conversations.create()).id for _ in range(2)]
        places: list[dict[str, Any]] = [
            {},
            {"conversation": one},
            {"conversation": other},
            {"previous_response_id": first.id},
            {"store": False},
        ]
        made = []
        for number, place in enumerate(places):
            key = {"Idempotency-Key": f"k{number}"}
            made.append(await client.responses.create(model=SIMULATED, input="a", extra_headers=key, **place))
        used = server.usage
    async with serving(options, store=store) as server, server.client() as client:
        for number, place in enumerate(places):
            key = {"Idempotency-Key": f"k{number}"}
            again = await client.responses.create(model=SIMULATED, input="a", extra_headers=key, **place)
            assert again == made[number]
            for elsewhere in places:
                if elsewhere != place:
                    with pytest.raises(openai.ConflictError) as caught:
                        await client.responses.create(model=SIMULATED, input="b", extra_headers=key, **elsewhere)
                    assert caught.value.code == "idempotency_conflict"
        assert server.usage == used
        listed = await client.get("/sessions", cast_to=object)
        assert len(listed["data"]) == 4  # type: ignore[index]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"background": True, "store": False}, "background"),
    ({"previous_response_id": "a", "conversation": "b"}, "conversation"),
    ({"conversation": "s", "store": False}, "store"),
    ({"previous_response_id": "a", "store": False}, "store"),
    ({"input": [{"type": "message", "content": "x"}]}, "input[0].role"),
    ({"nonsense": 1}, "nonsense"),
]


async def test_bad_input(client: openai.AsyncOpenAI) -> None:
    for change, param in BAD:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.post("/responses", cast_to=object, body={"model": SIMULATED, "input": "x", **change})
        assert caught.value.param == param


async def test_the_model_forgets_what_was_erased(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script += ["the secret is seven", "and so on"]
    first = await client.responses.create(model=SIMULATED, input="hello")
    second = await client.responses.create(model=SIMULATED, input="more", previous_response_id=first.id)
    await client.responses.delete(first.id)
    await client.responses.create(model=SIMULATED, input="what was it", previous_response_id=second.id)
    assert "seven" in decode(server.engine.prompts[1]) and "seven" not in decode(server.engine.prompts[2])
    (session,) = server.sessions
    exported = await client.get(f"/sessions/{session}/export", cast_to=object)
    assert "seven" not in str(exported) and "and so on" in str(exported)


async def test_the_arguments_of_a_call_are_erased_with_its_response(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    server.engine.script += [CALL, "Sunny.", "And so on."]
    first = await client.responses.create(model=SIMULATED, input="weather?", tools=[WEATHER])
    (call,) = first.output
    assert call.type == "function_call"
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    more: dict[str, Any] = {"model": SIMULATED, "tools": [WEATHER]}
    second = await client.responses.create(input=[output], previous_response_id=first.id, **more)
    await client.responses.delete(first.id)
    await client.responses.create(input="what was it", previous_response_id=second.id, **more)
    assert "Rome" in decode(server.engine.prompts[1]) and "Rome" not in decode(server.engine.prompts[2])
    (session,) = server.sessions
    exported: Any = await client.get(f"/sessions/{session}/export", cast_to=object)
    assert "Rome" not in str(exported) and "18 degrees" in str(exported)
    (kept,) = [item for item in exported["state"]["items"] if item["type"] == "function_call"]
    assert json.loads(kept["arguments"]) == {}


async def test_a_response_of_a_conversation_shows_the_instructions_and_tools_in_force(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    function: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
    conversation = (await client.conversations.create()).id
    said: Any = {"model": SIMULATED, "conversation": conversation, "input": "hello"}
    plain = await client.responses.create(**said)
    assert (plain.instructions, plain.tools) == (None, [])
    await client.responses.create(**said, instructions="be brief", tools=[function])
    after = await client.responses.create(**said)
    assert after.instructions == "be brief" and [tool.name for tool in after.tools if tool.type == "function"] == [
        "look"
    ]
    without = await client.responses.create(**said, tools=[])
    assert (without.instructions, without.tools) == ("be brief", [])
    wrong: Any = {"type": "function", "name": "look"}
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(**said, tool_choice=wrong)


class Refusing(ScriptedEngine):
    """An engine that cannot honour a parameter's value, as one with a model does not know ids beyond its vocabulary."""

    def check_sampling(self, sampling: Sampling) -> None:
        if sampling.temperature == 2:
            raise BadInput("invalid_request", "temperature: not 2.", param="temperature")


async def test_what_cannot_be_begun_is_refused_and_nothing_of_it_is_stored(options: SimulatedOptions) -> None:
    async with serving(options, engine=Refusing(options)) as server, server.client() as client:
        first = await client.responses.create(model=SIMULATED, input="hello")
        log = len(server.log(server.sessions[0]))
        for given in ({}, {"previous_response_id": first.id}, {"stream": True}, {"background": True}):
            body: Any = {"model": SIMULATED, "input": "and on", "temperature": 2, **given}
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(**body)
            assert refused.value.param == "temperature"
        assert len(server.log(server.sessions[0])) == log
        goes_on = await client.responses.create(model=SIMULATED, input="again", previous_response_id=first.id)
        assert goes_on.status in ("completed", "incomplete")
