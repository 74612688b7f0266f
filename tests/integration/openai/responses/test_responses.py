"""Responses and conversations by OpenAI's own SDK: kept, continued, compacted, named, erased."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseErrorEvent

from inference.simulated import SimulatedOptions, decode
from persistence.memory.database import MemoryDatabase
from sessions.model.errors import BadInput, Unauthorized
from sessions.model.generation import ThoughtMarks
from sessions.model.types import LOCAL_PRINCIPAL, Principal, Sampling, SessionId, SessionKey, TenantId
from testbed.engine_client import until
from tests.support.doors.openai_server import (
    SIMULATED,
    WEATHER_CALL,
    WEATHER_TOOL,
    ScriptedEngine,
    Serving,
    serving,
)
from tests.support.doors.websocket_wire import wire
from transport.auth.authenticator import key_digest
from transport.http_api.routes import responses


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
    server.engine.script += [WEATHER_CALL, "Sunny.", "And so on."]
    first = await client.responses.create(model=SIMULATED, input="weather?", tools=[WEATHER_TOOL])
    (call,) = first.output
    assert call.type == "function_call"
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    more: dict[str, Any] = {"model": SIMULATED, "tools": [WEATHER_TOOL]}
    with pytest.raises(openai.APIStatusError) as unanswered:
        await client.responses.create(input="well?", previous_response_id=first.id, **more)
    assert unanswered.value.status_code in (400, 409)
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


QUESTION: Any = {"role": "user", "content": "What is hers?"}


def last_prompt(server: Serving) -> str:
    return decode(server.engine.prompts[-1])


async def compacted(client: openai.AsyncOpenAI, server: Serving, **given: Any) -> Any:
    server.engine.script.append("Ana owns a violin.")
    return await client.responses.compact(model=SIMULATED, **given)


async def test_a_conversation_is_compacted_and_goes_on_behind_the_item(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    first = await client.responses.create(model=SIMULATED, input="Ana has a violin")
    made = await compacted(client, server, previous_response_id=first.id)
    assert made.object == "response.compaction" and made.usage.input_tokens > made.usage.output_tokens > 0
    *users, item = made.output
    assert [each.content[0].text for each in users] == ["Ana has a violin"]
    assert item.type == "compaction" and item.encrypted_content
    given: list[Any] = [each.model_dump(warnings=False) for each in made.output]
    answer = await client.responses.create(
        model=SIMULATED, input=[*given, {"role": "user", "content": "What is hers?"}]
    )
    prompt = last_prompt(server)
    assert "Ana owns a violin." in prompt and "Ana has" not in prompt and "What is hers?" in prompt
    assert len(server.sessions) == 1
    resent = [*given, QUESTION]
    resent += [{"role": "assistant", "content": answer.output_text}, {"role": "user", "content": "Sure?"}]
    again = await client.responses.create(model=SIMULATED, input=resent, store=False)
    assert again.usage is not None and answer.usage is not None
    assert again.usage.input_tokens_details.cached_tokens >= answer.usage.input_tokens
    assert len(server.sessions) == 1


async def test_a_history_is_compacted_where_it_lies(client: openai.AsyncOpenAI, server: Serving) -> None:
    history: list[Any] = [{"role": "user", "content": "Ana has a violin"}]
    first = await client.responses.create(model=SIMULATED, input=history, store=False)
    history.append({"role": "assistant", "content": first.output_text})
    made = await compacted(client, server, input=history)
    assert len(server.sessions) == 1
    assert made.usage.input_tokens_details.cached_tokens >= (first.usage.input_tokens if first.usage else 0)
    elsewhere = await compacted(client, server, input=[{"role": "user", "content": "Another one"}])
    assert elsewhere.output[-1].id != made.output[-1].id and len(server.sessions) == 2


async def test_an_item_is_of_its_tenant_and_goes_with_what_it_was_made_of(options: SimulatedOptions) -> None:
    keys = {key_digest(name): Principal(tenant=TenantId(name), key_id="k", role="service") for name in ("acme", "beta")}
    async with serving(options, keys=keys) as server, server.client("acme") as acme, server.client("beta") as beta:
        first = await acme.responses.create(model=SIMULATED, input="Ana has a violin")
        item = (await compacted(acme, server, previous_response_id=first.id)).output[-1].model_dump(warnings=False)
        question: list[Any] = [item, {"role": "user", "content": "What is hers?"}]
        with pytest.raises(openai.NotFoundError, match="not there any more"):
            await beta.responses.create(model=SIMULATED, input=question)
        for wrong in ("", "e30=", "!", item["encrypted_content"][:-8]):
            with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
                await acme.responses.create(model=SIMULATED, input=[item | {"encrypted_content": wrong}, *question[1:]])
        await acme.responses.create(model=SIMULATED, input=question)
        await acme.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError, match="not there any more"):
            await acme.responses.create(model=SIMULATED, input=question)


async def test_the_same_again_is_the_same_compaction(client: openai.AsyncOpenAI, server: Serving) -> None:
    first = await client.responses.create(model=SIMULATED, input="Ana has a violin")
    made = await compacted(client, server, previous_response_id=first.id)
    again = await client.responses.compact(model=SIMULATED, previous_response_id=first.id)
    assert again.output[-1] == made.output[-1] and again.usage.total_tokens == 0
    with pytest.raises(openai.BadRequestError, match="input"):
        await client.responses.compact(model=SIMULATED)


async def test_a_response_without_output_is_compacted_with_what_came_before_it(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    """It was an internal error."""
    first = await client.responses.create(model=SIMULATED, input="Ana has a violin")
    names = []
    async with wire(server.server.port, path="/v1/responses", subprotocols=()) as socket:
        for more in ({"previous_response_id": first.id}, {}):
            socket.send({"type": "response.create", "model": SIMULATED, "input": [], "generate": False, **more})
            names.append((await socket.until(type="response.completed"))["response"]["id"])
    made = await compacted(client, server, previous_response_id=names[0])
    assert [each.type for each in made.output] == ["message", "compaction"]
    with pytest.raises(openai.ConflictError, match="nothing to summarise"):
        await client.responses.compact(model=SIMULATED, previous_response_id=names[1])


async def test_who_leaves_a_compaction_is_no_reader_any_more(
    client: openai.AsyncOpenAI, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request used to go on for up to five minutes."""
    first = await client.responses.create(model=SIMULATED, input="Ana has a violin")
    begun = asyncio.Event()

    async def never(*_: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(responses, "_compaction_outcome", never)
    leaving = asyncio.create_task(client.responses.compact(model=SIMULATED, previous_response_id=first.id))
    await begun.wait()
    assert len(server.gateway.feeds) == 1
    leaving.cancel()
    await until(lambda: len(server.gateway.feeds) == 0)


async def test_context_management_has_its_conversation_compacted(client: openai.AsyncOpenAI, server: Serving) -> None:
    managed: Any = [{"type": "compaction", "compact_threshold": 1_000}]
    await client.responses.create(model=SIMULATED, input="hello", context_management=managed)
    key = SessionKey(TenantId("local"), SessionId(server.sessions[0]))
    _, state = await server.gateway.logs.state(LOCAL_PRINCIPAL, key)
    assert (state["context_policy"], state["compact_threshold"]) == ("compact", 1_000)
    wrong: Any = [{"type": "truncation"}]
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model=SIMULATED, input="hello", context_management=wrong)


