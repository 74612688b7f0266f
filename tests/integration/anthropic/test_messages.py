"""`/v1/messages` by Anthropic's own SDK: answers, streams, calls and their results, counts, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from inference.simulated import decode
from sessions.model.types import Principal, TenantId
from tests.support.doors.assembly import assembled
from tests.support.doors.openai_server import SIMULATED, Serving
from transport.auth.authenticator import key_digest

if TYPE_CHECKING:
    import anthropic

WEATHER: Any = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
KEYS = {key_digest("key-a"): Principal(tenant=TenantId("acme"), key_id="a", role="service", scopes=("chat", "read"))}
CALL = 'Let me see. <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TWO_CALLS = CALL + CALL.removeprefix("Let me see. ").replace("Rome", "Oslo")
ASK: list[Any] = [{"role": "user", "content": "how is the weather"}]


async def test_a_conversation_stays_in_one_session(client: anthropic.AsyncAnthropic, server: Serving) -> None:
    messages: list[Any] = list(ASK)
    before = 0
    for turn in range(3):
        done = await client.messages.create(model=SIMULATED, max_tokens=20, system="Be brief.", messages=messages)
        assert done.type == "message" and done.role == "assistant" and done.model == SIMULATED
        assert done.stop_reason in ("end_turn", "max_tokens") and done.id.startswith("msg_")
        (block,) = done.content
        assert block.type == "text" and block.text
        if turn:
            assert (done.usage.cache_read_input_tokens or 0) >= before - 2
        before = done.usage.input_tokens + (done.usage.cache_read_input_tokens or 0) + done.usage.output_tokens
        messages += [{"role": "assistant", "content": done.content}, {"role": "user", "content": f"more ({turn})"}]
    assert len(server.sessions) == 1


async def test_a_stream_says_what_the_whole_says(client: anthropic.AsyncAnthropic, server: Serving) -> None:
    server.engine.script += [TWO_CALLS, TWO_CALLS]
    whole = await client.messages.create(model=SIMULATED, max_tokens=400, messages=ASK, tools=[WEATHER])
    async with client.messages.stream(model=SIMULATED, max_tokens=400, messages=ASK, tools=[WEATHER]) as stream:
        kinds = [event.type async for event in stream]
        streamed = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["text", "tool_use", "tool_use"]
    bare = {"id"}
    assert [block.model_dump(exclude=bare) for block in streamed.content] == [
        block.model_dump(exclude=bare) for block in whole.content
    ]
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 0
    starts, stops = kinds.count("content_block_start"), kinds.count("content_block_stop")
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and starts == stops == 3


async def test_a_call_and_its_result(client: anthropic.AsyncAnthropic, server: Serving) -> None:
    import anthropic

    server.engine.script += [CALL, "Sunny."]
    first = await client.messages.create(model=SIMULATED, max_tokens=400, messages=ASK, tools=[WEATHER])
    call = first.content[1]
    assert call.type == "tool_use" and (call.name, call.input) == ("weather", {"city": "Rome"})
    result = {"type": "tool_result", "tool_use_id": call.id, "is_error": True, "content": "no such city"}
    messages: list[Any] = [
        *ASK,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    second = await client.messages.create(model=SIMULATED, max_tokens=99, messages=messages, tools=[WEATHER])
    assert second.content[0].type == "text" and second.content[0].text == "Sunny." and len(server.sessions) == 1
    assert second.usage.cache_read_input_tokens
    assert "Error: no such city" in decode(server.engine.prompts[-1])
    with pytest.raises(anthropic.BadRequestError, match="without `tool_result`"):
        await client.messages.create(model=SIMULATED, max_tokens=9, messages=messages[:-1], tools=[WEATHER])


async def test_a_choice_of_tools(client: anthropic.AsyncAnthropic, server: Serving) -> None:
    import anthropic

    choices: list[Any] = [{"type": "none"}, {"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "weather"}]
    for choice in choices:
        given: Any = {"model": SIMULATED, "max_tokens": 9, "messages": ASK, "tools": [WEATHER], "tool_choice": choice}
        await client.messages.create(**given)
    asked = [sampling.tool_choice for sampling in server.engine.asked]
    assert asked == ["none", "auto", "required", {"type": "function", "name": "weather"}]
    with pytest.raises(anthropic.BadRequestError, match="not among"):
        await client.messages.create(**{**given, "tool_choice": {"type": "tool", "name": "other"}})


async def test_an_answer_that_goes_on_from_words_in_front(client: anthropic.AsyncAnthropic, server: Serving) -> None:
    server.engine.script.append(" of a bridge.")
    messages: list[Any] = [*ASK, {"role": "assistant", "content": "I dream"}]
    done = await client.messages.create(model=SIMULATED, max_tokens=30, messages=messages)
    assert done.content[0].type == "text" and done.content[0].text == " of a bridge."


async def test_a_format_is_held(client: anthropic.AsyncAnthropic, server: Serving) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    wanted: Any = {"format": {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}}
    done = await client.messages.create(model=SIMULATED, max_tokens=99, messages=ASK, output_config=wanted)
    assert done.content[0].type == "text" and "Rome" in done.content[0].text


async def test_stop_sequences_and_limits(client: anthropic.AsyncAnthropic, server: Serving) -> None:
    server.engine.script += ["one two three", "one two three"]
    done = await client.messages.create(model=SIMULATED, max_tokens=99, messages=ASK, stop_sequences=[" three"])
    assert done.content[0].type == "text" and done.content[0].text == "one two" and done.stop_reason == "end_turn"
    cut = await client.messages.create(model=SIMULATED, max_tokens=3, messages=ASK)
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 3


async def test_documents_are_read(client: anthropic.AsyncAnthropic, server: Serving) -> None:
    text = {"type": "text", "media_type": "text/plain", "data": "The bridge is closed."}
    blocks = [{"type": "document", "title": "Notice", "source": text}, {"type": "text", "text": "Can I cross?"}]
    messages: list[Any] = [{"role": "user", "content": blocks}]
    await client.messages.create(model=SIMULATED, max_tokens=9, messages=messages)
    prompt = decode(server.engine.prompts[-1])
    assert "Notice\n\nThe bridge is closed.Can I cross?" in prompt


async def test_tokens_are_counted_as_they_are_billed(client: anthropic.AsyncAnthropic) -> None:
    given: Any = {"model": SIMULATED, "messages": ASK, "system": "Be brief.", "tools": [WEATHER]}
    counted = await client.messages.count_tokens(**given)
    done = await client.messages.create(**given, max_tokens=3)
    assert counted.input_tokens == done.usage.input_tokens + (done.usage.cache_read_input_tokens or 0)


async def test_models_are_listed(client: anthropic.AsyncAnthropic) -> None:
    (model,) = [each async for each in client.models.list()]
    assert model.id == SIMULATED and (await client.models.retrieve(SIMULATED)).display_name == SIMULATED


async def test_what_an_agent_sends_along_is_taken(client: anthropic.AsyncAnthropic, server: Serving) -> None:
    """As Claude Code writes it: a block of its own in front of the system prompt changes with every request."""
    sessions = set()
    for number in range(2):
        system: Any = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={number};"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ]
        raw = await client.messages.with_raw_response.create(
            model=SIMULATED,
            max_tokens=9,
            system=system,
            messages=[{"role": "user", "content": [{"type": "text", "text": f"hello {number}"}]}],
            metadata={"user_id": "user_1"},
            thinking={"type": "adaptive"},
            output_config={"effort": "high"},
            tools=[WEATHER, {"type": "web_search_20250305", "name": "web_search"}],
            extra_body={"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
        )
        warned = raw.headers["warning"]
        assert all(name in warned for name in ("thinking", "output_config.effort", "context_management", "tools[1]"))
        sessions.add(decode(server.engine.prompts[-1]).split("hello")[0])
    assert len(sessions) == 1  # the same words in front of both questions
    assert "billing" not in sessions.pop()


async def test_unknown_fields_inside_a_request_are_named(client: anthropic.AsyncAnthropic) -> None:
    cached = {"type": "ephemeral"}
    source = {"type": "text", "media_type": "text/plain", "data": "Closed.", "foo": 1}
    document = {"type": "document", "source": source, "citations": {"enabled": True}, "context": "A sign."}
    call = {"type": "tool_use", "id": "a", "name": "weather", "input": {}, "caller": {"type": "direct"}, "foo": 1}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "Sunny.", "bar": 1}]}
    quiet: Any = {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": cached}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": cached, "foo": None}]},
            {"role": "assistant", "content": [{"type": "text", "text": "hi", "citations": [{"type": "page"}]}]},
            *ASK,
        ],
        "tools": [{**WEATHER, "cache_control": cached}],
        "extra_body": {"client_metadata": {"turn": 1}},
    }
    told: Any = {
        "system": [{"type": "text", "text": "Be brief.", "sys": 1}],
        "messages": [
            {"role": "user", "content": [document], "foo": 1},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{**result, "foo": 1}, {"type": "text", "text": "And now?"}], "foo": 2},
        ],
        "tools": [{**WEATHER, "defer_loading": True}],
    }
    named = (
        *("tools[0].defer_loading", "system[0].sys", "messages[0].foo", "messages[0].content[0].citations"),
        *("messages[0].content[0].context", "messages[0].content[0].source.foo", "messages[1].content[0].foo"),
        "messages[2].content[0].content[0].bar",
    )
    raw = client.messages.with_raw_response
    elsewhere: Any = {"container": "c", "inference_geo": "eu", "service_tier": "priority"}
    foreign = await raw.create(model=SIMULATED, max_tokens=9, messages=ASK, extra_body=elsewhere)
    assert all(name in foreign.headers["warning"] for name in elsewhere), foreign.headers["warning"]
    usual = await raw.create(model=SIMULATED, max_tokens=9, messages=ASK, service_tier="standard_only")
    assert "warning" not in usual.headers
    assert "warning" not in (await raw.create(model=SIMULATED, max_tokens=9, **quiet)).headers
    for answer in (
        await raw.create(model=SIMULATED, max_tokens=9, **told),
        await raw.count_tokens(model=SIMULATED, **told),
    ):
        assert set(named) == ignored(answer)
    shape: Any = {"thinking": {"type": "disabled"}, "tool_choice": {"type": "none"}, "output_format": A_FORMAT}
    counted = await raw.count_tokens(
        model=SIMULATED, messages=ASK, extra_body={**shape, "output_config": {"format": A_FORMAT, "effort": "low"}}
    )
    assert {*shape, "output_config.format", "output_config.effort"} == ignored(counted), "only the answer has them"


def ignored(answer: Any) -> set[str]:
    """Returns the parameters that an answer's `Warning` names."""
    return set(answer.headers["warning"].split('"')[1].removeprefix("Parameters were ignored: ").split(", "))


