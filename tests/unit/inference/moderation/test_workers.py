"""The worker process of moderation, from both ends, and the classifiers that it holds."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from inference.moderation import classifiers, worker_client
from inference.moderation import worker as worker_module
from inference.moderation.policy import Policies, parse_policies
from inference.moderation.word_hashing import word_characters
from inference.moderation.worker import ModerationWorker
from inference.moderation.worker_client import ModerationWorkerClient, NotJudged, NotTaken
from inference.moderation.worker_frames import JudgeItem, JudgeRequest, JudgeResult, LoadRequest, Request, WorkerReply


# -- worker
def policies(phrase: str = "nightjar") -> Policies:
    return parse_policies(f"[policies.default.input]\nphrases = {{ deny = ['{phrase}'] }}\n")


def load(worker: ModerationWorker, given: Policies, *models: str) -> dict[str, str]:
    reply = worker.answer(LoadRequest(msgspec.json.encode(given), models))
    assert reply.error is None
    return reply.versions


def judge(worker: ModerationWorker, *items: JudgeItem) -> list[JudgeResult]:
    return worker.answer(JudgeRequest(items)).results


def test_texts_are_scanned_by_the_policy_of_their_version() -> None:
    worker, first, second = ModerationWorker(), policies(), policies("ledger")
    for each in (first, second):
        load(worker, each)
    old, new = first.of("any").version, second.of("any").version
    results = judge(worker, *(JudgeItem("a nightjar", (), version) for version in (old, new, "")))
    assert [each.hits for each in results] == [[([2, 10, "phrases", "phrase", "block"], 2, 10)], [], []]


def test_old_policies_are_forgotten_and_those_in_force_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "VERSIONS_MAX", 2)
    worker, loaded = ModerationWorker(), [policies(f"phrase {n}") for n in range(3)]
    for each in loaded:
        load(worker, each)
    results = judge(worker, *(JudgeItem("x", (), each.of("any").version) for each in loaded))
    assert [isinstance(each.hits, str) for each in results] == [True, False, False]


def test_a_model_is_loaded_once_and_an_unknown_one_is_an_error() -> None:
    worker = ModerationWorker()
    versions = load(worker, policies(), "toxicity")
    assert load(worker, policies(), "toxicity") == versions and list(versions) == ["toxicity"]
    (result,) = judge(worker, JudgeItem("Go fuck yourself, asshole.", ("toxicity",), ""))
    assert isinstance(result.scores, dict) and result.scores["toxicity"] > 0.5
    reply = worker.answer(LoadRequest(msgspec.json.encode(policies()), ("nothing",)))
    assert reply.error is not None and "nothing" in reply.error


class Picky:
    """A model that one text makes fail."""

    version = "picky/1"

    def judge(self, texts: Sequence[str]) -> list[float]:
        if "poison" in texts:
            raise ValueError("no")
        return [0.5] * len(texts)


def test_a_text_that_makes_a_model_fail_fails_alone() -> None:
    worker = ModerationWorker()
    worker._models["picky"] = Picky()
    reply = worker.answer(JudgeRequest(tuple(JudgeItem(text, ("picky",), "") for text in ("a", "poison", "b"))))
    assert [each.scores for each in reply.results] == [{"picky": 0.5}, "ValueError: no", {"picky": 0.5}]


# -- worker client
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


@pytest.mark.parametrize(("models", "restarts"), [((), 1), pytest.param(("toxicity",), 2, marks=pytest.mark.slow)])
async def test_a_text_that_kills_the_worker_fails_alone(
    monkeypatch: pytest.MonkeyPatch, models: tuple[str, ...], restarts: int
) -> None:
    """Texts to classify share a batch, and are tried again one by one."""
    monkeypatch.setattr(worker_client, "RESTART_S", 0.0)
    async with working(*models) as client:
        exchange = client._exchange

        async def dying(request: Request, timeout_s: float) -> WorkerReply:
            if isinstance(request, JudgeRequest) and any(item.text == "poison" for item in request.items):
                assert client._process is not None
                os.kill(client._process.pid, signal.SIGKILL)
            return await exchange(request, timeout_s)

        monkeypatch.setattr(client, "_exchange", dying)
        texts = [("acme", "poison"), ("other", "fine"), ("acme", "good")]
        scores: list[asyncio.Future[Any]] = [
            client.classify(tenant, text, models, 60) if models else client.scan(tenant, text, VERSION, 60)
            for tenant, text in texts
        ]
        results = await asyncio.gather(*scores, return_exceptions=True)
        assert [isinstance(each, NotTaken) for each in results] == [True, False, False]
        assert client.restarts == restarts


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


# -- classifiers
loaded = functools.cache(classifiers.load_classifier)


def test_the_first_message_waits_for_no_table() -> None:
    word_characters.cache_clear()
    model = classifiers.load_classifier("toxicity")
    made = word_characters.cache_info().misses
    model.judge(["Hello there."])
    assert made == word_characters.cache_info().misses == 1


def test_names_are_found_with_their_places() -> None:
    text = "Yesterday Maria Gonzalez flew to London."
    (found,) = loaded("entities").judge([text])
    assert {(kind, text[start:end]) for kind, start, end, _ in found} >= {
        ("person", "Maria Gonzalez"),
        ("location", "London"),
    }


def test_names_are_not_looked_for_in_endless_texts() -> None:
    """880 kB took so long that the worker was killed for it, with the texts of other tenants."""
    with pytest.raises(ValueError, match="at most"):
        loaded("entities").judge(["a " * classifiers.NAMES_MAX])
