"""Thoughts of a model that thinks, as OpenAI's SDK, LangChain, Pydantic AI and OpenAI Agents show them, and send them
back in a conversation with a tool. LangChain's `ChatOpenAI` leaves those of chat completions out, as its docs say."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelResponse, ThinkingPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

set_tracing_disabled(True)
QUESTION = "How is the weather in Rome?"
MARKS = ("<think>", "</think>")


def apart(thought: str, text: str) -> bool:
    """Whether both are there, and neither has a mark."""
    return bool(thought and text) and not any(mark in thought + text for mark in MARKS)


@pytest.fixture
def client(base_url: str, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0)


async def test_openai_chat(client: AsyncOpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": [{"role": "user", "content": "2 + 2?"}]}
    whole: Any = (await client.chat.completions.create(**asked)).choices[0].message
    assert apart(whole.reasoning_content, whole.content) and whole.reasoning == whole.reasoning_content
    thought = text = ""
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            delta: Any = choice.delta
            thought += getattr(delta, "reasoning_content", None) or ""
            assert not (thought and text and getattr(delta, "reasoning_content", None)), "thoughts come first"
            text += delta.content or ""
    assert (thought, text) == (whole.reasoning_content, whole.content)


async def test_openai_responses(client: AsyncOpenAI, model: str) -> None:
    asked: Any = {"model": model, "input": "2 + 2?", "reasoning": {"summary": "auto"}}
    whole: Any = await client.responses.create(**asked)
    (summary,) = whole.output[0].summary
    assert whole.output[0].type == "reasoning" and apart(summary.text, whole.output_text)
    async with client.responses.stream(**asked) as stream:
        events: list[Any] = [event async for event in stream]
    deltas = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
    (done,) = (event.text for event in events if event.type == "response.reasoning_summary_text.done")
    assert "".join(deltas) == done == summary.text and len(deltas) > 1
    again: Any = await client.responses.create(
        model=model, input=[{"role": "user", "content": "2 + 2?"}, *whole.output, {"role": "user", "content": "And 3?"}]
    )
    assert again.output[0].type == "reasoning" and again.output_text


@tool
def get_weather(city: str) -> str:
    """Reports the weather of a city."""
    return "18 degrees"


def reasoning(message: AIMessage) -> str:
    return "".join(block.get("reasoning", "") for block in message.content_blocks if block["type"] == "reasoning")


async def test_langchain_responses(base_url: str, key: str, model: str) -> None:
    asked = {"reasoning": {"summary": "auto"}, "use_responses_api": True, "max_retries": 0}
    llm = ChatOpenAI(base_url=base_url, api_key=key, model=model, **asked).bind_tools([get_weather])
    messages: list[Any] = [HumanMessage(QUESTION)]
    called = await llm.ainvoke(messages)
    assert reasoning(called) and [call["args"] for call in called.tool_calls] == [{"city": "Rome"}]
    messages += [called, ToolMessage("18 degrees", tool_call_id=called.tool_calls[0]["id"])]
    whole = await llm.ainvoke(messages)
    assert apart(reasoning(whole), whole.text)
    streamed: AIMessageChunk | None = None
    async for chunk in llm.astream(messages):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None and (reasoning(streamed), streamed.text) == (reasoning(whole), whole.text)


async def test_langchain_chat(base_url: str, key: str, model: str) -> None:
    llm = ChatOpenAI(base_url=base_url, api_key=key, model=model, max_retries=0)
    whole = await llm.ainvoke("2 + 2?")
    assert apart("left out", whole.text)
    assert whole.usage_metadata["output_token_details"]["reasoning"] > 0
    assert "".join([chunk.text async for chunk in llm.astream("2 + 2?")]) == whole.text


@pytest.mark.parametrize("made", [OpenAIChatModel, PydanticResponsesModel], ids=["chat", "responses"])
async def test_pydantic_ai(base_url: str, key: str, model: str, made: Any) -> None:
    agent = PydanticAgent(made(model, provider=OpenAIProvider(base_url=base_url, api_key=key)))

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Reports the weather of a city."""
        return "18 degrees"

    first = await agent.run(QUESTION)
    answers = [message for message in first.all_messages() if isinstance(message, ModelResponse)]
    thoughts = [[part for part in answer.parts if isinstance(part, ThinkingPart)] for answer in answers]
    assert len(answers) == 2 and all(thoughts) and apart(thoughts[1][0].content, first.output)
    async with agent.run_stream("Go on.", message_history=first.all_messages()) as stream:
        text = await stream.get_output()
    (streamed,) = (part for part in stream.response.parts if isinstance(part, ThinkingPart))
    assert apart(streamed.content, text)


@pytest.mark.parametrize("made", [OpenAIChatCompletionsModel, OpenAIResponsesModel], ids=["chat", "responses"])
async def test_openai_agents(client: AsyncOpenAI, model: str, made: Any) -> None:
    @function_tool
    def get_weather(city: str) -> str:
        """Reports the weather of a city."""
        return "18 degrees"

    agent = Agent(name="a", model=made(model=model, openai_client=client), tools=[get_weather])
    first = await Runner.run(agent, QUESTION)
    kinds = [item.type for item in first.new_items]
    assert kinds == [
        *("reasoning_item", "tool_call_item", "tool_call_output_item", "reasoning_item", "message_output_item")
    ]
    assert apart("".join(part.text for part in first.new_items[0].raw_item.summary), first.final_output)
    streamed = Runner.run_streamed(agent, [*first.to_input_list(), {"role": "user", "content": "Go on."}])
    items = [event.item.type async for event in streamed.stream_events() if event.type == "run_item_stream_event"]
    assert "reasoning_item" in items and streamed.final_output and "<think>" not in streamed.final_output
