"""Clients that change a conversation before they resend it: what stands behind the first difference is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from tests.support.doors.openai_server import SIMULATED, Serving
from tests.support.rounds.openai_users import ResendingClient

Messages = list[dict[str, Any]]
TURNS = 6
ALTERED = 3  # the exchange that is changed
SPARE_TOKENS = 8  # what ends an answer and begins the next message, and where an answer is other tokens than its text


def _answer(text: Callable[[str], str]) -> Callable[[Messages], None]:
    def change(messages: Messages) -> None:
        answer = messages[2 * ALTERED + 1]
        answer["content"] = text(answer["content"])

    return change


def _drop(*places: int) -> Callable[[Messages], None]:
    def change(messages: Messages) -> None:
        for place in sorted(places, reverse=True):
            del messages[place]

    return change


CHANGES: dict[str, Callable[[Messages], None]] = {
    "white space trimmed": _answer(str.strip),
    "white space added": _answer(lambda text: text + "\n"),
    "cut where the reader pressed stop": _answer(lambda text: text[: len(text) // 2]),
    "emptied": _answer(lambda text: ""),
    "a dot in its place": _answer(lambda text: "."),
    "other words": _answer(lambda text: "I would rather not say."),
    "its beginning taken out": _answer(lambda text: text[len(text) // 2 :]),
    "the answer dropped": _drop(2 * ALTERED + 1),
    "the exchange dropped": _drop(2 * ALTERED, 2 * ALTERED + 1),
    "a question edited": lambda messages: messages[2 * ALTERED].update(content="Something else, please."),
    "a message put in": lambda messages: messages.insert(2 * ALTERED + 1, {"role": "user", "content": "And this."}),
    "an exchange put in": lambda messages: messages.__setitem__(
        slice(2 * ALTERED, 2 * ALTERED),
        [{"role": "user", "content": "Between."}, {"role": "assistant", "content": "Yes, between."}],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_only_what_stands_behind_the_first_difference_is_computed(
    client: openai.AsyncOpenAI, server: Serving, name: str
) -> None:
    one = ResendingClient(client, SIMULATED, f"Tell me about rivers ({name}).", max_tokens=24)
    server.engine.script.extend(
        f" Answer {number}, which has a number of words of its own. " for number in range(TURNS)
    )
    for number in range(TURNS):
        await one.turn(f"And question {number} about the things that you have just named?")
    other = one.branch(TURNS, None)
    other.messages = [dict(each) for each in other.messages]
    CHANGES[name](other.messages)
    async with httpx.AsyncClient(base_url=server.server.url) as http:
        before, after = [await tokens(http, messages) for messages in (one.messages[:-1], other.messages)]
    same = next(
        (at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    assert 0 < same < len(after) - 8
    await other.turn("")
    usage = other.usage[0]
    assert set(other.sessions) == set(one.sessions) and len(set(one.sessions)) == 1
    assert usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens <= len(after) - same + SPARE_TOKENS


@pytest.mark.parametrize("resent", ["", ".", "The first wor", None])
async def test_the_first_answer_stopped_and_resent_as_the_reader_saw_it(
    client: openai.AsyncOpenAI, resent: str | None
) -> None:
    opening: Any = {"role": "user", "content": f"A long question about many things, most of them wet ({resent})."}
    request: Any = {"model": SIMULATED, "max_tokens": 200}
    stream = await client.chat.completions.create(messages=[opening], stream=True, **request)
    session = stream.response.headers["x-session-id"]
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    await stream.close()
    answered: list[Any] = [] if resent is None else [{"role": "assistant", "content": resent}]
    messages: Any = [opening, *answered, {"role": "user", "content": "Go on."}]
    raw = await client.chat.completions.with_raw_response.create(messages=messages, **request)
    usage = raw.parse().usage
    assert raw.headers["x-session-id"] == session and usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > 20


async def tokens(http: httpx.AsyncClient, messages: Messages) -> list[int]:
    """The prompt as the model reads it."""
    answer = await http.post("/tokenize", json={"model": SIMULATED, "messages": messages})
    answer.raise_for_status()
    return list(answer.json()["tokens"])
