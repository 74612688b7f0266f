"""One worker process: started when it is needed, started again when it dies, ended with its server."""

from __future__ import annotations

import asyncio

import pytest

from inference.embedding import worker_client
from inference.embedding.frames import EmbedBatch, EmbeddingReply, WorkerRequest
from inference.embedding.worker_client import EmbeddingWorker
from inference.worker_process import encode_frame
from sessions.model.errors import Unavailable

HELLO = EmbedBatch(("hello",))


async def test_a_model_that_cannot_be_loaded_says_so_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(process: object) -> EmbeddingReply:
        return EmbeddingReply(error="FileNotFoundError: x")

    monkeypatch.setattr(worker_client, "read_reply", broken)
    worker = EmbeddingWorker("test", 0)
    with pytest.raises(Unavailable, match="cannot be loaded"):
        await worker.exchange(HELLO)
    assert worker.pid is None


async def test_a_request_under_which_it_ends_twice_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = EmbeddingWorker("test", 0)
    whole = encode_frame

    def ends(request: WorkerRequest) -> bytes:
        return b"\x01\x00\x00\x00\xc1"  # a frame that no server writes

    monkeypatch.setattr(worker_client, "encode_frame", ends)
    with pytest.raises(Unavailable, match="twice"):
        await worker.exchange(HELLO)
    assert worker.restarts == 2 and worker.pid is None
    monkeypatch.setattr(worker_client, "encode_frame", whole)
    assert (await worker.exchange(HELLO)).tokens == 3
    await worker.end()


async def test_whoever_leaves_in_the_middle_ends_the_process() -> None:
    worker = EmbeddingWorker("test", 0)
    await worker.exchange(HELLO)
    task = asyncio.create_task(worker.exchange(EmbedBatch(("word " * 200,) * 8)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert worker.pid is None
