"""OpenAI's requests as items, tools and sampling; what is wrong is named by its parameter."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model import commands as cm
from sessions.model.errors import BadInput
from transport.history_index import Unit
from transport.openai import request_models
from transport.openai.left_out import left_out
from transport.openai.parse_request import (
    chat_history,
    chat_sampling,
    chat_tools,
    input_units,
    response_sampling,
    response_tools,
)
from transport.openai.request_models import ChatRequest, ResponsesRequest

TOOL = {"name": "add", "parameters": {"type": "object", "properties": {}}}


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})


CALLING = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}]}
SEEN = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "content": "x", "tool_call_id": "c9"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "assistant"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].image_url"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "system", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([CALLING, {"role": "tool", "tool_call_id": "c", "content": SEEN}], "messages[1].content[1].type"),
        ([CALLING], "messages"),
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
        ({"type": "function_call", "call_id": "c", "arguments": ""}, "input[0].name"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[0].arguments"),
        ({"type": "made_up"}, "input[0].type"),
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


FOREIGN: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text"}], "encrypted_content": "x" * 100_000},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "local_shell_call", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}, "status": "completed"},
    {"type": "local_shell_call_output", "id": "c1", "output": {"exit": 0}},
    {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin Patch"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "output_text", "text": "Done"}]},
    {"type": "tool_search_call", "call_id": None, "arguments": {"query": "x"}, "execution": "client"},
    {"type": "tool_search_output", "tools": [{"type": "namespace"}]},
    {"type": "computer_call_output", "call_id": "c3", "output": {"type": "computer_screenshot"}},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "x", "name": "y", "arguments": "{}", "output": "z"},
    {"type": "image_generation_call", "result": "x" * 10_000},
    {"type": "ghost_snapshot", "ghost_commit": {"id": "1"}},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": None},
]


def test_items_of_tools_that_nobody_here_carries_out_are_left_out_whatever_they_hold() -> None:
    said = [{"role": "user", "content": "hi"}, *FOREIGN, {"role": "user", "content": "go on"}]
    request = ResponsesRequest.model_validate({"input": said})
    kept = [item for unit in input_units(request.input) for item in unit.items]
    assert [type(item) for item in kept] == [cm.NewMessage, cm.NewCall, cm.NewOutput, cm.NewMessage]
    names = left_out(request)
    assert names[0] == "input[2] (web_search_call)" and len(names) == len(FOREIGN) - 2


def test_thoughts_of_other_servers_models_are_left_out() -> None:
    parts = [
        {"type": "thinking", "thinking": "Hm.", "signature": "x" * 10_000},
        {"type": "redacted_thinking", "data": "x" * 10_000},
        {"type": "text", "text": "hello"},
    ]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": parts, "reasoning_content": "Hm."}]
    _, units = chat_history(chat(messages=messages).messages)
    assert units[1].items == (cm.NewMessage(role="assistant", content="hello"),)


@pytest.mark.parametrize(
    "answer",
    [
        {"content": None, "refusal": "I will not."},
        {"content": "", "refusal": "I will not."},
        {"content": [{"type": "refusal", "refusal": "I will not."}]},
        {"content": [{"type": "refusal", "refusal": "I will not."}], "refusal": "I will not."},
    ],
)
def test_a_refusal_in_a_history_is_the_answer_that_it_was(answer: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", **answer}]
    _, units = chat_history(chat(messages=messages).messages)
    assert units[1] == Unit((cm.NewMessage(role="assistant", content="I will not."),), answer=True)


def test_fields_of_functions_that_have_no_effect_are_named() -> None:
    """They were dropped, and nobody said so."""
    made_up = {**TOOL, "cache_control": {"type": "ephemeral"}, "examples": None, "max_calls": 3}
    tools = [
        {"type": "function", "function": each} for each in (TOOL, {**made_up, "name": "b"}, {**made_up, "name": "c"})
    ]
    names = ["tools[1].function.cache_control", "tools[1].function.max_calls"]
    assert left_out(chat(tools=tools)) == names
    given = ResponsesRequest.model_validate({"input": "hi", "tools": [{"type": "function", **made_up}]})
    assert left_out(given) == ["tools[0].cache_control", "tools[0].max_calls"]
    assert response_tools(given.tools)[0] == chat_tools(chat(tools=tools).tools)[0]


def test_fields_that_nobody_knows_inside_messages_and_parts_are_named_once() -> None:
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}, "annotations": []}
    body = chat(
        messages=[
            {"role": "user", "content": [part, part], "weight": 2, "made_up": None},
            {"role": "assistant", "content": "x", "weight": 1, "reasoning_content": "Hm.", "id": "1", "audio": None},
        ]
    )
    assert sorted(left_out(body)) == ["messages[0].content[0].cache_control", "messages[0].weight"]
    request = ResponsesRequest.model_validate({"input": [{"role": "user", "content": [part], "weight": 2}]})
    assert sorted(left_out(request)) == ["input[0].content[0].cache_control", "input[0].weight"]


def test_fields_that_nobody_knows_deeper_inside_a_request_are_named() -> None:
    """They were dropped, and nobody said so."""
    call = {"id": "c", "type": "function", "foo": 1, "function": {"name": "add", "arguments": "{}", "foo": 1}}
    file = {"type": "file", "file": {"file_id": "f", "foo": 1}}
    schema = {"name": "s", "schema": {}, "foo": 1}
    body = chat(
        messages=[
            {"role": "user", "content": [file]},
            {"role": "assistant", "tool_calls": [call], "provider_specific_fields": {"a": 1}},
            {"role": "tool", "tool_call_id": "c", "content": "2"},
        ],
        tools=[{"type": "function", "function": TOOL, "foo": 1}],
        tool_choice={"type": "function", "function": {"name": "add", "foo": 1}, "foo": 1},
        response_format={"type": "json_schema", "json_schema": schema, "foo": 1},
    )
    places = ["messages[0].content[0].file", "messages[1].tool_calls[0]", "messages[1].tool_calls[0].function"]
    places += ["response_format", "response_format.json_schema", "tool_choice", "tool_choice.function", "tools[0]"]
    assert sorted(left_out(body)) == [f"{place}.foo" for place in places]
    fields: dict[str, Any] = {
        "input": [
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "", "foo": 1}]}
        ],
        "tools": [{"type": "mcp", "server_label": "a", "foo": 1}],
        "tool_choice": {"type": "function", "name": "add", "foo": 1},
        "text": {"format": {"type": "json_schema", **schema}, "foo": 1},
    }
    places = ["input[0].output[0]", "text", "text.format", "tool_choice", "tools[0]"]
    assert sorted(left_out(ResponsesRequest.model_validate(fields))) == [f"{place}.foo" for place in places]


def test_a_file_search_that_is_sent_back_has_the_arguments_that_its_call_had() -> None:
    arguments = '{"query":"rates", "max_num_results":3}'
    item = {"type": "file_search_call", "id": "fs_1", "queries": ["rates"], "results": []}
    for given, expected in (({"arguments": arguments}, arguments), ({}, '{"query": "rates"}')):
        call, _ = input_units([request_models.InputItem.model_validate({**item, **given})])
        (new_call,) = call.items
        assert isinstance(new_call, cm.NewCall) and new_call.arguments == expected
