"""Tool calls by OpenAI's own SDK: called, streamed, answered, forced, and refused where they do not fit."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import openai
import pytest

from tests.support.doors.openai_server import SIMULATED, Serving

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = 'Let me see. <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
BARE = '{"name": "weather", "arguments": {"city": "Rome"}}'
ASK: list[Any] = [{"role": "user", "content": "how is the weather"}]


async def test_a_call_and_its_output_stay_in_one_session(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script += [CALL, "Sunny."]
    messages = list(ASK)
    first = await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see."
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and (call.function.name, call.function.arguments) == ("weather", '{"city": "Rome"}')
    messages.append(choice.message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "18 degrees"})
    second = await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    assert second.choices[0].message.content == "Sunny." and len(server.sessions) == 1
    assert second.usage is not None and second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens
    messages[-1] = {**messages[-1], "tool_call_id": "call_other"}
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    with pytest.raises(openai.BadRequestError, match="did not have response messages"):
        await client.chat.completions.create(model=SIMULATED, messages=messages[:-1], tools=[WEATHER])


async def test_a_history_with_calls_of_somebody_else_is_taken(client: openai.AsyncOpenAI, server: Serving) -> None:
    call = {"id": "call_x", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages: list[Any] = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_x", "content": "rain"},
    ]
    server.engine.script.append("It rains.")
    done = await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    assert done.choices[0].message.content == "It rains."


async def test_a_streamed_call(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script.append(CALL)
    stream = await client.chat.completions.create(model=SIMULATED, messages=ASK, tools=[WEATHER], stream=True)
    text, arguments, names, ends = "", "", [], []
    async for chunk in stream:
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        ends.append(choice.finish_reason)
        for call in choice.delta.tool_calls or ():
            assert call.index == 0 and call.function is not None
            arguments += call.function.arguments or ""
            if call.id is not None:
                names.append(call.function.name)
    assert (text, names, arguments, ends[-1]) == ("Let me see.", ["weather"], '{"city": "Rome"}', "tool_calls")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_a_call_that_must_be_made(client: openai.AsyncOpenAI, server: Serving, choice: Any) -> None:
    server.engine.script.append(BARE)
    done = await client.chat.completions.create(model=SIMULATED, messages=ASK, tools=[WEATHER], tool_choice=choice)
    message = done.choices[0].message
    assert message.content is None and message.tool_calls is not None and len(message.tool_calls) == 1
    (asked,) = server.engine.asked
    assert asked.text is not None and asked.text.format is not None and asked.text.format["type"] == "json_schema"


async def test_no_call_where_none_is_wanted(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script.append(CALL)
    done = await client.chat.completions.create(model=SIMULATED, messages=ASK, tools=[WEATHER], tool_choice="none")
    assert done.choices[0].message.content == CALL and done.choices[0].message.tool_calls is None


UNFIT = {
    "another type": ("weather", '{"city": 7}'),
    "left out": ("weather", "{}"),
    "a function that there is not": ("climate", '{"city": "Rome"}'),
    "no JSON": ("weather", '{"city": }'),
}


@pytest.mark.parametrize(("case", "stream"), [*((case, False) for case in UNFIT), ("another type", True)])
async def test_a_call_that_does_not_fit_is_its_clients_to_judge(
    client: openai.AsyncOpenAI, server: Serving, case: str, stream: bool
) -> None:
    """Over chat completions and responses: the agent answers with an error, and the model does better."""
    name, arguments = UNFIT[case]
    said = f'Let me see. <tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    server.engine.script += [said, CALL, said, "Sorry."]
    messages: list[Any] = list(ASK)
    first: Any
    if stream:
        async with client.chat.completions.stream(model=SIMULATED, messages=messages, tools=[WEATHER]) as events:
            first = await events.get_final_completion()
    else:
        first = await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and (call.function.name, call.function.arguments) == (name, arguments)
    assert choice.message.content == "Let me see."
    messages += [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "That did not work."},
    ]
    second = await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    assert second.choices[0].finish_reason == "tool_calls" and len(server.sessions) == 1

    function: Any = {"type": "function", **WEATHER["function"], "strict": False}
    begun = await client.responses.create(model=SIMULATED, input="how is it", tools=[function])
    assert begun.status == "completed"
    made = begun.output[-1]
    assert made.type == "function_call" and (made.name, made.arguments) == (name, arguments)
    output: Any = {"type": "function_call_output", "call_id": made.call_id, "output": "That did not work."}
    ended = await client.responses.create(
        model=SIMULATED, input=[output], previous_response_id=begun.id, tools=[function]
    )
    assert ended.output_text == "Sorry."


STRICT: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_strict_function_gets_arguments_that_fit_though_the_model_chose_freely(
    client: openai.AsyncOpenAI, server: Serving, stream: bool
) -> None:
    server.engine.script.append(CALL.replace('"Rome"', "7"))
    if stream:
        async with client.chat.completions.stream(model=SIMULATED, messages=ASK, tools=[STRICT]) as events:
            done: Any = await events.get_final_completion()
    else:
        done = await client.chat.completions.create(model=SIMULATED, messages=ASK, tools=[STRICT])
    (choice,) = done.choices
    assert (choice.message.content, choice.finish_reason) == ("Let me see.", "tool_calls")
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "x"}
    free, held = server.engine.asked
    assert free.text is None and held.text is not None and held.text.format is not None
    assert held.text.format["schema"]["properties"]["arguments"] == STRICT["function"]["parameters"]


async def test_an_engine_that_keeps_to_no_format_fails_the_call_of_a_strict_function(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    server.engine.script += [CALL.replace('"Rome"', "7"), '{"name": "weather", "arguments": {"city": 7}}']
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model=SIMULATED, messages=ASK, tools=[STRICT])
    assert caught.value.code == "tool_call_invalid"
    assert len(server.engine.asked) == 2


async def test_structured_output_reaches_the_engine(client: openai.AsyncOpenAI, server: Serving) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    server.engine.script.append('{"a": 1}')
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}}
    done = await client.chat.completions.create(model=SIMULATED, messages=ASK, response_format=wanted)
    assert done.choices[0].message.content == '{"a": 1}'
    (asked,) = server.engine.asked
    assert asked.text is not None and asked.text.format is not None and asked.text.format["schema"] == schema


SAID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": SIMULATED, "messages": ASK},
    "/v1/responses": {"model": SIMULATED, "input": "how is the weather"},
}


@pytest.mark.parametrize("path", SAID)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_agents_functions_work_beside_tools_that_nobody_here_carries_out(
    server: Serving, http: httpx.AsyncClient, path: str, stream: bool
) -> None:
    server.engine.script.append(CALL)
    function = WEATHER if "chat" in path else {"type": "function", **WEATHER["function"]}
    tools = [{"type": "custom", "name": "patch"}, function, {"type": "web_search"}, {"type": "local_shell"}]
    answer = await http.post(path, json={**SAID[path], "tools": tools, "stream": stream})
    pieces = re.findall(r'"arguments": ?"((?:[^"\\]|\\.)*)"', answer.text)  # a stream has several
    assert answer.status_code == 200 and "Rome" in "".join(pieces)
    told = "tools[0] (custom), tools[2] (web_search), tools[3] (local_shell)"
    assert answer.headers["warning"] == f'299 - "Parameters were ignored: {told}"'
    broken = [{"type": "custom", "name": "patch"}, {"type": "function", "function": {}}]
    refused = (await http.post(path, json={**SAID[path], "tools": broken})).json()["error"]
    name = "tools[1].function.name" if "chat" in path else "tools[1].name"
    assert (refused["code"], refused["param"]) == ("missing_required_parameter", name)
    chosen = {**SAID[path], "tools": tools, "tool_choice": {"type": "web_search"}}
    refused = (await http.post(path, json=chosen)).json()["error"]
    assert (refused["code"], refused["param"]) == ("unsupported_parameter", "tool_choice")


@pytest.mark.parametrize("path", SAID)
async def test_no_end_of_a_line_of_unicodes_stands_raw_in_a_stream(
    server: Serving, http: httpx.AsyncClient, path: str
) -> None:
    said = "one\u2028two\u2029three\u0085four"
    server.engine.script.append(said)
    answer = await http.post(path, json={**SAID[path], "stream": True})
    lines = answer.text.splitlines()
    assert all(line.startswith(("data: ", "event: ")) for line in lines if line)
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    if "chat" in path:
        assert "".join(each["choices"][0]["delta"].get("content") or "" for each in events) == said
    else:
        assert "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta") == said


async def test_a_seed_of_64_bits_reaches_the_engine_and_others_do_not_meet(
    server: Serving, http: httpx.AsyncClient
) -> None:
    seeds = [7, 2**31 + 7, 2**64 - 1, -(2**63), -1, -1]
    for path in SAID:
        server.engine.asked.clear()
        for seed in seeds:
            answer = await http.post(path, json={**SAID[path], "seed": seed, "top_p": 0})
            assert answer.status_code == 200, answer.text
        assert len({asked.seed for asked in server.engine.asked}) == len(seeds)
        assert all(asked.temperature == 0 for asked in server.engine.asked)
    too_large = await http.post(path, json={**SAID[path], "seed": 2**64})
    assert too_large.status_code == 400


async def test_a_schema_that_no_grammar_takes_is_refused_only_where_one_is_made(http: httpx.AsyncClient) -> None:
    """Claude Code offers a function with a `maxLength` of half a million to whoever answers."""
    schema = {"type": "object", "properties": {"script": {"type": "string", "maxLength": 524_288}}}
    function = {"name": "run", "parameters": schema}
    doors: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "/v1/chat/completions": ({"messages": ASK}, {"type": "function", "function": function}),
        "/v1/responses": ({"input": "hi", "store": False}, {"type": "function", **function}),
        "/v1/messages": ({"messages": ASK, "max_tokens": 50}, {"name": "run", "input_schema": schema}),
    }
    for path, (body, tool) in doors.items():
        request = {"model": SIMULATED, **body, "tools": [tool]}
        assert (await http.post(path, json=request)).status_code == 200, path
        forced = {"type": "any"} if path == "/v1/messages" else "required"
        refused = await http.post(path, json={**request, "tool_choice": forced})
        assert refused.status_code == 400 and "maxLength may be 100000 at most" in refused.text, path
