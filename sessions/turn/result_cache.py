"""Answers of deterministic requests, kept to be given again without an engine: what names one, how it is recorded while
an engine writes it, and how it is replayed.

    sampling is deterministic ─► name of the whole request ─► found: replayed as what an engine would have made
                                                          └─► not found: recorded, and stored once the answer is durable

What is kept is the engine's own output, before stop strings and filters: a replay passes through today's output
pipeline like any run, and its ledger is the same tokens. Only an answer that one run wrote whole, that ended by itself
and that no filter had a word about is kept.

Pure, but for the port at the end. Does not know where answers lie, keys, or how long they are kept (`actors.results`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Literal, Protocol

import msgspec

from sessions.machine.state import Open
from sessions.model.generation import RAW_PROMPT, Chunk, EngineInfo, Finish, drawn_seed
from sessions.model.types import Json, Principal, SessionId, SessionKey, TenantId, Tool
from sessions.turn.ledger import PromptPlan

FORMAT: Final = 1  # of names and of what is stored: another one finds nothing
ANSWER_BYTES_MAX: Final = 1 << 20
BREATH: Final = 64  # chunks that are replayed before others have their turn

CacheOutcome = Literal["hit", "miss"]
Part = tuple[tuple[int, ...], str, tuple[Json, ...]]  # tokens, their text, their log probabilities


class CachedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What an engine wrote, chunk by chunk."""

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(text for _, text, _ in self.parts)


# -- what names an answer ---------------------------------------------------------------------------------------------


def is_deterministic(open_: Open) -> bool:
    """The same request is to have the same answer: it is sampled at temperature 0, or its client chose the seed."""
    sampling = open_.sampling
    return sampling.temperature == 0 or sampling.seed != drawn_seed(open_.id)


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer depends on beside its response and its prompt."""

    engine: EngineInfo  # of the model that writes
    tokenizer: str  # its fingerprint
    policy: str  # the version of the filters in force
    tools: tuple[Tool, ...] = ()
    adapter: str = ""  # none is chosen per request yet


def request_name(open_: Open, plan: PromptPlan, context: RequestContext) -> bytes:
    """Bytes that are equal exactly when two requests of a tenant are to have the same answer. Every field is encoded
    with its length: none can run into the next one."""
    sampling, engine = open_.sampling, context.engine
    if sampling.seed == drawn_seed(open_.id):
        sampling = msgspec.structs.replace(sampling, seed=None)
    request = open_.body.request
    return msgspec.msgpack.encode(
        (
            FORMAT,
            (engine.model, engine.build, engine.model_fingerprint, context.adapter, context.tokenizer),
            context.policy,
            plan.prompt.tobytes(),
            plan.max_tokens,
            isinstance(request, dict) and bool(request.get(RAW_PROMPT)),
            sampling,
            context.tools,
        ),
        order="deterministic",
    )


# -- recording and replaying ------------------------------------------------------------------------------------------


class AnswerRecorder:
    """Records what an engine writes. `close` it when the answer has ended by itself; `discard` it when it is not to be
    given to anybody else."""

    def __init__(self) -> None:
        self._parts: list[Part] | None = []
        self._bytes = 0
        self.answer: CachedAnswer | None = None

    def add(self, chunk: Chunk) -> None:
        if self._parts is None:
            return
        self._parts.append((chunk.tokens, chunk.text, chunk.logprobs))
        self._bytes += 8 * len(chunk.tokens) + len(chunk.text) + 256 * len(chunk.logprobs)
        if self._bytes > ANSWER_BYTES_MAX:
            self.discard()

    def discard(self) -> None:
        self._parts = self.answer = None

    def close(self) -> None:
        if self._parts:
            self.answer = CachedAnswer(tuple(self._parts))


async def replay(answer: CachedAnswer, num_prompt: int) -> AsyncGenerator[Chunk | Finish, None]:
    """Yields what an engine would, had it computed nothing of the prompt."""
    for number, (tokens, text, logprobs) in enumerate(answer.parts, 1):
        if not number % BREATH:
            await asyncio.sleep(0)
        yield Chunk(tokens, text, logprobs, num_prompt)
    yield Finish("stop", num_prompt, num_prompt)


class ResultLookup:
    """What the cache says of one response: its answer, or the place where it is to be put. `revoked` once something of
    its session, or its tenant, was forgotten: then nothing is put there. `stored` once it was."""

    __slots__ = ("__weakref__", "answer", "name", "plan", "recorder", "revoked", "session", "stored", "tenant")

    def __init__(self, key: SessionKey, name: bytes, plan: PromptPlan, answer: CachedAnswer | None) -> None:
        self.tenant: TenantId = key.tenant
        self.session: SessionId = key.session
        self.name = name
        self.plan = plan
        self.answer = answer
        self.recorder = AnswerRecorder() if answer is None else None
        self.revoked = False
        self.stored = False

    @property
    def outcome(self) -> CacheOutcome:
        return "miss" if self.answer is None else "hit"


class ResultCache(Protocol):
    """Keeps answers, each for the tenant it was written for. What cannot be found is a miss, what cannot be stored is
    left out."""

    def serves(self, tenant: TenantId) -> bool:
        """Whether the tenant has chosen that answers are given again."""
        ...

    async def find(self, key: SessionKey, request: bytes, plan: PromptPlan) -> ResultLookup:
        """`request`: its name, of `request_name`."""
        ...

    async def store(self, lookup: ResultLookup, principal: Principal, texts: Sequence[str]) -> None:
        """Keeps what `lookup` has recorded, unless something in `texts`, which it was made of, or in itself is
        personal."""
        ...

    async def forget_session(self, key: SessionKey) -> None:
        """Drops what came from a session, and what of it is still being written."""
        ...

    async def forget_tenant(self, tenant: TenantId) -> None:
        """Drops all that is the tenant's. Raises Unavailable, OutcomeUnknown."""
        ...
