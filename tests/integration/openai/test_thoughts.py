"""Thoughts at the doors, by the vendors' own SDKs: apart from text, whole and streamed, counted, resent by nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import openai
import pytest

from inference.simulated import SimulatedOptions, decode
from sessions.model.generation import ThoughtMarks
from sessions.turn.channels import END, FINAL, START, THOUGHT
from tests.support.doors.openai_server import (
    SIMULATED,
    WEATHER,
    WEATHER_CALL,
    WEATHER_TOOL,
    ScriptedEngine,
    Serving,
    serving,
)

ASK: list[Any] = [{"role": "user", "content": "how is the weather"}]
SAID = "<think>\nHm, 2 + 2.\n</think>\n\nFour."
CALLED = f"<think>Look.</think>{WEATHER_CALL}"
HARMONY = ThoughtMarks(
    THOUGHT, END, none=FINAL, end=f"{END}{START}assistant{FINAL}", channels=True, apart=True, efforts=True
)
FORM: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    marks = ThoughtMarks("<think>", "</think>", none="<think>\n\n</think>\n\n")
    monkeypatch.setattr(ScriptedEngine, "thoughts", marks)
    async with serving(SimulatedOptions(step_base_s=0.001, answer_tokens_mean=24)) as made:
        yield made


async def test_chat_completions_show_thoughts_beside_the_content(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script += [SAID, SAID]
    whole = await client.chat.completions.create(model=SIMULATED, messages=ASK)
    message: Any = whole.choices[0].message
    assert message.content == "Four." and message.reasoning_content == message.reasoning == "Hm, 2 + 2."
    assert whole.usage is not None and whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.reasoning_tokens == len("\nHm, 2 + 2.\n</think>")
    content = reasoning = ""
    async for chunk in await client.chat.completions.create(model=SIMULATED, messages=ASK, stream=True):
        for choice in chunk.choices:
            delta: Any = choice.delta
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning_content", "")
    assert (content, reasoning) == ("Four.", "Hm, 2 + 2.")


async def test_a_history_without_its_thoughts_goes_on_in_its_session(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    server.engine.script += [SAID, "Five."]
    messages: list[Any] = list(ASK)
    first = await client.chat.completions.create(model=SIMULATED, messages=messages)
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "3?"}]
    second = await client.chat.completions.create(model=SIMULATED, messages=messages)
    assert second.choices[0].message.content == "Five." and len(server.sessions) == 1
    assert SAID in decode(server.engine.prompts[-1]), "its own tokens stay, so that its KV is used again"


async def test_responses_show_a_reasoning_item_before_the_message(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script += [SAID, SAID, CALLED]
    whole = await client.responses.create(model=SIMULATED, input="2 + 2?")
    assert [item.type for item in whole.output] == ["reasoning", "message"] and whole.output_text == "Four."
    reasoning: Any = whole.output[0]
    assert [part.text for part in reasoning.summary] == ["Hm, 2 + 2."]
    assert whole.usage is not None and whole.usage.output_tokens_details.reasoning_tokens
    async with client.responses.stream(model=SIMULATED, input="2 + 2?") as stream:
        events: list[Any] = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert [item.type for item in final.output] == ["reasoning", "message"] and final.output_text == "Four."
    deltas = [event for event in events if event.type == "response.reasoning_summary_text.delta"]
    assert "".join(event.delta for event in deltas) == "Hm, 2 + 2." and {event.output_index for event in deltas} == {0}
    texts = [event for event in events if event.type == "response.output_text.delta"]
    assert {(event.output_index, event.content_index) for event in texts} == {(1, 0)}
    async with client.responses.stream(model=SIMULATED, input="how is it", tools=[WEATHER_TOOL]) as stream:
        added: list[Any] = [event async for event in stream if event.type == "response.output_item.added"]
    assert [(event.output_index, event.item.type) for event in added] == [(0, "reasoning"), (1, "function_call")]


async def test_messages_in_channels_are_thoughts_text_and_calls(
    monkeypatch: pytest.MonkeyPatch, client: openai.AsyncOpenAI, server: Serving
) -> None:
    end = HARMONY.end
    monkeypatch.setattr(ScriptedEngine, "thoughts", HARMONY)
    monkeypatch.setattr(ScriptedEngine, "call_format", "harmony")
    called = (
        f"{THOUGHT}Look.{END}{START}assistant<|channel|>commentary<|message|>I look.{END}"
        f'{START}assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{{"city": "Rome"}}'
    )
    server.engine.script += [f"{THOUGHT}Hm, 2 + 2.{end}Four.", called, called, "Four.", f"{THOUGHT}abcdefghij", "Four."]
    message: Any = (await client.chat.completions.create(model=SIMULATED, messages=ASK)).choices[0].message
    assert (message.content, message.reasoning_content) == ("Four.", "Hm, 2 + 2.")
    whole = await client.chat.completions.create(model=SIMULATED, messages=ASK, tools=[WEATHER])
    message = whole.choices[0].message
    told = (whole.choices[0].finish_reason, message.content, message.reasoning_content)
    assert told == ("tool_calls", "I look.", "Look.")
    assert message.tool_calls[0].function.arguments == '{"city": "Rome"}'
    answer = await client.responses.create(model=SIMULATED, input="how is it", tools=[WEATHER_TOOL])
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    without = await client.chat.completions.with_raw_response.create(
        model=SIMULATED, messages=ASK, reasoning_effort="none"
    )
    assert without.parse().choices[0].message.content == "Four."
    assert decode(server.engine.prompts[-1]).endswith(FINAL)
    cut = await client.chat.completions.with_raw_response.create(
        model=SIMULATED, messages=ASK, reasoning_effort="high", extra_body={"thinking_token_budget": 5}
    )
    message = cut.parse().choices[0].message
    assert message.content == "Four." and message.reasoning_content
    assert "abcdefghij".startswith(message.reasoning_content)
    assert decode(server.engine.prompts[-1]).endswith(end)
    assert server.engine.asked[-1].effort == "high" and "warning" not in cut.headers


LOOKED = f"{THOUGHT}Look.{END}{START}assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"


async def test_a_call_in_channels_comes_in_the_place_of_an_answer_in_a_format(
    monkeypatch: pytest.MonkeyPatch, client: openai.AsyncOpenAI, server: Serving
) -> None:
    """The model is asked without the header of a text first; where it calls nothing, its thoughts are dropped too."""
    monkeypatch.setattr(ScriptedEngine, "thoughts", HARMONY)
    monkeypatch.setattr(ScriptedEngine, "call_format", "harmony")
    asked: dict[str, Any] = {"model": SIMULATED, "tools": [WEATHER], "response_format": FORM}
    for behind in ('{"city": "Rome"}<|call|>', '{"city": "Rome"}'):
        server.engine.script.append(LOOKED + behind)
        first = (await client.chat.completions.create(messages=ASK, **asked)).choices[0]
        message: Any = first.message
        assert (first.finish_reason, message.content, message.reasoning_content) == ("tool_calls", None, "Look.")
        assert message.tool_calls[0].function.arguments == '{"city": "Rome"}'
        assert not decode(server.engine.prompts[-1]).endswith(FINAL) and server.engine.asked[-1].text is None
    output: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees"}
    for spoken in (f"{THOUGHT}It is warm.{END}{START}assistant{FINAL}Warm.", f"{THOUGHT}Hm.{END}", f"{THOUGHT}Hm"):
        server.engine.script += [spoken, '{"a": 1}']
        second = await client.chat.completions.create(
            messages=[*ASK, message.model_dump(exclude_none=True), output], **asked
        )
        assert second.choices[0].message.content == '{"a": 1}' and second.choices[0].finish_reason == "stop"
        assert getattr(second.choices[0].message, "reasoning_content", None) is None
        assert decode(server.engine.prompts[-1]).endswith(FINAL) and server.engine.asked[-1].text is not None
        assert second.usage is not None and second.usage.completion_tokens == len('{"a": 1}')
        details = second.usage.completion_tokens_details
        assert details is None or not details.reasoning_tokens


async def test_an_effort_is_passed_on_from_every_door_or_named(
    monkeypatch: pytest.MonkeyPatch, client: openai.AsyncOpenAI, server: Serving
) -> None:
    import anthropic

    async def warnings_of_turns() -> list[str]:
        server.engine.script += ["Four."] * 3
        chat = await client.chat.completions.with_raw_response.create(
            model=SIMULATED, messages=ASK, reasoning_effort="low"
        )
        response = await client.responses.with_raw_response.create(
            model=SIMULATED, input="2 + 2?", reasoning={"effort": "low"}
        )
        async with anthropic.AsyncAnthropic(base_url=server.server.url, api_key="none", max_retries=0) as other:
            message = await other.messages.with_raw_response.create(
                model=SIMULATED, max_tokens=100, messages=ASK, extra_body={"output_config": {"effort": "low"}}
            )
        assert [sampling.effort for sampling in server.engine.asked[-3:]] == ["low"] * 3
        return [each.headers.get("warning", "") for each in (chat, response, message)]

    warned = await warnings_of_turns()
    for name, warning in zip(("reasoning_effort", "reasoning.effort", "output_config.effort"), warned, strict=True):
        assert name in warning, "its template knows no degrees"
    assert server.engine.thoughts is not None
    monkeypatch.setattr(ScriptedEngine, "thoughts", msgspec.structs.replace(server.engine.thoughts, efforts=True))
    assert await warnings_of_turns() == [""] * 3


async def test_messages_show_a_thinking_block(server: Serving) -> None:
    import anthropic

    server.engine.script += [SAID, SAID]
    async with anthropic.AsyncAnthropic(base_url=server.server.url, api_key="none", max_retries=0) as client:
        whole = await client.messages.create(model=SIMULATED, max_tokens=100, messages=ASK)
        async with client.messages.stream(model=SIMULATED, max_tokens=100, messages=ASK) as stream:
            streamed = await stream.get_final_message()
    for message in (whole, streamed):
        thought, text = message.content
        assert thought.type == "thinking" and thought.thinking == "Hm, 2 + 2."
        assert text.type == "text" and text.text == "Four."


async def test_models_say_that_they_think(client: openai.AsyncOpenAI) -> None:
    card: Any = await client.models.retrieve(SIMULATED)
    assert card.capabilities["reasoning"] is True


async def test_what_a_request_sets_of_thoughts_is_done_or_named(client: openai.AsyncOpenAI, server: Serving) -> None:
    closed = "<think>\n\n</think>\n\n"

    async def asked(script: str, **more: Any) -> tuple[str, bool]:
        server.engine.script.append(script)
        answer = await client.chat.completions.with_raw_response.create(model=SIMULATED, messages=ASK, **more)
        assert (answer.parse()).choices[0].message.content
        return answer.headers.get("warning", ""), decode(server.engine.prompts[-1]).endswith(closed)

    def body(**fields: Any) -> dict[str, Any]:
        return {"extra_body": fields}

    assert await asked("Four.", reasoning_effort="none") == ("", True)
    assert await asked("Four.", **body(chat_template_kwargs={"enable_thinking": False})) == ("", True)
    assert await asked(SAID, **body(chat_template_kwargs={"enable_thinking": True})) == ("", False)
    warned, _ = await asked(SAID, reasoning_effort="high")
    assert "reasoning_effort" in warned
    form: Any = {"type": "json_object"}
    warned, without = await asked("{}", response_format=form, **body(chat_template_kwargs={"enable_thinking": True}))
    assert without and "chat_template_kwargs" in warned
    with pytest.raises(openai.BadRequestError, match="chat_template_kwargs"):
        await asked("x", **body(chat_template_kwargs={"colour": "red"}))


async def test_a_thought_that_the_template_opens_on_request_is_read_only_then(
    monkeypatch: pytest.MonkeyPatch, client: openai.AsyncOpenAI, server: Serving
) -> None:
    marks = ThoughtMarks("<think>", "</think>", True, "\n</think>\n\n", asked=True)
    monkeypatch.setattr(ScriptedEngine, "thoughts", marks)
    server.engine.script += ["Four, not </think>.", "Four.", "Hm.\n</think>\n\nFour."]
    told: list[Any] = []
    for body in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        answer = await client.chat.completions.create(
            model=SIMULATED, messages=ASK, extra_body={"chat_template_kwargs": body}
        )
        message: Any = answer.choices[0].message
        told.append((message.content, getattr(message, "reasoning_content", None)))
        assert not decode(server.engine.prompts[-1]).endswith("</think>\n\n"), "the template closes what it has opened"
    assert told == [("Four, not </think>.", None), ("Four.", None), ("Four.", "Hm.")]


async def test_a_thought_is_closed_where_its_budget_is_spent(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script += ["<think>abcdefghij", "Four."]
    whole = await client.chat.completions.create(model=SIMULATED, messages=ASK, extra_body={"thinking_token_budget": 5})
    message: Any = whole.choices[0].message
    assert (message.reasoning_content, message.content) == ("abcde", "Four.")
    assert decode(server.engine.prompts[-1]).endswith("<think>abcde\n</think>\n\n")
    assert whole.usage is not None and whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.reasoning_tokens == 5


async def test_a_call_comes_in_the_place_of_an_answer_in_a_format(client: openai.AsyncOpenAI, server: Serving) -> None:
    messages = list(ASK)
    asked: dict[str, Any] = {"model": SIMULATED, "tools": [WEATHER], "response_format": FORM}
    server.engine.script.append(WEATHER_CALL)
    first = await client.chat.completions.create(messages=messages, **asked)
    assert first.choices[0].finish_reason == "tool_calls" and server.engine.asked[-1].text is None
    message = first.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    assert message.tool_calls
    messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees"})
    server.engine.script += ["It is warm.", '{"a": 1}']
    second = await client.chat.completions.create(messages=messages, **asked)
    assert second.choices[0].message.content == '{"a": 1}', "what was said before the format held is dropped"
    assert server.engine.asked[-1].text is not None
    assert second.usage is not None and second.usage.completion_tokens == len('{"a": 1}')
