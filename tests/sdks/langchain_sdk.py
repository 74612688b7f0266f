"""LangChain: chat, stream, tools by an agent, structured output, stored responses."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

RESPONSES = [{}, {"use_responses_api": True}, {"use_responses_api": True, "use_previous_response_id": True}]
IDS = ["chat", "responses", "stored responses"]


class City(BaseModel):
    """Where it is."""

    city: Literal["Rome", "Oslo"]


@tool
def get_weather(city: str) -> str:
    """Reports the weather of a city."""
    return "18 degrees"


@pytest.fixture(params=RESPONSES, ids=IDS)
def llm(request: pytest.FixtureRequest, base_url: str, key: str, model: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=base_url, api_key=key, model=model, max_retries=0, **request.param)


def text_of(message: Any) -> str:
    return message.text if isinstance(message.text, str) else message.text()


async def test_chat_and_stream(llm: ChatOpenAI) -> None:
    messages = [SystemMessage("Be brief."), HumanMessage("Say something.")]
    whole = await llm.ainvoke(messages)
    assert text_of(whole) and whole.usage_metadata["output_tokens"] > 0
    chunks = [chunk async for chunk in llm.astream(messages)]
    assert "".join(text_of(chunk) for chunk in chunks) and len(chunks) > 1


async def test_a_conversation_of_turns(llm: ChatOpenAI) -> None:
    messages: list[Any] = [HumanMessage("Say something.")]
    for _ in range(3):
        messages.append(await llm.ainvoke(messages))
        messages.append(HumanMessage("Go on."))
    assert text_of(messages[-2])


async def test_tools(llm: ChatOpenAI) -> None:
    bound = llm.bind_tools([get_weather])
    messages: list[Any] = [HumanMessage("How is the weather in Rome?")]
    answer = await bound.ainvoke(messages)
    assert isinstance(answer, AIMessage)
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather" and call["args"] == {"city": "Rome"}
    messages += [answer, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert text_of(await bound.ainvoke(messages))


async def test_an_agent(llm: ChatOpenAI) -> None:
    agent = create_agent(llm, [get_weather])
    done = await agent.ainvoke({"messages": [{"role": "user", "content": "How is the weather in Rome?"}]})
    assert any(isinstance(each, ToolMessage) for each in done["messages"]) and text_of(done["messages"][-1])


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_structured_output(llm: ChatOpenAI, method: Any) -> None:
    found = await llm.with_structured_output(City, method=method).ainvoke("Where is it?")
    assert isinstance(found, City)


async def test_log_probabilities_and_completions(base_url: str, key: str, model: str) -> None:
    text = await OpenAI(base_url=base_url, api_key=key, model=model, max_tokens=8).ainvoke("Once upon a time")
    assert text
