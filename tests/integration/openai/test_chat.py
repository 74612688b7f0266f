"""Chat completions by OpenAI's own SDK: whole and streamed, choices, usage, errors, and which session they land in."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from inference.simulated.vocabulary import decode
from sessions.model.events import ItemCreated
from tests.support.doors.openai_server import SIMULATED, Serving
from transport.history_index import GIVEN_MAX

HELLO: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "say something"}]


async def answer(client: openai.AsyncOpenAI, messages: list[Any], **more: Any) -> str:
    """One turn of a client that keeps the conversation; the answer is added to it."""
    completion = await client.chat.completions.create(model=SIMULATED, messages=messages, **more)
    message = completion.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    assert message.content is not None
    return str(message.content)


async def test_users_of_one_key_never_share_a_session(client: openai.AsyncOpenAI, server: Serving) -> None:
    conversations: dict[str, list[Any]] = {"ann": list(HELLO), "bob": list(HELLO)}
    seen: dict[str, set[str]] = {"ann": set(), "bob": set()}
    for turn in range(3):
        for user, messages in conversations.items():
            raw = await client.chat.completions.with_raw_response.create(model=SIMULATED, messages=messages, user=user)
            seen[user].add(raw.headers["x-session-id"])
            messages.append(raw.parse().choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": f"turn {turn}"})
    assert len(seen["ann"]) == len(seen["bob"]) == 1 and not seen["ann"] & seen["bob"]


async def test_a_plain_stream_has_data_lines_and_done_only(http: httpx.AsyncClient) -> None:
    body = {"model": SIMULATED, "messages": HELLO, "stream": True}
    plain = await http.post("/v1/chat/completions", json=body)
    assert plain.headers["content-type"].startswith("text/event-stream")
    assert plain.headers["x-request-id"]
    lines = [line for line in plain.text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    with_ids = await http.post("/v1/chat/completions", json=body, headers={"x-sessile-event-ids": "1"})
    assert any(line.startswith("id: ") for line in with_ids.text.split("\n"))


async def test_several_choices_share_their_question(client: openai.AsyncOpenAI, server: Serving) -> None:
    completion = await client.chat.completions.create(model=SIMULATED, messages=HELLO, n=3, temperature=1, seed=7)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in completion.choices}) == 3
    (session,) = server.sessions
    events = [record.event for record in server.log(session)]
    assert sum(isinstance(event, ItemCreated) for event in events) == 1
    stream = await client.chat.completions.create(
        model=SIMULATED, messages=HELLO, n=3, temperature=1, seed=7, stream=True
    )
    texts = ["", "", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in completion.choices]


async def test_limits_and_stops_end_an_answer_as_they_should(client: openai.AsyncOpenAI, server: Serving) -> None:
    short = await client.chat.completions.create(model=SIMULATED, messages=HELLO, max_completion_tokens=3)
    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None and short.usage.completion_tokens == 3
    server.engine.script.append("one two END three")
    stopped = await client.chat.completions.create(model=SIMULATED, messages=HELLO, stop=["END"])
    assert stopped.choices[0].message.content == "one two " and stopped.choices[0].finish_reason == "stop"


async def test_a_changed_history_branches_off_within_its_session(client: openai.AsyncOpenAI, server: Serving) -> None:
    messages = list(HELLO)
    await answer(client, messages)
    mine = [*messages, {"role": "user", "content": "go on"}]
    await answer(client, first := list(mine))
    second = [*mine[:-1], {"role": "user", "content": "go on otherwise"}]
    await asyncio.gather(answer(client, second), *(answer(client, list(mine)) for _ in range(3)))
    (session,) = server.sessions
    for told in (first, second):  # each of them goes on from its own words
        told.append({"role": "user", "content": "and then"})
        await answer(client, list(told))
        assert decode(server.engine.prompts[-1]) == "".join(message["content"] for message in told)
    assert server.sessions == [session]


async def test_so_many_branch_off_from_one_place_and_then_in_a_session_of_their_own(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    messages = list(HELLO)
    await answer(client, messages)
    places = 2 * GIVEN_MAX  # of the answer, then of what it answers
    for number in range(places + 1):
        await answer(client, [*messages, {"role": "user", "content": f"question {number}"}])
        assert len(server.sessions) == 1 + (number == places)


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "once"}])
async def test_a_session_that_is_full_is_gone_on_from_in_a_new_one(
    client: openai.AsyncOpenAI, server: Serving, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    messages = list(HELLO)
    await answer(client, messages)
    messages.append({"role": "user", "content": "go on"})
    monkeypatch.setattr("sessions.machine.machine.ITEMS_MAX", 2)
    await answer(client, messages, extra_headers=headers)
    messages.append({"role": "user", "content": "and on"})
    monkeypatch.setattr("sessions.machine.machine.ITEMS_MAX", 30)
    full, *_ = server.sessions
    items = sum(isinstance(record.event, ItemCreated) for record in server.log(full))
    await answer(client, messages)
    assert sum(isinstance(record.event, ItemCreated) for record in server.log(full)) == items
    assert decode(server.engine.prompts[-1]) == "".join(message["content"] for message in messages[:-1])


TYPELESS: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "nope"}}}
BAD: list[tuple[dict[str, Any], int, str, str]] = [
    ({"model": "other"}, 404, "model_not_found", "model"),
    ({"messages": []}, 400, "invalid_request", "messages"),
    ({"messages": None}, 400, "invalid_request", "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, 400, "invalid_request", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, 400, "invalid_request", "messages[0].content"),
    ({"nonsense": 1}, 400, "unknown_parameter", "nonsense"),
    ({"tools": [TYPELESS]}, 400, "invalid_request", "tools[0].function.parameters"),
    ({"tool_choice": "required"}, 400, "invalid_request", "tool_choice"),
    ({"stream_options": {"include_usage": True}}, 400, "invalid_request", "stream_options"),
]


async def test_bad_input_is_told_as_openai_does(http: httpx.AsyncClient) -> None:
    for change, status, code, param in BAD:
        answer = await http.post("/v1/chat/completions", json={"model": SIMULATED, "messages": HELLO, **change})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
        assert error["type"] == "invalid_request_error" and error["message"]


CONTINUED: list[dict[str, Any]] = [{"continue_final_message": True, "add_generation_prompt": False}, {}]


@pytest.mark.parametrize("more", CONTINUED)
async def test_an_answer_goes_on_with_the_words_of_the_last_message(
    client: openai.AsyncOpenAI, server: Serving, more: dict[str, Any]
) -> None:
    begun: Any = {"role": "assistant", "content": "The answer is"} | ({} if more else {"prefix": True})
    server.engine.script.append(" four.")
    messages: Any = [{"role": "user", "content": "2 + 2?"}, begun]
    done = await client.chat.completions.create(model=SIMULATED, messages=messages, extra_body=more)
    assert done.choices[0].message.content == " four."
    tokenizer = server.engine.tokenizer
    said = await tokenizer.text("The answer is")
    assert list(server.engine.prompts[-1])[-len(said) - len(tokenizer.answer_opening) :] == [
        *tokenizer.answer_opening,
        *said,
    ]


async def test_what_cannot_be_gone_on_with_is_refused(client: openai.AsyncOpenAI) -> None:
    mine, its = {"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (mine, CONTINUED[0], "messages[1].role"),
        ({**mine, "prefix": True}, {}, "messages[1].role"),
        (its, {"continue_final_message": True}, "add_generation_prompt"),
        (its, {"add_generation_prompt": False}, "add_generation_prompt"),
    ]
    for last, more, param in cases:
        messages: Any = [{"role": "user", "content": "2 + 2?"}, last]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=SIMULATED, messages=messages, extra_body=more)
        assert caught.value.param == param
