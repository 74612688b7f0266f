"""The packaged model behind its processes: what is short goes one way, what is long another, tenants in turns.

Two lanes, each a process with a queue: questions (a few short texts, which somebody waits for) and everything else,
niced all the way. A request is cut into batches of about `BATCH_TOKENS`, and every batch takes its turn by itself
(`inference.fair_queue`): a tenant with a thousand chunks holds nobody up for longer than a batch. A request whose
batches do not fit into the room that is left is refused as a whole, before any of it runs.

A caller that leaves takes its waiting batches along; the one that runs is finished and dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, TypeVar

import structlog

from inference.embedding.frames import (
    DecodeTokens,
    EmbedBatch,
    EmbeddingReply,
    RankBatch,
    SplitText,
    WorkerRequest,
    embeddings_unavailable,
    read_reply,
)
from inference.embedding.packaged import MODEL
from inference.fair_queue import FairQueue, SlotClaim
from inference.worker_pool import PoolErrors, WorkerCommand, WorkerEnded, WorkerPool
from sessions.metrics import Histogram
from sessions.model.errors import BadInput, Overloaded, SessileError, Unavailable
from sessions.model.types import TenantId
from sessions.retrieval.embedding import EmbeddingInput, EmbeddingModel, Embeddings, Ranking, TokenSpans

QUICK_CHARACTERS: Final = 2_000
QUICK_INPUTS: Final = 4
QUICK_NICENESS: Final = 5
BULK_NICENESS: Final = 19
BATCH_TOKENS: Final = 256
HANG_S: Final = 120.0  # until a worker is ended that has not answered
START_S: Final = 120.0  # at the lowest priority, on a machine that is busy
WAITING_MAX: Final = 2_048  # batches of a lane
CHARACTERS_PER_TOKEN: Final = 4
SPLIT_CHARACTERS_PER_TOKEN: Final = 400  # tokenising costs a hundredth of running the model

log = structlog.get_logger(__name__)

Weight = Callable[[TenantId], float]
Input = TypeVar("Input", str, EmbeddingInput)


class _Batch(NamedTuple):
    request: WorkerRequest
    reply: asyncio.Future[EmbeddingReply]


def estimated_tokens(given: EmbeddingInput) -> int:
    return len(given) // CHARACTERS_PER_TOKEN + 2 if isinstance(given, str) else len(given) + 2


class _Lane:
    """One embedding process, and the queue of requests for it."""

    def __init__(self, name: str, niceness: int, waiting_max: int, batch_s: Histogram) -> None:
        command = WorkerCommand("inference.embedding.worker", (str(niceness),), read_reply, HANG_S, START_S)
        errors = PoolErrors(_overloaded, self._unavailable)
        self.worker = WorkerPool[WorkerRequest, EmbeddingReply](command, errors, workers=1, waiting_max=1)
        self._log = log.bind(worker=name)
        self.queue: FairQueue[_Batch] = FairQueue(1, waiting_max)
        self._batch_s = batch_s
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def run(
        self, tenant: TenantId, weight: float, work: Sequence[tuple[WorkerRequest, int]]
    ) -> list[EmbeddingReply]:
        """Queues requests for the worker and returns their replies in order. `work` has each request with its cost in
        tokens. Raises SessileError."""
        queue, loop = self.queue, asyncio.get_running_loop()
        if queue.num_waiting + len(work) > queue.waiting_max or queue.is_full(tenant):
            raise _overloaded()
        claims = [
            SlotClaim(
                _Batch(request, loop.create_future()), tenant=tenant, priority=0, weight=weight, prompt_tokens=tokens
            )
            for request, tokens in work
        ]
        for claim in claims:
            queue.join(claim)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve())
        self._wakeup.set()
        replies = [claim.holder.reply for claim in claims]
        try:
            return list(await asyncio.gather(*replies))
        finally:
            for claim, reply in zip(claims, replies, strict=True):
                reply.cancel()
                if hasattr(claim, "holder") and not claim.started:
                    queue.leave(claim)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.worker.close()

    def _note_end(self, ended: WorkerEnded) -> None:
        self._log.warning("embedding_worker_lost", reason=str(ended))

    def _unavailable(self) -> Unavailable:
        self._log.error("embedding_worker_failed")
        return embeddings_unavailable("The embedding model does not start, or ended twice under this request.")

    async def _serve(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            while True:
                claim = self.queue.first()
                if claim is None:
                    self._wakeup.clear()
                    await self._wakeup.wait()
                    continue
                self.queue.start(claim)
                batch, begun_at = claim.holder, clock()
                try:
                    reply = await self.worker.exchange(batch.request, self._note_end)
                    if not batch.reply.done():  # else whoever waited for it has left
                        batch.reply.set_result(reply)
                    self._batch_s.observe(clock() - begun_at)
                except SessileError as error:
                    if not batch.reply.done():
                        batch.reply.set_exception(error)
                finally:
                    self.queue.leave(claim)
        finally:
            closing = embeddings_unavailable("This server is shutting down.")
            for claim in self.queue.waiting:
                if not claim.holder.reply.done():
                    claim.holder.reply.set_exception(closing)


def _overloaded() -> Overloaded:
    return Overloaded("embeddings_full", "Too many texts wait to be embedded.", retry_after_ms=2_000)


class PackagedEmbedder:
    """The packaged model, for all tenants of a process. `close` ends its worker processes."""

    def __init__(
        self, batch_s: Histogram, *, weight: Weight = lambda tenant: 1.0, waiting_max: int = WAITING_MAX
    ) -> None:
        """`weight` returns a tenant's weight in the fair queue."""
        self._weight = weight
        self.quick = _Lane("quick", QUICK_NICENESS, waiting_max, batch_s)
        self.bulk = _Lane("bulk", BULK_NICENESS, waiting_max, batch_s)

    @property
    def model(self) -> EmbeddingModel:
        return MODEL

    async def close(self) -> None:
        await self.quick.close()
        await self.bulk.close()

    async def embed(self, tenant: TenantId, inputs: Sequence[EmbeddingInput], dimensions: int | None) -> Embeddings:
        batches = list(_batches(inputs))
        firsts = accumulate((len(batch) for batch, _ in batches[:-1]), initial=0)
        work = [(EmbedBatch(batch), tokens) for batch, tokens in batches]
        replies = await self._lane(inputs).run(tenant, self._weight(tenant), work)
        for at, reply in zip(firsts, replies, strict=True):
            _raise_refusal(reply, "input", at)
        vectors = tuple(vector for reply in replies for vector in reply.vectors)
        return Embeddings(vectors, sum(reply.tokens for reply in replies))

    async def rank(self, tenant: TenantId, query: str, documents: Sequence[str]) -> Ranking:
        asked = estimated_tokens(query)
        work = [(RankBatch(query, batch), asked + tokens) for batch, tokens in _batches(documents)]
        replies = await self._lane((query, *documents)).run(tenant, self._weight(tenant), work)
        for reply in replies:
            _raise_refusal(reply, "query", None)
        tokens = sum(reply.tokens for reply in replies)
        return Ranking(tuple(score for reply in replies for score in reply.scores), tokens)

    async def decode(self, tenant: TenantId, inputs: Sequence[EmbeddingInput]) -> list[str]:
        """Returns texts unchanged, and the texts of inputs that are token ids."""
        given = tuple(input_ for input_ in inputs if not isinstance(input_, str))
        if not given:
            return [input_ for input_ in inputs if isinstance(input_, str)]
        cost = sum(map(len, given)) // SPLIT_CHARACTERS_PER_TOKEN + 1
        (reply,) = await self._lane(inputs).run(tenant, self._weight(tenant), [(DecodeTokens(given), cost)])
        _raise_refusal(reply, "input", None)
        texts = iter(reply.texts)
        return [input_ if isinstance(input_, str) else next(texts) for input_ in inputs]

    async def split(self, tenant: TenantId, text: str) -> TokenSpans:
        cost = len(text) // SPLIT_CHARACTERS_PER_TOKEN + 1
        (reply,) = await self._lane((text,)).run(tenant, self._weight(tenant), [(SplitText(text), cost)])
        _raise_refusal(reply, "input", None)
        return TokenSpans(reply.starts, reply.ends)

    def _lane(self, inputs: Sequence[EmbeddingInput]) -> _Lane:
        is_quick = len(inputs) <= QUICK_INPUTS and sum(map(len, inputs)) <= QUICK_CHARACTERS
        return self.quick if is_quick else self.bulk


def _batches(inputs: Sequence[Input]) -> Iterator[tuple[tuple[Input, ...], int]]:
    """Yields the inputs in batches of about `BATCH_TOKENS`, each with its tokens as they are estimated."""
    batch: list[Input] = []
    size = 0
    for given in inputs:
        tokens = estimated_tokens(given)
        if batch and size + tokens > BATCH_TOKENS:
            yield tuple(batch), size
            batch, size = [], 0
        batch.append(given)
        size += tokens
    yield tuple(batch), size


def _raise_refusal(reply: EmbeddingReply, param: str, first: int | None) -> None:
    if reply.error is None:
        return
    if reply.refused >= 0:
        name = param if first is None else f"{param}[{first + reply.refused}]"
        code = "context_length_exceeded" if reply.too_long else "invalid_request"
        raise BadInput(code, f"'{name}' cannot be taken: {reply.error}.", param=param)
    raise embeddings_unavailable("The embedding model failed on this request.")
