"""The server's end of a worker process: batches, deadlines, and a new worker when one dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from inference.moderation import worker_client
from inference.moderation.policy import parse_policies
from inference.moderation.worker_client import ModerationWorkerClient, NotJudged, NotTaken
from inference.moderation.worker_frames import JudgeRequest, Request, WorkerReply

POLICIES = parse_policies("[policies.default.input]\nphrases = { deny = ['nightjar'] }\n")
VERSION = POLICIES.of("any").version


@asynccontextmanager
async def working(*models: str) -> AsyncIterator[ModerationWorkerClient]:
    client = ModerationWorkerClient("test")
    await client.start()
    try:
        await client.load(msgspec.json.encode(POLICIES), models)
        yield client
    finally:
        await client.close()


async def test_texts_that_wait_share_a_batch_and_patterns_alone_go_one_by_one() -> None:
    async with working("toxicity") as client:
        scores = [client.classify("acme", f"text {n}", ["toxicity"], 20) for n in range(5)]
        both, hits = client.classify_and_scan("acme", "a nightjar", ["toxicity"], VERSION, 20)
        assert all(set(each) == {"toxicity"} for each in await asyncio.gather(*scores, both))
        assert (client.batches, client.texts) == (1, 6)
        assert [(start, end) for _, start, end in await hits] == [(2, 10)]
        await asyncio.gather(*(client.scan("acme", "a nightjar", VERSION, 20) for _ in range(3)))
        assert (client.batches, client.texts) == (4, 9)


async def test_tenants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """880 kB of one tenant in the line, and another tenant's message waited for all of it."""
    ended: list[str] = []
    async with working() as client:
        texts = [client.scan(tenant, "x", VERSION, 60) for tenant in ("flood",) * 6 + ("other",) * 2]
        for tenant, text in zip(("flood",) * 6 + ("other",) * 2, texts, strict=True):
            text.add_done_callback(lambda _, tenant=tenant: ended.append(tenant))  # type: ignore[misc]
        await asyncio.gather(*texts)
    assert ended == ["flood", "other", "flood", "other", "flood", "flood", "flood", "flood"]


async def test_a_text_that_kills_the_worker_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_client, "RESTART_S", 0.0)
    async with working("toxicity") as client:
        exchange = client._exchange

        async def dying(request: Request, timeout_s: float) -> WorkerReply:
            if isinstance(request, JudgeRequest) and any(item.text == "poison" for item in request.items):
                assert client._process is not None
                os.kill(client._process.pid, signal.SIGKILL)
            return await exchange(request, timeout_s)

        monkeypatch.setattr(client, "_exchange", dying)
        texts = [("acme", "poison"), ("other", "fine"), ("acme", "good")]
        scores = [client.classify(tenant, text, ["toxicity"], 60) for tenant, text in texts]
        results = await asyncio.gather(*scores, return_exceptions=True)
        assert [isinstance(each, NotTaken) for each in results] == [True, False, False]
        assert client.restarts == 2


async def test_a_failure_in_the_worker_is_the_texts_own() -> None:
    async with working() as client:
        with pytest.raises(NotJudged, match="KeyError"):
            await client.scan("acme", "a nightjar", "0" * 16, 20)
        with pytest.raises(NotJudged, match="nothing"):
            await client.load(msgspec.json.encode(POLICIES), ["nothing"])
        assert len(await client.scan("acme", "a nightjar", VERSION, 20)) == 1


async def test_too_many_texts_and_a_closed_worker_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_client, "WAITING_MAX", 2)
    async with working() as client:
        waiting = [client.scan(tenant, "x", VERSION, 20) for tenant in ("acme", "acme", "other", "third")]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(each, NotTaken) for each in results] == [False, True, False, True]
    with pytest.raises(NotJudged):
        await client.scan("acme", "x", VERSION, 20)
