"""LlamaIndex: chat, stream, completions, tools by an agent, structured output, stored responses."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class City(BaseModel):
    """Where it is."""

    city: Literal["Rome", "Oslo"]


def get_weather(city: str) -> str:
    """Reports the weather of a city."""
    return "18 degrees"


@pytest.fixture
def llm(base_url: str, key: str, model: str) -> OpenAILike:
    return OpenAILike(
        api_base=base_url,
        api_key=key,
        model=model,
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=8192,
        max_retries=0,
    )


@pytest.fixture
def responses(base_url: str, key: str, model: str) -> OpenAIResponses:
    return OpenAIResponses(
        api_base=base_url, api_key=key, model=model, context_window=8192, max_retries=0, track_previous_responses=True
    )


def messages(*texts: str) -> list[ChatMessage]:
    return [ChatMessage(role="user" if at % 2 == 0 else "assistant", content=text) for at, text in enumerate(texts)]


async def test_chat_and_stream(llm: OpenAILike) -> None:
    first = await llm.achat(messages("Say something."))
    again = await llm.achat([*messages("Say something."), first.message, *messages("Go on.")])
    assert first.message.content and again.message.content
    assert [chunk.delta async for chunk in await llm.astream_chat(messages("Say something."))]


async def test_completions(base_url: str, key: str, model: str) -> None:
    bare = OpenAILike(api_base=base_url, api_key=key, model=model, is_chat_model=False, max_tokens=8, max_retries=0)
    assert (await bare.acomplete("Once upon a time")).text
    assert [chunk.delta async for chunk in await bare.astream_complete("Once upon a time")]


async def test_tools(llm: OpenAILike) -> None:
    tool = FunctionTool.from_defaults(get_weather)
    answer = await llm.achat_with_tools([tool], user_msg="How is the weather in Rome?")
    (call,) = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather" and call.tool_kwargs == {"city": "Rome"}
    agent = FunctionAgent(tools=[get_weather], llm=llm, streaming=False)
    assert str(await agent.run("How is the weather in Rome?"))


async def test_structured_output(llm: OpenAILike) -> None:
    found: Any = await llm.astructured_predict(City, PromptTemplate("Where is {what}?"), what="it")
    assert isinstance(found, City)


async def test_stored_responses(responses: OpenAIResponses) -> None:
    first = await responses.achat(messages("Say something."))
    again = await responses.achat(messages("Go on."))
    assert first.message.content and again.message.content
    assert [chunk.delta async for chunk in await responses.astream_chat(messages("Say something."))]
