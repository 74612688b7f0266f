"""OpenAI's requests as items, tools and sampling; what is wrong is named by its parameter."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model import commands as cm
from sessions.model.errors import BadInput
from transport.openai.parse_request import (
    chat_history,
    chat_sampling,
    chat_tools,
    input_units,
    response_sampling,
    response_tools,
    stream_usage,
)
from transport.openai.request_models import ChatRequest, ChatStreamOptions, ResponsesRequest

TOOL = {"name": "add", "parameters": {"type": "object", "properties": {}}}


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})


def test_a_chat_with_a_call_becomes_units_and_instructions() -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": "{}"}}
    request = chat(
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "+1"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ]
    )
    instructions, units = chat_history(request.messages)
    assert instructions == "be brief"
    assert units[0].items == (cm.NewMessage(role="user", content="1+1"),)
    assert units[1].answer and isinstance(units[1].items[0], cm.NewCall)
    assert units[2].items == (cm.NewOutput(call_id="c1", output="2"),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "content": "x", "tool_call_id": "c9"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "assistant"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}]}],
            "messages",
        ),
    ],
)
def test_a_wrong_chat_names_what_is_wrong(messages: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(BadInput) as caught:
        chat_history(chat(messages=messages).messages)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}},
            "response_format.json_schema.schema",
        ),
        (
            {
                "tools": [{"type": "function", "function": TOOL}],
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            "tool_choice",
        ),
    ],
)
def test_sampling_that_contradicts_itself_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadInput) as caught:
        chat_sampling(chat(**fields))
    assert caught.value.param == param


def test_sampling_takes_what_it_knows() -> None:
    sampling = chat_sampling(chat(seed=-1, stop=["a"], max_tokens=3, response_format={"type": "json_object"}))
    assert (sampling.seed, sampling.stop, sampling.max_output_tokens) == (2**31 - 1, ("a",), 3)
    assert sampling.text is not None and sampling.text.format == {"type": "json_object"}


def test_tools_have_one_name_each_and_take_objects() -> None:
    (tool,) = chat_tools(chat(tools=[{"type": "function", "function": TOOL}]).tools)
    assert tool.name == "add"
    given = ResponsesRequest.model_validate({"tools": [{"type": "function", **TOOL}] * 2})
    with pytest.raises(BadInput) as twice:
        response_tools(given.tools)
    assert twice.value.param == "tools[1].name"
    listing = ResponsesRequest.model_validate(
        {"tools": [{"type": "function", **TOOL, "parameters": {"type": "array"}}]}
    )
    with pytest.raises(BadInput) as array:
        response_tools(listing.tools)
    assert array.value.param == "tools[0].parameters"


def test_the_input_of_a_response_lays_calls_below_their_answer() -> None:
    request = ResponsesRequest.model_validate(
        {
            "input": [
                {"role": "user", "content": "hi"},
                {"type": "reasoning"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "wait"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ]
        }
    )
    units = input_units(request.input)
    assert [len(unit.items) for unit in units] == [1, 2, 1]
    assert [unit.answer for unit in units] == [False, True, False]
    assert input_units(None) == [] and len(input_units("hi")) == 1


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"type": "function_call", "name": "f", "arguments": ""}, "input[0].call_id"),
        ({"type": "function_call_output", "output": ""}, "input[0].call_id"),
        ({"type": "web_search_call"}, "input[0].type"),
    ],
)
def test_a_wrong_item_names_what_is_wrong(item: dict[str, Any], param: str) -> None:
    with pytest.raises(BadInput) as caught:
        input_units(ResponsesRequest.model_validate({"input": [item]}).input)
    assert caught.value.param == param


def test_a_response_format_needs_a_name_and_a_schema() -> None:
    incomplete: tuple[dict[str, Any], ...] = ({"name": "x"}, {"schema": {}})
    for given in incomplete:
        request = ResponsesRequest.model_validate({"text": {"format": {"type": "json_schema", **given}}})
        with pytest.raises(BadInput):
            response_sampling(request, [])


def test_stream_options_that_would_have_no_effect_are_refused() -> None:
    both = ChatStreamOptions(include_usage=True, continuous_usage_stats=True)
    assert stream_usage(both, stream=True) == (True, True)
    assert stream_usage(ChatStreamOptions(include_usage=True), stream=True) == (True, False)
    assert stream_usage(None, stream=False) == stream_usage(ChatStreamOptions(), stream=True) == (False, False)
    with pytest.raises(BadInput, match="only allowed when 'stream'"):
        stream_usage(both, stream=False)
    with pytest.raises(BadInput, match="needs 'include_usage'"):
        stream_usage(ChatStreamOptions(continuous_usage_stats=True), stream=True)
