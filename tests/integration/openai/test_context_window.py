"""OpenAI's doors and the context window: what fits is answered, what does not is refused before anything is begun."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from inference.simulated import SimulatedOptions
from sessions.model import commands as cm
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, SessionId
from tests.support.doors.openai_server import SIMULATED, Serving

WINDOW = 4_096
LONG = "word " * 800  # several of them do not fit


@pytest.fixture
def options() -> SimulatedOptions:
    return SimulatedOptions(step_base_s=0.0001, answer_tokens_mean=0, context_window=WINDOW)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def tokens_of(client: openai.AsyncOpenAI, text: str) -> int:
    answer = await client.chat.completions.create(model=SIMULATED, messages=[user(text)], max_tokens=1)
    assert answer.usage is not None
    return answer.usage.prompt_tokens


async def filling(client: openai.AsyncOpenAI, tokens: int) -> str:
    """A text whose prompt takes nearly so many tokens, and not more."""
    one, two = await tokens_of(client, "word " * 500), await tokens_of(client, "word " * 1_000)
    return "word " * int(500 + (tokens - one) * 500 // (two - one))


def written(server: Serving) -> int:
    """The events of all sessions."""
    return sum(len(server.log(session)) for session in server.sessions)


def history(turns: int) -> list[Any]:
    said: list[Any] = []
    for number in range(turns):
        said += [user(f"{number} {LONG}"), {"role": "assistant", "content": "Yes."}]
    return [*said, user("And now?")]


@pytest.mark.parametrize("limit", [None, 1_000_000])
async def test_the_longest_answer_allowed_reserves_nothing(client: openai.AsyncOpenAI, limit: int | None) -> None:
    text = await filling(client, WINDOW - 300)
    request: dict[str, Any] = {"model": SIMULATED, "max_tokens": limit, "messages": [user(text)]}
    answer = await client.chat.completions.create(**request)
    assert answer.usage is not None and answer.usage.total_tokens == WINDOW
    assert answer.choices[0].finish_reason == "length", "it ends at the window"
    response = await client.responses.create(model=SIMULATED, input=text, max_output_tokens=limit)
    assert response.usage is not None and response.usage.total_tokens == WINDOW
    assert response.status == "incomplete"
    chunks = [chunk async for chunk in await client.chat.completions.create(**request, stream=True)]
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_a_generous_limit_leaves_nothing_of_the_history_out(client: openai.AsyncOpenAI) -> None:
    messages = [user(await filling(client, WINDOW - 500)), {"role": "assistant", "content": "Yes."}, user("And now?")]
    counts = []
    for limit in (1, 4_000):
        answer = await client.chat.completions.create(model=SIMULATED, messages=messages, max_tokens=limit)
        assert answer.usage is not None
        counts.append(answer.usage.prompt_tokens)
    assert counts[0] == counts[1] > WINDOW - 600


async def test_tools_that_take_most_of_the_window_are_taken(client: openai.AsyncOpenAI) -> None:
    def tools(words: int) -> Any:
        return [
            {"type": "function", "function": {"name": f"tool_{number}", "description": "word " * words}}
            for number in range(36)
        ]

    question = [user("What do I have to do next in my notes, please?")]
    small = await client.chat.completions.create(model=SIMULATED, messages=question, tools=tools(1), max_tokens=1)
    more = await client.chat.completions.create(model=SIMULATED, messages=question, tools=tools(2), max_tokens=1)
    assert small.usage is not None and more.usage is not None
    each = more.usage.prompt_tokens - small.usage.prompt_tokens
    words = 1 + (WINDOW - 260 - small.usage.prompt_tokens) // each
    answer = await client.chat.completions.create(model=SIMULATED, messages=question, tools=tools(words))
    assert answer.usage is not None and answer.usage.prompt_tokens > WINDOW * 3 // 4

    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=SIMULATED, messages=question, tools=tools(words + 40))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "tools")
    takes = caught.value.message
    assert "tools " in takes and "newest message " in takes and "instructions" not in takes and "history" not in takes
    assert "truncation" not in takes and "context_policy" not in takes


async def test_instructions_that_take_most_of_the_window_are_named(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    long, question = "word " * WINDOW, [user("And now?")]
    with pytest.raises(openai.BadRequestError) as chat:
        await client.chat.completions.create(model=SIMULATED, messages=[{"role": "system", "content": long}, *question])
    with pytest.raises(openai.BadRequestError) as response:
        await client.responses.create(model=SIMULATED, input="And now?", instructions=long)
    for caught, param in ((chat, "messages"), (response, "instructions")):
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)
        assert "By part: instructions " in caught.value.message
    body = {"model": SIMULATED, "max_tokens": 9, "system": long, "messages": question}
    error = (await http.post("/v1/messages", json=body)).json()["error"]
    assert error["param"] == "system" and error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("truncation", [None, "disabled"])
async def test_what_forbids_to_leave_turns_out_is_named_where_it_was_sent(
    client: openai.AsyncOpenAI, truncation: str | None
) -> None:
    sent: Any = {} if truncation is None else {"truncation": truncation}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=SIMULATED, messages=history(6), extra_body=sent)
    assert ("`truncation` is `disabled`" in caught.value.message) is (truncation is not None)
    assert "context_policy" not in caught.value.message and "history " in caught.value.message


@pytest.mark.parametrize("stream", [False, True])
async def test_a_history_longer_than_the_window_is_refused_and_nothing_is_begun(
    client: openai.AsyncOpenAI, server: Serving, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=SIMULATED, messages=history(6), stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model=SIMULATED, input=history(6), stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    assert not written(server) and not server.usage and not server.engine.prompts


async def test_where_truncation_is_requested_the_answer_says_what_is_left_out(client: openai.AsyncOpenAI) -> None:
    request: Any = {"model": SIMULATED, "messages": history(6), "max_tokens": 4, "extra_body": {"truncation": "auto"}}
    whole = await client.chat.completions.with_raw_response.create(**request)
    left_out = int(whole.headers["x-sessile-items-left-out"])
    assert left_out and whole.parse().to_dict()["items_left_out"] == left_out
    streamed = await client.chat.completions.with_raw_response.create(**request, stream=True)
    assert int(streamed.headers["x-sessile-items-left-out"]) == left_out
    assert await anext(chunk.to_dict()["items_left_out"] async for chunk in streamed.parse()) == left_out

    asked: Any = {"model": SIMULATED, "input": history(6), "max_output_tokens": 16, "truncation": "auto"}
    response = await client.responses.with_raw_response.create(**asked)
    shown = response.parse().to_dict()
    assert int(response.headers["x-sessile-items-left-out"]) == shown["items_left_out"] == left_out
    assert shown["truncation"] == "auto"
    events = await client.responses.with_raw_response.create(**asked, stream=True)
    assert int(events.headers["x-sessile-items-left-out"]) == left_out
    first = await anext(event.to_dict() async for event in events.parse())
    assert isinstance(first["response"], dict) and first["response"]["items_left_out"] == left_out


async def test_what_fits_says_nothing_of_truncation(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.with_raw_response.create(
        model=SIMULATED, messages=[user("Hello")], max_tokens=4, extra_body={"truncation": "auto"}
    )
    assert "x-sessile-items-left-out" not in answer.headers and "items_left_out" not in answer.parse().to_dict()


@pytest.mark.parametrize("conversation", [False, True])
async def test_a_chain_that_outgrows_the_window_is_refused_and_goes_on_afterwards(
    client: openai.AsyncOpenAI, server: Serving, conversation: bool
) -> None:
    where: dict[str, Any] = {}
    if conversation:
        where = {"conversation": (await client.conversations.create()).id}
    answers = 0
    while True:
        try:
            response = await client.responses.create(
                model=SIMULATED, input=f"{answers} {LONG}", max_output_tokens=16, **where
            )
        except openai.BadRequestError as error:
            refused = error
            break
        assert response.status == "incomplete" and response.truncation == "disabled"
        answers += 1
        if not conversation:
            where = {"previous_response_id": response.id}
    assert (refused.code, refused.param) == ("context_length_exceeded", "input")
    assert answers > 1 and server.usage == answers, "what was refused is not billed"
    again = await client.responses.create(model=SIMULATED, input="Short.", max_output_tokens=16, **where)
    assert again.status == "incomplete"
    assert again.usage is not None and again.usage.input_tokens > WINDOW // 2
    cut = await client.responses.create(model=SIMULATED, input=LONG, max_output_tokens=16, truncation="auto", **where)
    assert cut.to_dict()["items_left_out"]


async def test_what_cannot_be_begun_is_not_stored(client: openai.AsyncOpenAI, server: Serving) -> None:
    first = await client.responses.create(model=SIMULATED, input="Hello", max_output_tokens=16)
    for more in ({}, {"stream": True}, {"background": True}, {"previous_response_id": first.id}):
        before = server.usage, written(server)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model=SIMULATED, input="word " * 20_000, **more)
        assert caught.value.code == "context_length_exceeded"
        assert (server.usage, written(server)) == before
    behind = await client.responses.create(
        model=SIMULATED, input="Still there?", previous_response_id=first.id, max_output_tokens=16
    )
    assert behind.status == "incomplete"


async def test_an_explicit_refusal_of_truncation_holds_whatever_the_session_says(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    session = (await client.conversations.create()).id
    update = cm.SessionUpdate(id=CommandId("policy"), session=SessionId(session), context_policy="truncate")
    await server.gateway.execute(LOCAL_PRINCIPAL, update)
    where: Any = {"conversation": session, "model": SIMULATED, "max_output_tokens": 16}
    for number in range(6):
        await client.responses.create(input=f"{number} {LONG}", **where)
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(input=LONG, truncation="disabled", **where)
    answer = await client.responses.create(input=LONG, **where)
    assert answer.to_dict()["items_left_out"]
