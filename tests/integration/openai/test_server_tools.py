"""Tools that the server carries out, as clients of OpenAI's API see them: one answer with calls, outputs and words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from inference.simulated import SimulatedOptions
from sessions.model import events as ev
from sessions.model.types import LOCAL_PRINCIPAL, SessionId, SessionKey, TenantId
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.openai_server import SIMULATED, WEATHER_CALL, Serving, serving
from tests.support.doors.tool_service import ToolService, opened_tools, reply, tools_toml

OURS: Any = {"type": "function", "name": "weather", "server": True}
CALL = f"Let me see. {WEATHER_CALL}"


def output_of(done: Response) -> str:
    """What the one tool said."""
    (item,) = [each for each in done.output if each.type == "function_call_output"]
    assert isinstance(item.output, str)
    return item.output


@pytest.fixture
async def server(service: ToolService, tmp_path: Path) -> AsyncIterator[Serving]:
    tables = {
        "weather": 'description = "The weather."\nidempotency = "key"\n',
        "book": "timeout_s = 0.3\n",
        "odd": 'description = "Says open sesame."\n',
    }
    async with (
        opened_tools(tmp_path / "tools.toml", tools_toml(service, **tables)) as tools,
        serving(
            SimulatedOptions(step_base_s=0.001), tools=tools, filters=KeywordFilterSet(input_phrases=["sesame"])
        ) as made,
    ):
        yield made


async def test_no_more_calls_are_made_than_a_request_allows(
    client: openai.AsyncOpenAI, server: Serving, service: ToolService
) -> None:
    """`max_tool_calls` was named in a `Warning`, and every call was made."""
    both = CALL + CALL.removeprefix("Let me see. ").replace("Rome", "Oslo")
    server.engine.script += [CALL, both, "It is 18 degrees."]
    done = await client.responses.create(
        model=SIMULATED, input="how is the weather", tools=[OURS], max_tool_calls=2, parallel_tool_calls=True
    )
    assert [json.loads(asked.body)["city"] for asked in service.asked] == ["Rome", "Rome"]
    outputs = [each.output for each in done.output if each.type == "function_call_output"]
    assert len(outputs) == 3 and sum(str(output).startswith("max_tool_calls: ") for output in outputs) == 1
    assert done.output_text.endswith("It is 18 degrees.") and done.max_tool_calls == 2
    assert "tool_calls_made" not in done.model_dump_json()


async def test_a_call_its_output_and_the_words_behind_it_are_one_answer(
    client: openai.AsyncOpenAI, server: Serving, service: ToolService
) -> None:
    server.engine.script += [CALL, "It is 18 degrees."]
    done = await client.responses.create(model=SIMULATED, input="how is the weather", tools=[OURS])
    assert [item.type for item in done.output] == ["message", "function_call", "function_call_output", "message"]
    assert done.output_text == "Let me see.It is 18 degrees." and done.status == "completed"
    assert json.loads(output_of(done)) == {"degrees": 18}
    (asked,) = service.asked
    assert json.loads(asked.body) == {"city": "Rome"} and asked.key.startswith("call_")
    again = await client.responses.retrieve(done.id)
    assert again.model_dump() == done.model_dump()
    assert done.usage is not None and done.usage.output_tokens >= len("It is 18 degrees.")
    server.engine.script.append("Yes.")
    after = await client.responses.create(model=SIMULATED, input="sure?", previous_response_id=done.id)
    assert after.output_text == "Yes." and len(server.sessions) == 1
    (session,) = server.sessions
    kinds = [type(record.event) for record in server.log(session)]
    assert kinds.index(ev.ResponseCompleted) < kinds.index(ev.ToolCallStarted) < kinds.index(ev.ItemCreated, 3)
    before, behind, _ = server.engine.prompts
    assert list(behind[: len(before)]) == list(before), "what was computed stays"


async def test_a_stream_is_numbered_through_and_can_be_read_again(
    client: openai.AsyncOpenAI, server: Serving, service: ToolService
) -> None:
    server.engine.script += [CALL, "It is 18 degrees."]
    stream = await client.responses.create(model=SIMULATED, input="weather", tools=[OURS], stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events].count("response.created") == 1 and events[-1].type == "response.completed"
    assert len({event.response.id for event in events if hasattr(event, "response")}) == 1
    added = [event.output_index for event in events if event.type == "response.output_item.added"]
    assert added == [0, 1, 2, 3]
    last = events[-1]
    assert last.type == "response.completed"
    rest = await client.responses.retrieve(last.response.id, stream=True, starting_after=events[-4].sequence_number)
    assert [event.model_dump() async for event in rest] == [event.model_dump() for event in events[-3:]]


async def test_a_chat_client_sees_the_words_alone_and_stays_in_its_session(
    client: openai.AsyncOpenAI, server: Serving, service: ToolService
) -> None:
    ours: Any = {"type": "function", "function": {"name": "weather", "server": True}}
    server.engine.script += [CALL, " It is 18 degrees.", "Yes."]
    messages: Any = [{"role": "user", "content": "how is the weather"}]
    done = await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[ours])
    (choice,) = done.choices
    assert choice.message.tool_calls is None and choice.finish_reason == "stop" and len(service.asked) == 1
    messages += [choice.message.model_dump(exclude_none=True), {"role": "user", "content": "sure?"}]
    await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[ours])
    assert len(server.sessions) == 1
    server.engine.script += [CALL, "Warm."]
    stream = await client.chat.completions.create(model=SIMULATED, messages=messages[:1], tools=[ours], stream=True)
    words = [chunk.choices[0].delta async for chunk in stream]
    assert "".join(delta.content or "" for delta in words) == "Let me see.Warm."
    assert not any(delta.tool_calls for delta in words)


async def test_what_a_tool_says_is_filtered_like_what_a_user_says(
    client: openai.AsyncOpenAI, server: Serving, service: ToolService
) -> None:
    service.answer = lambda asked: reply("open sesame")
    server.engine.script += [CALL, "Sorry."]
    done = await client.responses.create(model=SIMULATED, input="weather", tools=[OURS])
    assert "sesame" not in done.model_dump_json() and "content_filter" in output_of(done)


async def test_a_tool_without_keys_that_does_not_answer_is_sent_once_and_its_outcome_unknown(
    client: openai.AsyncOpenAI, server: Serving, service: ToolService
) -> None:
    service.hold = asyncio.Event()
    book: Any = {"type": "function", "name": "book", "server": True}
    server.engine.script += [CALL.replace("weather", "book"), "I do not know whether it is booked."]
    done = await client.responses.create(model=SIMULATED, input="book", tools=[book])
    assert len(service.asked) == 1 and output_of(done).startswith("outcome_unknown")


async def test_who_leaves_stops_the_tool_and_the_session_goes_on(
    client: openai.AsyncOpenAI, server: Serving, service: ToolService
) -> None:
    service.hold = asyncio.Event()
    server.engine.script += [CALL, "Yes."]
    stream = await client.responses.create(model=SIMULATED, input="weather", tools=[OURS], stream=True)
    first = await anext(aiter(stream))
    assert first.type == "response.created"
    await service.wait_for(1)
    (session,) = server.sessions
    actor = server.runtime.actor(SessionKey(TenantId("local"), SessionId(session)))
    assert actor is not None and actor.in_turn
    changed = asyncio.Event()
    unwatch = server.runtime.watch(actor.key, lambda _: changed.set())
    await stream.close()
    async with asyncio.timeout(60):
        while actor.in_turn:
            await changed.wait()
            changed.clear()
    unwatch()
    told = await client.responses.retrieve(first.response.id)
    assert told.status == "cancelled" and output_of(told).startswith("outcome_unknown")
    later = await client.responses.create(model=SIMULATED, input="well?", previous_response_id=told.id)
    assert later.output_text == "Yes."


async def test_a_conversation_keeps_the_calls_and_an_answer_is_deleted_whole(
    client: openai.AsyncOpenAI, server: Serving, service: ToolService
) -> None:
    made = await client.conversations.create()
    server.engine.script += [CALL, "It is 18 degrees."]
    done = await client.responses.create(model=SIMULATED, input="weather", tools=[OURS], conversation=made.id)
    items = await client.conversations.items.list(made.id, order="asc")
    assert [item.type for item in items.data][1:] == [item.type for item in done.output]
    await client.responses.delete(done.id)
    (session,) = server.sessions
    head, state = await server.gateway.logs.state(LOCAL_PRINCIPAL, SessionKey(TenantId("local"), SessionId(session)))
    assert head.top and "degrees" not in str(state["items"])


async def test_what_the_file_says_of_a_tool_is_judged_like_what_a_client_says(
    client: openai.AsyncOpenAI, server: Serving, service: ToolService
) -> None:
    odd: Any = {"type": "function", "name": "odd", "server": True}
    with pytest.raises(openai.BadRequestError, match="does not accept"):
        await client.responses.create(model=SIMULATED, input="x", tools=[odd])
