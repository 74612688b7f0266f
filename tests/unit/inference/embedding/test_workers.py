"""The packaged model's processes: who is next, what is begun again, what a request that they cannot take says."""

from __future__ import annotations

import asyncio

import pytest

from inference import worker_pool
from inference.embedding import pool
from inference.embedding.frames import DecodeTokens, EmbedBatch, EmbeddingReply, RankBatch, WorkerRequest
from inference.embedding.pool import BATCH_TOKENS, PackagedEmbedder
from inference.worker_process import encode_frame
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Overloaded, SessileError, Unavailable
from sessions.model.types import TenantId
from sessions.retrieval.embedding import EmbeddingInput

# -- pool
ACME, BETA = TenantId("acme"), TenantId("beta")
LONG = "word " * 200


class Worker:
    """Stands in for a process: answers when it is let, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[WorkerRequest] = []
        self.going = asyncio.Event()
        self.going.set()
        self.reply: EmbeddingReply | SessileError | None = None
        self.ended = False

    async def exchange(self, request: WorkerRequest, on_end: object) -> EmbeddingReply:
        self.asked.append(request)
        await self.going.wait()
        if isinstance(self.reply, SessileError):
            raise self.reply
        if self.reply is not None:
            return self.reply
        match request:
            case EmbedBatch(inputs):
                return EmbeddingReply(vectors=tuple(str(each).encode() for each in inputs), tokens=len(inputs))
            case RankBatch(_, documents):
                return EmbeddingReply(scores=tuple(float(len(each)) for each in documents), tokens=len(documents))
            case DecodeTokens(given):
                return EmbeddingReply(texts=tuple(str(each) for each in given))
            case _:
                return EmbeddingReply(starts=(0,), ends=(1,), tokens=1)

    async def close(self) -> None:
        self.ended = True


def embedder(waiting_max: int = 64) -> tuple[PackagedEmbedder, Worker, Worker]:
    made = PackagedEmbedder(Metrics().histogram("x", "", (1.0,)), waiting_max=waiting_max)
    quick, bulk = Worker(), Worker()
    made.quick.worker, made.bulk.worker = quick, bulk  # type: ignore[assignment]
    return made, quick, bulk


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_short_questions_go_one_way_and_documents_another_in_order() -> None:
    made, quick, bulk = embedder()
    assert (await made.embed(ACME, ("hi",), None)).vectors == (b"hi",)
    texts = tuple(f"{number} {LONG}" for number in range(5))
    done = await made.embed(ACME, texts, 384)
    assert done.vectors == tuple(each.encode() for each in texts) and done.tokens == 5
    assert len(quick.asked) == 1 and len(bulk.asked) == 5
    ranked = await made.rank(ACME, "q", ("a", "bb", LONG, LONG))
    assert ranked.scores[:2] == (1, 2) and ranked.tokens == 4
    assert (await made.decode(ACME, ("a", (1, 2)))) == ["a", "(1, 2)"] and await made.decode(ACME, ("b",)) == ["b"]
    assert (await made.split(ACME, "x")).starts == (0,)
    await made.close()
    assert quick.ended and bulk.ended


async def test_a_tenant_with_one_text_waits_for_a_batch_and_not_for_a_backlog() -> None:
    made, _, bulk = embedder()
    bulk.going.clear()
    first = asyncio.create_task(made.embed(ACME, (LONG,) * 20, None))
    await settle()
    second = asyncio.create_task(made.embed(BETA, ("beta " + LONG * 3,), None))
    await settle()
    bulk.going.set()
    await asyncio.gather(first, second)
    places = [at for at, each in enumerate(bulk.asked) if isinstance(each, EmbedBatch) and "beta" in str(each.inputs)]
    assert places and places[0] <= 2
    made.bulk.queue.check_integrity()
    await made.close()


async def test_what_does_not_fit_is_refused_as_a_whole() -> None:
    made, _, bulk = embedder(waiting_max=4)
    bulk.going.clear()
    with pytest.raises(Overloaded, match="Too many texts"):
        await made.embed(ACME, (LONG,) * 5, None)
    assert bulk.asked == [] and made.bulk.queue.num_waiting == 0
    await made.close()


async def test_whoever_leaves_takes_what_waits_along() -> None:
    made, _, bulk = embedder()
    bulk.going.clear()
    task = asyncio.create_task(made.embed(ACME, (LONG,) * 6, None))
    await settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert made.bulk.queue.num_waiting == 0
    bulk.going.set()
    assert (await made.embed(ACME, (LONG,) * 5, None)).tokens == 5
    assert len(bulk.asked) == 6
    await made.close()


async def test_refusals_name_the_input_of_the_request_and_not_of_the_batch() -> None:
    made, _, bulk = embedder()
    size = BATCH_TOKENS * 4
    texts: tuple[EmbeddingInput, ...] = ("a" * size, "b" * size, "c" * size)
    bulk.reply = EmbeddingReply(error="it has 900 tokens, of 512 at most", refused=0, too_long=True)
    with pytest.raises(BadInput, match=r"'input\[0\]' cannot be taken") as refused:
        await made.embed(ACME, texts, None)
    assert refused.value.code == "context_length_exceeded" and refused.value.param == "input"
    bulk.reply = EmbeddingReply(error="the model failed (RuntimeError)")
    with pytest.raises(Unavailable, match="failed on this request"):
        await made.embed(ACME, texts, None)
    bulk.reply = Unavailable("embeddings_unavailable", "away")
    with pytest.raises(Unavailable, match="away"):
        await made.embed(ACME, texts, None)
    await made.close()


# -- worker processes
async def test_a_model_that_cannot_be_loaded_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "QUICK_NICENESS", "none")  # the worker ends before it has a model
    made = PackagedEmbedder(Metrics().histogram("x", "", (1.0,)))
    with pytest.raises(Unavailable, match="does not start"):
        await made.embed(ACME, ("hello",), None)
    assert made.quick.worker.workers[0].process is None
    await made.close()


async def test_a_request_under_which_it_ends_twice_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made = PackagedEmbedder(Metrics().histogram("x", "", (1.0,)))
    whole = encode_frame

    def ends(request: WorkerRequest) -> bytes:
        return b"\x01\x00\x00\x00\xc1"  # a frame that no server writes

    monkeypatch.setattr(worker_pool, "encode_frame", ends)
    with pytest.raises(Unavailable, match="twice"):
        await made.embed(ACME, ("hello",), None)
    assert made.quick.worker.workers[0].process is None
    monkeypatch.setattr(worker_pool, "encode_frame", whole)
    assert (await made.embed(ACME, ("hello",), None)).tokens == 3
    await made.close()
