"""Pydantic AI: chat, stream, tools, structured output by tool and by schema, histories, stored responses."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    city: Literal["Rome", "Oslo"]


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel], ids=["chat", "responses"])
def llm(request: pytest.FixtureRequest, base_url: str, key: str, model: str) -> Any:
    return request.param(model, provider=OpenAIProvider(base_url=base_url, api_key=key))


async def test_chat_history_and_stream(llm: Any) -> None:
    agent = Agent(llm, instructions="Be brief.")
    first = await agent.run("Say something.")
    second = await agent.run("Go on.", message_history=first.all_messages())
    assert first.output and second.output and second.usage.output_tokens > 0
    async with agent.run_stream("And on.", message_history=second.all_messages()) as stream:
        assert "".join([text async for text in stream.stream_text(delta=True)])


async def test_tools(llm: Any) -> None:
    agent = Agent(llm)
    called: list[str] = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Reports the weather of a city."""
        called.append(city)
        return "18 degrees"

    assert (await agent.run("How is the weather in Rome?")).output and called == ["Rome"]


@pytest.mark.parametrize("output", [City, NativeOutput(City)], ids=["tool", "schema"])
async def test_structured_output(llm: Any, output: Any) -> None:
    assert isinstance((await Agent(llm, output_type=output).run("Where is it?")).output, City)


async def test_stored_responses(base_url: str, key: str, model: str) -> None:
    llm = OpenAIResponsesModel(model, provider=OpenAIProvider(base_url=base_url, api_key=key))
    settings = OpenAIResponsesModelSettings(openai_previous_response_id="auto")
    agent = Agent(llm, model_settings=settings)
    first = await agent.run("Say something.")
    second = await agent.run("Go on.", message_history=first.all_messages())
    assert second.output
