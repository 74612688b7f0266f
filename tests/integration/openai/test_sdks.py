"""OpenAI's own SDKs, Python and JavaScript, unchanged, against every kind of server: the same tests for all of them.

What a model says is its own business here; what is tested is what the API promises. The JavaScript suite is
`sdk.test.mjs`; both can be pointed at any server (`targets.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
import pytest_asyncio

from tests.support.doors.openai_targets import BLOCK, ELSEWHERE, ROOT, Target, target
from tests.support.node import WITH_NODE, node_modules

HERE = Path(__file__).parent
LONG = 400
SPARED = 32  # fewer tokens than that an engine computes again rather than save or restore them
HELLO: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say something about rivers."},
]
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
WEATHER_FLAT: Any = {"type": "function", "name": "weather", "parameters": CITY, "strict": False}
TARGETS = [
    pytest.param("simulated"),
    pytest.param("llama", marks=[pytest.mark.slow, pytest.mark.model]),
    pytest.param("cluster", marks=[pytest.mark.slow, pytest.mark.model, pytest.mark.cluster]),
    *([pytest.param("elsewhere")] if ELSEWHERE else []),
]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TARGETS)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    if request.param in ("llama", "cluster"):
        request.getfixturevalue("model_path")
    async with target(request.param) as made:
        yield made


class Asker(NamedTuple):
    place: Target
    client: openai.AsyncOpenAI
    model: str
    can: dict[str, bool]

    async def chat(self, messages: list[Any] = HELLO, **more: Any) -> Any:
        more = {"max_tokens": 8, "temperature": 0, **more}
        return await self.client.chat.completions.create(model=self.model, messages=messages, **more)

    async def respond(self, given: Any = "hello", **more: Any) -> Any:
        return await self.client.responses.create(
            model=self.model, input=given, **{"max_output_tokens": 8, "temperature": 0, **more}
        )

    def needs(self, capability: str) -> None:
        if not self.can[capability]:
            assert self.place.num_lacks is None, f"this model has {capability}"
            pytest.skip(f"the model says that it has no {capability}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ask(place: Target) -> AsyncIterator[Asker]:
    async with place.client() as client:
        model = (await client.models.list()).data[0]
        described: Any = await client.models.retrieve(model.id)
        assert described == model and described.context_window > 0
        yield Asker(place, client, model.id, described.capabilities)


def reusable(tokens: int) -> int:
    return tokens - tokens % BLOCK


def text(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_the_javascript_sdk(place: Target) -> None:
    await node_modules()
    process = await asyncio.create_subprocess_exec(
        *(WITH_NODE, "node", "--test", "--test-reporter=spec", str(HERE / "sdk.test.mjs")),
        cwd=ROOT,
        env={**os.environ, "SESSILE_TEST_BASE_URL": place.base_url, "SESSILE_TEST_KEY": place.key},
        stdout=PIPE,
        stderr=STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-12_000:]
    assert place.num_lacks is None or f"skipped {place.num_lacks}" in said.decode()


async def test_a_stream_says_what_the_whole_answer_says(ask: Asker) -> None:
    whole = await ask.chat()
    assert whole.choices[0].finish_reason in ("stop", "length") and whole.choices[0].message.content
    usage = whole.usage
    assert 0 < usage.completion_tokens <= 8 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    plain = [chunk async for chunk in await ask.chat(stream=True)]
    assert text(plain) == whole.choices[0].message.content
    assert all(chunk.choices and chunk.usage is None for chunk in plain)
    counted = [chunk async for chunk in await ask.chat(stream=True, stream_options={"include_usage": True})]
    assert counted[-1].choices == [] and counted[-1].usage.completion_tokens == usage.completion_tokens


async def test_a_history_that_is_resent_is_reused(ask: Asker) -> None:
    messages, sessions, before = list(HELLO), set(), 0
    for turn in range(4):
        raw = await ask.client.chat.completions.with_raw_response.create(
            model=ask.model, messages=messages, max_tokens=6, user="history"
        )
        done = raw.parse()
        assert raw.headers["x-request-id"].startswith("req_")
        sessions.add(raw.headers["x-session-id"])
        assert done.usage is not None and done.usage.prompt_tokens_details is not None
        if turn:
            assert (done.usage.prompt_tokens_details.cached_tokens or 0) >= reusable(before - 2)
        before = done.usage.total_tokens
        messages.append(done.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "user", "content": f"Tell me more ({turn})."})
    assert len(sessions) == 1


async def test_a_history_that_is_changed_costs_what_stands_behind_the_change(ask: Asker) -> None:
    """A question asked again, and one that is edited: both are branches of the conversation's own session."""
    messages: list[Any] = [*HELLO]
    told: list[int] = []  # tokens, up to each answer's end
    for turn in range(3):
        done = await ask.chat(messages, user="branches")
        told.append(done.usage.total_tokens)
        messages.append(done.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "user", "content": f"Tell me more ({turn}). " + "Name its fish and its towns. " * 12})
    again = await ask.chat(messages[:-2], user="branches")
    assert again.usage.prompt_tokens_details.cached_tokens >= reusable(told[1] - 2)
    assert again.choices[0].message.content
    edited = [*messages[:3], {"role": "user", "content": "And about lakes? " + "Name their birds and islands. " * 12}]
    other = await ask.chat(edited, user="branches")
    assert other.usage.prompt_tokens_details.cached_tokens >= reusable(told[0] - 2)
    edited += [other.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Why?"}]
    for history, before in ((messages, told[-1]), (edited, other.usage.total_tokens)):  # both go on
        more = await ask.chat(history, user="branches")
        assert more.usage.prompt_tokens_details.cached_tokens >= reusable(before - 2) - 2 * SPARED


async def test_a_repeated_key_gives_the_same_answer(ask: Asker) -> None:
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    first = await ask.chat(temperature=1, extra_headers=headers)
    assert await ask.chat(temperature=1, extra_headers=headers) == first
    with pytest.raises(openai.ConflictError):
        await ask.chat(temperature=1, max_tokens=9, extra_headers=headers)


async def test_tools(ask: Asker) -> None:
    ask.needs("tools")
    messages: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    first = await ask.chat(messages, tools=[WEATHER], tool_choice="required", max_tokens=60)
    (call,) = first.choices[0].message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    messages.append(first.choices[0].message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "18 degrees"})
    second = await ask.chat(messages, tools=[WEATHER], tool_choice="none")
    assert second.choices[0].message.content
    kept = await ask.respond(tools=[WEATHER_FLAT], tool_choice="required", max_output_tokens=60)
    output = {"type": "function_call_output", "call_id": kept.output[0].call_id, "output": "18 degrees"}
    after = await ask.respond([output], previous_response_id=kept.id, tools=[WEATHER_FLAT], tool_choice="none")
    assert after.output_text


