"""The few words in which tests and benches drive an engine in their own process, as an actor would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import ResponseId, Sampling, SessionId, SessionKey, TenantId, Tokens
from sessions.ports import ChatMessage, Engine

GREEDY = Sampling(temperature=0)


def key(session: str, tenant: str = "t") -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(session))


class Answer(msgspec.Struct, frozen=True):
    chunks: tuple[Chunk, ...]
    finish: Finish

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk.tokens)

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)


async def prompt_of(engine: Engine, text: str, *, before: Sequence[int] = ()) -> tuple[int, ...]:
    """A conversation that asks `text`, after `before` if there was something."""
    tokenizer = engine.tokenizer
    opening = tuple(before) or tuple(await tokenizer.opening("Answer briefly.", ()))
    message = await tokenizer.message(ChatMessage(role="user", text=text))
    return (*opening, *message, *tokenizer.answer_opening)


async def follow_up(engine: Engine, prompt: Sequence[int], answer: Answer, text: str) -> tuple[int, ...]:
    """The next turn's prompt: everything so far, the answer closed, and the next question."""
    return await prompt_of(engine, text, before=(*prompt, *answer.tokens, *engine.tokenizer.answer_closing))


def request(
    who: SessionKey,
    prompt: Tokens,
    *,
    max_tokens: int = 12,
    sampling: Sampling = GREEDY,
    seed: int = 7,
    **other: Any,
) -> GenerationRequest:
    return GenerationRequest(
        key=who,
        response_id=ResponseId("resp"),
        generation=1,
        prompt=prompt,
        sampling=sampling,
        seed=seed,
        max_tokens=max_tokens,
        **other,
    )


async def collect(stream: AsyncIterator[Chunk | Finish]) -> Answer:
    items = [item async for item in stream]
    *chunks, finish = items
    assert isinstance(finish, Finish)
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    assert {chunk.cached_tokens for chunk in chunks} <= {finish.cached_tokens}, "each chunk says what the end says"
    return Answer(tuple(chunk for chunk in chunks if isinstance(chunk, Chunk)), finish)


async def ask(engine: Engine, who: SessionKey, prompt: Tokens, **options: Any) -> Answer:
    return await collect(engine.generate(request(who, prompt, **options)))


class Opened:
    """A stream that has begun and is held open."""

    def __init__(self, stream: AsyncIterator[Chunk | Finish], first: Chunk) -> None:
        self.stream = stream
        self.first = first

    async def drain(self) -> None:
        async for _ in self.stream:
            continue

    async def abort(self) -> None:
        await self.stream.aclose()  # type: ignore[attr-defined]


async def open_stream(engine: Engine, who: SessionKey, prompt: Tokens, **options: Any) -> Opened:
    stream = engine.generate(request(who, prompt, **({"max_tokens": 900} | options)))
    first = await anext(stream)
    assert isinstance(first, Chunk)
    return Opened(stream, first)


async def until(condition: Callable[[], bool], patience_s: float = 60.0) -> None:
    """Gives the loop turns until something is true of the engine's own books."""
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 - nobody rings for an engine's own books
            await asyncio.sleep(0)
