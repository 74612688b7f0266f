"""Answers of deterministic requests, stored to be given again without an engine: how their names are made, how an
answer is recorded while an engine writes it, and how it is replayed.

A request is looked up once, after admission and with the prompt that the session's own ledger has planned. The engine's
own output is stored, before stop strings and filters: a replay passes through the present output pipeline like every
run. An answer is stored only if one run wrote all of it, it ended by itself, and no filter found anything in it.

Pure, except for the port at the end. Does not know where answers are stored, keys, or how long they are kept
(`actors.results`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Literal, Protocol

import msgspec

from sessions.machine.state import Open
from sessions.model.generation import RAW_PROMPT, Chunk, EngineInfo, Finish, drawn_seed
from sessions.model.types import Json, Principal, SessionKey, TenantId, Tool
from sessions.turn.ledger import PromptPlan

FORMAT: Final = 1  # version of names and of what is stored: another version finds nothing
ANSWER_BYTES_MAX: Final = 1 << 20
BREATH: Final = 64  # chunks that are replayed before others have their turn

CacheOutcome = Literal["hit", "miss"]
Part = tuple[tuple[int, ...], str, tuple[Json, ...]]  # tokens, their text, their log probabilities


class CachedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """An engine's output, chunk by chunk, as the result cache keeps it."""

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(text for _, text, _ in self.parts)


def is_deterministic(open_: Open) -> bool:
    """Returns whether equal requests have equal answers: temperature is 0, or the client chose the seed."""
    return open_.sampling.temperature == 0 or open_.sampling.seed != drawn_seed(open_.id)


def request_name(
    open_: Open,
    plan: PromptPlan,
    engine: EngineInfo,
    *,
    tokenizer: str,
    policy: str,
    tools: tuple[Tool, ...],
    adapter: str = "",
) -> bytes:
    """Returns bytes that are equal exactly for those requests of a tenant that have the same answer. `tokenizer` is the
    fingerprint of tokenizer and chat template, `policy` the version of the filters in force. Every field is encoded
    with its length, so none runs into the next. No adapter is chosen per request yet."""
    sampling, request = open_.sampling, open_.body.request
    if sampling.seed == drawn_seed(open_.id):
        sampling = msgspec.structs.replace(sampling, seed=None)
    model = engine.model, engine.build, engine.model_fingerprint, adapter, tokenizer
    raw = isinstance(request, dict) and bool(request.get(RAW_PROMPT))
    named = FORMAT, model, policy, plan.prompt.tobytes(), plan.max_tokens, raw, sampling, tools
    return msgspec.msgpack.encode(named, order="deterministic")


async def replay(answer: CachedAnswer, num_prompt: int) -> AsyncGenerator[Chunk | Finish, None]:
    """Yields a cached answer as an engine would yield it that has KV for the whole prompt."""
    for number, (tokens, text, logprobs) in enumerate(answer.parts, 1):
        if not number % BREATH:
            await asyncio.sleep(0)
        yield Chunk(tokens, text, logprobs, num_prompt)
    yield Finish("stop", num_prompt, num_prompt)


class ResultLookup:
    """One run's lookup in the result cache: the cached answer, or, if there is none, the record of what the engine
    writes. Once it is `revoked`, because the session's or tenant's answers were forgotten, nothing is stored."""

    def __init__(self, key: SessionKey, name: bytes, plan: PromptPlan, answer: CachedAnswer | None) -> None:
        self.key, self.name, self.plan, self.answer = key, name, plan, answer
        self.recorded: CachedAnswer | None = None  # set when the engine has ended the answer by itself
        self.revoked = False
        self._parts: list[Part] | None = [] if answer is None else None
        self._bytes = 0

    @property
    def outcome(self) -> CacheOutcome:
        return "miss" if self.answer is None else "hit"

    def record(self, chunk: Chunk) -> None:
        """Adds a chunk that the engine has written to the record; gives the record up if it becomes too large."""
        if self._parts is None:
            return
        self._parts.append((chunk.tokens, chunk.text, chunk.logprobs))
        self._bytes += 8 * len(chunk.tokens) + len(chunk.text) + 256 * len(chunk.logprobs)
        if self._bytes > ANSWER_BYTES_MAX:
            self.discard()

    def discard(self) -> None:
        """Stops recording this run; nothing of it is stored."""
        self._parts = None

    def close(self) -> None:
        """Completes the record, because the answer has ended by itself."""
        if self._parts:
            self.recorded = CachedAnswer(tuple(self._parts))


class ResultCache(Protocol):
    """Stores answers, separately for each tenant. A failed lookup counts as a miss; an answer that cannot be stored is
    not stored, without an error."""

    def serves(self, tenant: TenantId) -> bool:
        """Returns whether the tenant has turned the result cache on."""
        ...

    async def find(self, key: SessionKey, request: bytes, plan: PromptPlan) -> ResultLookup: ...

    async def store(self, lookup: ResultLookup, principal: Principal, texts: Sequence[str]) -> None:
        """Stores the recorded answer, unless it, or one of the `texts` from which it was made, is personal."""
        ...

    async def forget_session(self, key: SessionKey) -> None: ...

    async def forget_tenant(self, tenant: TenantId) -> None:
        """Forgets all answers of a tenant. Raises Unavailable, OutcomeUnknown."""
        ...