async def test_structured_output(ask: Asker) -> None:
    ask.needs("structured_output")
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    done = await ask.chat(response_format=wanted, max_tokens=60)
    assert json.loads(done.choices[0].message.content)["city"] in ("Rome", "Oslo")


async def test_a_response_is_kept_streamed_and_erased(ask: Asker) -> None:
    async with ask.client.responses.stream(model=ask.model, input="hello", max_output_tokens=8) as stream:
        events: list[Any] = [event async for event in stream]
    kinds, final = [event.type for event in events], events[-1].response
    assert kinds[:2] == ["response.created", "response.in_progress"] and "response.output_text.delta" in kinds
    assert (await ask.client.responses.retrieve(final.id)).output_text == final.output_text
    more = await ask.respond("and then", previous_response_id=final.id)
    assert more.usage.input_tokens_details.cached_tokens >= reusable(final.usage.total_tokens - 2)
    assert len([item async for item in ask.client.responses.input_items.list(more.id)]) == 1
    await ask.client.responses.delete(final.id)
    with pytest.raises(openai.NotFoundError):
        await ask.client.responses.retrieve(final.id)


async def test_a_background_response_is_resumed_and_cancelled(ask: Asker) -> None:
    stream = await ask.respond(background=True, stream=True, max_output_tokens=60)
    events: list[Any] = []
    async for event in stream:
        events.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    response_id = events[0].response.id
    rest = await ask.client.responses.retrieve(response_id, stream=True, starting_after=events[-1].sequence_number)
    events += [event async for event in rest]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == (await ask.client.responses.retrieve(response_id)).output_text
    long = await ask.respond(background=True, max_output_tokens=LONG)
    assert long.status in ("queued", "in_progress")
    for _ in range(2):
        assert (await ask.client.responses.cancel(long.id)).status == "cancelled"


async def test_a_conversation(ask: Asker) -> None:
    conversations = ask.client.conversations
    made = await conversations.create(items=[{"type": "message", "role": "user", "content": "before"}])
    await ask.respond(conversation=made.id)
    items: list[Any] = [item async for item in conversations.items.list(made.id, order="asc", limit=2)]
    assert [item.role for item in items] == ["user", "user", "assistant"]
    assert (await conversations.update(made.id, metadata={"a": "b"})).metadata == {"a": "b"}
    await conversations.delete(made.id)
    with pytest.raises(openai.APIStatusError) as caught:
        await conversations.retrieve(made.id)
    assert caught.value.status_code in (404, 410)


async def test_errors(ask: Asker) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await ask.client.chat.completions.create(model="no-such-model", messages=HELLO)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model") and unknown.value.request_id
    with pytest.raises(openai.BadRequestError) as hot:
        await ask.chat(temperature=7)
    assert hot.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        await ask.client.responses.retrieve("resp_unknown")