async def test_a_deleted_item_is_in_no_list_no_prompt_and_no_log(
    client: openai.AsyncOpenAI, server: Serving, http: httpx.AsyncClient
) -> None:
    conversation = await client.conversations.create(items=[{"role": "user", "content": "my secret word"}])
    made = await client.responses.create(model=SIMULATED, input="hello", conversation=conversation.id)
    items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert len(items) == 3
    left = await client.conversations.items.delete(items[0].id or "", conversation_id=conversation.id)
    assert left.id == conversation.id and left.object == "conversation"
    after = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert [item.id for item in after] == [item.id for item in items[1:]]
    await client.responses.create(model=SIMULATED, input="go on", conversation=conversation.id)
    prompt = decode(server.engine.prompts[-1])
    assert "secret" not in prompt and "hello" in prompt and made.output_text in prompt
    exported = (await http.get(f"/v1/sessions/{conversation.id}/export")).text
    assert "secret" not in exported and "hello" in exported
    assert "secret" not in (await http.get(f"/v1/sessions/{conversation.id}/export?format=markdown")).text
    with pytest.raises(openai.NotFoundError) as caught:
        await client.conversations.items.delete(items[0].id or "", conversation_id=conversation.id)
    assert caught.value.code == "item_not_found"


async def test_an_answer_s_item_goes_and_its_response_stays(client: openai.AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    made = await client.responses.create(model=SIMULATED, input="hello", conversation=conversation.id)
    await client.conversations.items.delete(made.output[0].id or "", conversation_id=conversation.id)
    kept = await client.responses.retrieve(made.id)
    assert kept.status == "completed" and made.output_text not in kept.output_text
    more = await client.responses.create(model=SIMULATED, input="and then", conversation=conversation.id)
    assert more.output_text
    items = [item async for item in client.conversations.items.list(conversation.id)]
    assert len(items) == 3  # two questions and an answer


async def test_nothing_is_deleted_below_what_is_being_written(client: openai.AsyncOpenAI, server: Serving) -> None:
    conversation = await client.conversations.create(items=[{"role": "user", "content": "first"}])
    (item,) = [each async for each in client.conversations.items.list(conversation.id)]
    server.engine.script.append("word " * 2_000)
    stream = await client.responses.create(model=SIMULATED, input="go", conversation=conversation.id, stream=True)
    async for _ in stream:
        with pytest.raises(openai.ConflictError):
            await client.conversations.items.delete(item.id or "", conversation_id=conversation.id)
        break
    await stream.close()


HELLO = {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}
MORE = {"role": "user", "content": "and then"}


def named(item_id: str) -> dict[str, str]:
    return {"type": "item_reference", "id": item_id}


async def respond(client: openai.AsyncOpenAI, given: Any, **more: Any) -> Any:
    return await client.responses.create(model=SIMULATED, input=given, **more)


async def test_a_history_that_names_its_answers_goes_on_where_they_are(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    first = await respond(client, [HELLO])
    second = await respond(client, [HELLO, named(first.output[0].id), MORE])
    third = await respond(client, [HELLO, named(first.output[0].id), MORE, {"id": second.output[0].id}, MORE])
    assert len(server.sessions) == 1
    assert second.usage.input_tokens_details.cached_tokens > 0 < third.usage.input_tokens_details.cached_tokens
    counts = [len([item async for item in client.responses.input_items.list(each.id)]) for each in (second, third)]
    assert counts == [1, 1]


async def test_another_history_with_the_same_answers_is_a_session_of_its_own(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    first = await respond(client, "hello")
    other = await respond(client, [MORE, named(first.output[0].id), MORE])
    assert len(server.sessions) == 2
    assert first.output_text in decode(server.engine.prompts[-1])
    items: list[Any] = [item async for item in client.responses.input_items.list(other.id, order="asc")]
    assert [item.role for item in items] == ["user", "assistant", "user"]


async def test_a_call_that_is_named_takes_its_output(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script += [WEATHER_CALL, "sunny"]
    first = await respond(client, [HELLO], tools=[WEATHER_TOOL])
    (call,) = first.output
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    second = await respond(client, [HELLO, named(call.id), output], tools=[WEATHER_TOOL])
    assert second.output_text == "sunny" and len(server.sessions) == 1
    stateless = await respond(client, [HELLO, named(call.id), output], tools=[WEATHER_TOOL], store=False)
    assert stateless.status == "completed"


async def test_a_history_that_names_thoughts_goes_on_where_they_are(
    monkeypatch: pytest.MonkeyPatch, client: openai.AsyncOpenAI, server: Serving
) -> None:
    monkeypatch.setattr(ScriptedEngine, "thoughts", ThoughtMarks("<think>", "</think>"))
    server.engine.script += [f"<think>I look.</think>{WEATHER_CALL}", "<think>Hm.</think>sunny", "bye", "bye"]
    called = await respond(client, [HELLO], tools=[WEATHER_TOOL])
    output = {"type": "function_call_output", "call_id": called.output[1].call_id, "output": "18 degrees"}
    history: list[Any] = [HELLO, *(named(item.id) for item in called.output), output]
    answered = await respond(client, history, tools=[WEATHER_TOOL])
    assert [item.type for item in answered.output] == ["reasoning", "message"] and answered.output_text == "sunny"
    history += [*(named(item.id) for item in answered.output), MORE]
    assert (await respond(client, history, tools=[WEATHER_TOOL])).output_text == "bye"
    above = [named(answered.output[0].id), MORE]
    assert (await respond(client, above, tools=[WEATHER_TOOL], previous_response_id=answered.id)).output_text == "bye"
    assert len(server.sessions) == 1
    plain = await respond(client, [HELLO])
    with pytest.raises(openai.NotFoundError):
        await respond(client, [HELLO, named(plain.output[0].id.replace("msg_", "rs_")), MORE])


@pytest.mark.parametrize("before", ["<think>I look.</think>", "I look. "])
async def test_calls_that_are_sent_behind_what_is_named_are_those_of_the_session(
    monkeypatch: pytest.MonkeyPatch, client: openai.AsyncOpenAI, server: Serving, before: str
) -> None:
    """With their arguments in the client's own spelling, as the AI SDK sends them."""
    monkeypatch.setattr(ScriptedEngine, "thoughts", ThoughtMarks("<think>", "</think>"))
    server.engine.script += [f"{before}{WEATHER_CALL}", "sunny", "bye"]
    called = await respond(client, [HELLO], tools=[WEATHER_TOOL])
    named_before, call = called.output
    sent = {"type": "function_call", "call_id": call.call_id, "name": "weather", "arguments": '{"city":"Rome"}'}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    history: list[Any] = [HELLO, named(named_before.id), sent, output]
    answered = await respond(client, history, tools=[WEATHER_TOOL])
    assert answered.output_text == "sunny"
    history += [*(named(item.id) for item in answered.output), MORE]
    assert (await respond(client, history, tools=[WEATHER_TOOL])).output_text == "bye"
    assert len(server.sessions) == 1


async def test_what_the_request_goes_on_from_anyhow_is_not_repeated(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    first = await respond(client, [HELLO])
    second = await respond(client, [named(first.output[0].id), MORE], previous_response_id=first.id)
    conversation = await client.conversations.create(items=[HELLO])  # type: ignore[list-item]
    items = [item async for item in client.conversations.items.list(conversation.id)]
    third = await respond(client, [named(items[0].id or ""), named(first.output[0].id)], conversation=conversation.id)
    counts = [len([item async for item in client.responses.input_items.list(each.id)]) for each in (second, third)]
    assert counts == [1, 2]  # the conversation's own item, and the answer from elsewhere


async def test_an_item_that_is_not_kept_is_not_found(client: openai.AsyncOpenAI) -> None:
    for name in ("msg_none_0", "rs_1", "", "msg_" + "a" * 24, "fc_aaaaaaaaaaaaaaaaaaaaaaaa_0"):
        with pytest.raises(openai.NotFoundError) as caught:
            await respond(client, [HELLO, named(name)])
        assert (caught.value.code, caught.value.param) == ("item_not_found", "input[1].id")


async def test_items_that_were_erased_never_stored_or_of_a_second_user_are_refused(options: SimulatedOptions) -> None:
    keys = {
        key_digest(name): Principal(tenant=TenantId("acme"), key_id=name, user=name, scopes=("chat", "read"))
        for name in ("ann", "bob")
    }
    async with serving(options, keys=keys) as server, server.client("ann") as ann, server.client("bob") as bob:
        kept, erased = await respond(ann, "hello"), await respond(ann, "hello")
        loose = await respond(ann, "hello", store=False)
        await ann.responses.delete(erased.id)
        for client, response in ((bob, kept), (ann, erased), (ann, loose)):
            with pytest.raises(openai.NotFoundError) as caught:
                await respond(client, [HELLO, named(response.output[0].id), MORE])
            assert caught.value.code == "item_not_found"
