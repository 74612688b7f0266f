"""The engines that the contract suite runs on, and the few words that its tests are written in.

`World.engine()` starts one more engine of the same kind: a second replica, or the same one after a restart. Everything
that was started is closed at the end, and must have given all its slots back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inference.brownout_engine import make_brownout_engine
from inference.kv.cost import CostModel, RestoreChoice
from inference.llama import LlamaEngine, LlamaOptions
from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import OPENINGS, ResponseId, Sampling, SessionId, SessionKey, TenantId, Tokens
from sessions.ports import ChatMessage, Engine

SLOTS = 2
WINDOW = 1024
GREEDY = Sampling(temperature=0)
WAITING_MAX = 4


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


class AlwaysRestores(CostModel):
    """Restores where a busy machine's clock might advise against it: what is tested here is that it comes out right."""

    def choose(self, tiers: tuple[str, ...], num_bytes: int, begin: int, end: int, now_s: float) -> RestoreChoice:
        return RestoreChoice(True, 0.0, 1.0, 30.0)

    def is_worth_saving(self, num_bytes: int, begin: int, end: int, now_s: float) -> bool:
        return True


class World:
    """One kind of engine. Subclasses say how to start one."""

    name = ""
    block_tokens = 1  # the unit in which KV is kept and reused

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._engines: list[Engine] = []

    def whole(self, tokens: int) -> int:
        """What of so many tokens can be reused."""
        return tokens - tokens % self.block_tokens

    def _make(self, waiting_max: int) -> Engine:
        raise NotImplementedError

    async def engine(self, *, waiting_max: int = WAITING_MAX) -> Engine:
        engine = self._make(waiting_max)
        self._engines.append(engine)
        await engine.start()
        return engine

    async def close(self) -> None:
        for engine in self._engines:
            stats = engine.stats()
            assert (stats.running, stats.waiting) == (0, 0), "a test left something running"
            await engine.close()


class SimulatedWorld(World):
    name = "simulated"

    def _make(self, waiting_max: int) -> Engine:
        return SimulatedEngine(
            SimulatedOptions(
                slots=SLOTS,
                context_window=WINDOW,
                kv_tokens_max=8 * WINDOW,
                waiting_max=waiting_max,
                step_base_s=0.001,
                answer_tokens_mean=60,
            )
        )


class SwitchingWorld(SimulatedWorld):
    """A model with a smaller one beside it that nobody asks for: it does all that the model alone does."""

    def _make(self, waiting_max: int) -> Engine:
        main = super()._make(waiting_max)
        assert isinstance(main, SimulatedEngine)
        return make_brownout_engine(main, lambda _: SimulatedEngine(main.options.smaller("smaller", 4.0, 1)))


class LlamaWorld(World):
    """Takes engines that other tests have left `idle`, and leaves its own there without a session: to start one takes
    more than a second."""

    name = "llama"

    def __init__(
        self, folder: Path, model_path: Path, *, chat_template: str | None = None, idle: list[Engine] | None = None
    ) -> None:
        super().__init__(folder)
        self.model_path = model_path
        self.chat_template = chat_template
        self._idle = idle

    def _make(self, waiting_max: int) -> Engine:
        return LlamaEngine(
            LlamaOptions(
                model_path=self.model_path,
                slots=SLOTS,
                context_window=WINDOW,
                chat_template=self.chat_template,
                waiting_max=waiting_max,
                spill_tokens_min=16,
                disk_folder=self.folder / f"kv{len(self._engines)}",
            ),
            cost=AlwaysRestores(),
        )

    async def engine(self, *, waiting_max: int = WAITING_MAX) -> Engine:
        if not self._idle or waiting_max != WAITING_MAX:
            return await super().engine(waiting_max=waiting_max)
        self._engines.append(self._idle.pop())
        return self._engines[-1]

    async def close(self) -> None:
        for engine in self._engines:
            assert isinstance(engine, LlamaEngine)
            if self._idle is not None and engine._unavailable is None and engine.options.waiting_max == WAITING_MAX:
                held = engine.held_sessions()
                for who in held | {SessionKey(each.tenant, OPENINGS) for each in held}:
                    await engine.release(who)
                assert (engine.stats().running, engine.stats().waiting) == (0, 0), "a test left something running"
                self._idle.append(engine)
        self._engines = [engine for engine in self._engines if engine not in (self._idle or ())]
        await super().close()


# -- words -----------------------------------------------------------------------------------------


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
