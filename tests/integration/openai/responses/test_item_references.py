"""`item_reference`: histories that name their answers, as the AI SDK sends them from its second turn on."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from inference.simulated import SimulatedOptions, decode
from sessions.model.generation import ThoughtMarks
from sessions.model.types import Principal, TenantId
from tests.support.doors.openai_server import SIMULATED, ScriptedEngine, Serving, serving
from transport.auth.authenticator import key_digest

HELLO = {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}
MORE = {"role": "user", "content": "and then"}
WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


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
    server.engine.script += [CALL, "sunny"]
    first = await respond(client, [HELLO], tools=[WEATHER])
    (call,) = first.output
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    second = await respond(client, [HELLO, named(call.id), output], tools=[WEATHER])
    assert second.output_text == "sunny" and len(server.sessions) == 1
    stateless = await respond(client, [HELLO, named(call.id), output], tools=[WEATHER], store=False)
    assert stateless.status == "completed"


async def test_a_history_that_names_thoughts_goes_on_where_they_are(
    monkeypatch: pytest.MonkeyPatch, client: openai.AsyncOpenAI, server: Serving
) -> None:
    monkeypatch.setattr(ScriptedEngine, "thoughts", ThoughtMarks("<think>", "</think>"))
    server.engine.script += [f"<think>I look.</think>{CALL}", "<think>Hm.</think>sunny", "bye", "bye"]
    called = await respond(client, [HELLO], tools=[WEATHER])
    output = {"type": "function_call_output", "call_id": called.output[1].call_id, "output": "18 degrees"}
    history: list[Any] = [HELLO, *(named(item.id) for item in called.output), output]
    answered = await respond(client, history, tools=[WEATHER])
    assert [item.type for item in answered.output] == ["reasoning", "message"] and answered.output_text == "sunny"
    history += [*(named(item.id) for item in answered.output), MORE]
    assert (await respond(client, history, tools=[WEATHER])).output_text == "bye"
    above = [named(answered.output[0].id), MORE]
    assert (await respond(client, above, tools=[WEATHER], previous_response_id=answered.id)).output_text == "bye"
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
    server.engine.script += [f"{before}{CALL}", "sunny", "bye"]
    called = await respond(client, [HELLO], tools=[WEATHER])
    named_before, call = called.output
    sent = {"type": "function_call", "call_id": call.call_id, "name": "weather", "arguments": '{"city":"Rome"}'}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    history: list[Any] = [HELLO, named(named_before.id), sent, output]
    answered = await respond(client, history, tools=[WEATHER])
    assert answered.output_text == "sunny"
    history += [*(named(item.id) for item in answered.output), MORE]
    assert (await respond(client, history, tools=[WEATHER])).output_text == "bye"
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
