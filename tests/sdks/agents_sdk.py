"""OpenAI Agents: runs, streams, tools, structured output, sessions and conversations kept by the server."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)


class City(BaseModel):
    city: Literal["Rome", "Oslo"]


called: list[str] = []


@function_tool
def get_weather(city: str) -> str:
    """Reports the weather of a city."""
    called.append(city)
    return "18 degrees"


@pytest.fixture
def client(base_url: str, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0)


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel], ids=["chat", "responses"])
def llm(request: pytest.FixtureRequest, client: AsyncOpenAI, model: str) -> Any:
    return request.param(model=model, openai_client=client)


async def test_runs_and_streams(llm: Any) -> None:
    agent = Agent(name="a", instructions="Be brief.", model=llm)
    first = await Runner.run(agent, "Say something.")
    again = await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "Go on."}])
    assert first.final_output and again.final_output
    streamed = Runner.run_streamed(agent, "Say something.")
    kinds = [event.type async for event in streamed.stream_events()]
    assert "raw_response_event" in kinds and streamed.final_output


async def test_tools_and_handoffs(llm: Any) -> None:
    called.clear()
    agent = Agent(name="a", model=llm, tools=[get_weather])
    assert (await Runner.run(agent, "How is the weather in Rome?")).final_output and called == ["Rome"]


async def test_structured_output(llm: Any) -> None:
    done = await Runner.run(Agent(name="a", model=llm, output_type=City), "Where is it?")
    assert isinstance(done.final_output, City)


async def test_a_session_of_the_client_s(llm: Any) -> None:
    session, agent = SQLiteSession("s"), Agent(name="a", model=llm)
    for text in ("Say something.", "Go on."):
        assert (await Runner.run(agent, text, session=session)).final_output


async def test_stored_responses_and_conversations(client: AsyncOpenAI, model: str) -> None:
    agent = Agent(name="a", model=OpenAIResponsesModel(model=model, openai_client=client), tools=[get_weather])
    first = await Runner.run(agent, "Say something.")
    again = await Runner.run(agent, "Go on.", previous_response_id=first.last_response_id)
    assert again.final_output
    conversation = await client.conversations.create()
    for text in ("How is the weather in Rome?", "Go on."):
        assert (await Runner.run(agent, text, conversation_id=conversation.id)).final_output
    session = OpenAIConversationsSession(openai_client=client)
    for text in ("Say something.", "Go on."):
        assert (await Runner.run(Agent(name="b", model=agent.model), text, session=session)).final_output
    items = await session.get_items()
    assert len(items) == 4
    await session.pop_item()
    assert len(await session.get_items()) == 3
    await session.clear_session()