A_FORMAT = {"type": "json_schema", "schema": {"type": "object"}}


TWICE = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}


async def test_what_is_wrong_is_named(client: anthropic.AsyncAnthropic) -> None:
    cases: list[tuple[Any, str]] = [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, "tool_use"),
        ({"mcp_servers": [{"type": "url", "url": "https://example.com"}]}, "MCP"),
        ({"tools": [{"name": "x"}]}, "input_schema"),
        ({"messages": [*ASK, {"role": "assistant", "content": [TWICE, TWICE]}]}, "unique"),
        ({"messages": [{"role": "user", "content": "x"}] * 4097}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 257}]}, "content"),
        ({"surprise": 1}, "surprise"),
    ]
    for change, said in cases:
        import anthropic

        given: Any = {"model": SIMULATED, "max_tokens": 9, "messages": ASK, **change}
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.post("/v1/messages", body=given, cast_to=httpx.Response)
        body: Any = caught.value.body
        assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
        assert said in body["error"]["message"] and body["request_id"] == caught.value.response.headers["x-request-id"]


async def test_other_refusals_have_their_type(client: anthropic.AsyncAnthropic) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError) as caught:
        await client.messages.create(model="other", max_tokens=9, messages=ASK)
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        await client.messages.create(
            model=SIMULATED, max_tokens=9, messages=[{"role": "user", "content": "x " * 20_000}]
        )


async def test_a_key_is_taken_from_either_header() -> None:
    import anthropic

    async with assembled(keys=KEYS) as made:
        url = made.server.url
        for given in ({"api_key": "key-a"}, {"auth_token": "key-a"}):
            async with anthropic.AsyncAnthropic(base_url=url, max_retries=0, **given) as client:  # type: ignore[arg-type]
                await client.messages.create(model=SIMULATED, max_tokens=3, messages=ASK)
        async with anthropic.AsyncAnthropic(base_url=url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await client.messages.create(model=SIMULATED, max_tokens=3, messages=ASK)
        body: Any = caught.value.body
        assert body["error"]["type"] == "authentication_error" and "wrong" not in caught.value.message
        assert body["error"].keys() == {"type", "message"}  # as Anthropic's own
