"""Guard models: an answer as a score, and the bounds around it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inference.moderation.guard import OVERLAP, SEGMENT_CHARS, SEGMENTS_MAX, GuardClient, split_segments
from inference.moderation.guard_models import GuardVerdict, RemoteGuard, kind_of, open_guard_model
from inference.moderation.policy import BadPolicy, GuardConfig
from inference.moderation.worker_client import NotJudged


# -- guard
class Model:
    """Scores by a rule of the test; holds every text while `held`."""

    version = "model/1"

    def __init__(self, score: Callable[[str], float] = lambda text: 0.25) -> None:
        self.score = score
        self.error: Exception | None = None
        self.released = asyncio.Event()
        self.released.set()
        self.running = self.most = 0
        self.closed = False

    async def judge_image(self, image_url: str) -> GuardVerdict:
        return await self.judge(f"image {image_url}")

    async def judge(self, text: str) -> GuardVerdict:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.released.wait()
        finally:
            self.running -= 1
        if self.error is not None:
            raise self.error
        return GuardVerdict(self.score(text), "kind")

    async def close(self) -> None:
        self.closed = True


def client_of(model: Model, **config: Any) -> tuple[GuardClient, list[str]]:
    outcomes: list[str] = []
    guard = GuardConfig(url="http://guard.example/v1", **config)
    return GuardClient(guard, model, lambda outcome, seconds: outcomes.append(outcome)), outcomes


@pytest.mark.parametrize("length", [0, 1, SEGMENT_CHARS, SEGMENT_CHARS + 1, 3 * SEGMENT_CHARS])
def test_segments_overlap_and_cover_the_text(length: int) -> None:
    text = "".join(chr(0x4E00 + n % 997) for n in range(length))
    segments = split_segments(text)
    assert segments[0] + "".join(each[OVERLAP:] for each in segments[1:]) == text
    assert all(len(each) <= SEGMENT_CHARS for each in segments)


async def test_a_text_has_the_verdict_of_its_worst_segment() -> None:
    client, outcomes = client_of(Model(lambda text: 0.9 if "bomb" in text else 0.1))
    text = "x" * SEGMENT_CHARS + "bomb" + "x" * SEGMENT_CHARS
    assert await client.classify(text, 20) == (0.9, "kind")
    assert (await client.classify("cake", 20)).score == 0.1 and outcomes == ["judged"] * 2
    with pytest.raises(NotJudged, match="too long"):
        await client.classify("x" * (SEGMENTS_MAX + 1) * SEGMENT_CHARS, 20)


async def test_an_image_is_no_text_and_is_judged_whole() -> None:
    client, outcomes = client_of(Model(lambda text: 0.9 if text.startswith("image data:") else 0.1))
    url = "data:image/png;base64," + "A" * (SEGMENTS_MAX + 1) * SEGMENT_CHARS
    assert await client.classify_image(url, 20) == (0.9, "kind") and outcomes == ["judged"]


async def test_beyond_the_places_and_the_queue_a_text_fails_at_once() -> None:
    model = Model()
    client, outcomes = client_of(model, at_once=2, waiting=1)
    model.released.clear()
    held = [client.classify("text", 20), client.classify_image("data:", 20), client.classify("text", 20)]
    for one_more in (client.classify("text", 20), client.classify_image("data:", 20)):
        with pytest.raises(NotJudged, match="too many"):
            await one_more
    model.released.set()
    assert [verdict.score for verdict in await asyncio.gather(*held)] == [0.25] * 3
    assert model.most == 2 and sorted(outcomes) == ["busy", "busy", "judged", "judged", "judged"]
    assert (await client.classify("text", 20)).score == 0.25  # the places are free again


async def test_a_late_model_is_not_waited_for() -> None:
    model = Model()
    client, outcomes = client_of(model)
    model.released.clear()
    with pytest.raises(NotJudged, match="late"):
        await client.classify("text", 0)
    assert outcomes == ["late"] and model.running == 0


def test_a_version_is_of_the_model_and_its_configuration() -> None:
    first, second = client_of(Model())[0], client_of(Model(), logprobs=False)[0]
    assert first.version.startswith("model/1/") and first.version != second.version


async def test_closing_ends_what_is_under_way_and_takes_no_more() -> None:
    model = Model()
    client, _ = client_of(model)
    model.released.clear()
    held = client.classify("text", 20)
    await asyncio.sleep(0)
    await client.close()
    assert held.cancelled() and model.closed
    with pytest.raises(NotJudged, match="closed"):
        await client.classify("text", 20)


# -- guard models
@asynccontextmanager
async def endpoint(answer: bytes, status: int = 200) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An endpoint with one answer, and the requests that it gets."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        requests.append(head + await reader.readexactly(length))
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(answer)}\r\n\r\n".encode() + answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/", requests


def completion(text: str, *tops: tuple[str, float]) -> bytes:
    choice: dict[str, Any] = {"message": {"content": text}}
    if tops:
        top = [{"token": token, "logprob": math.log(p)} for token, p in tops]
        choice["logprobs"] = {"content": [{"token": "\n", "logprob": 0.0}, {**top[0], "top_logprobs": top}]}
    return json.dumps({"choices": [choice]}).encode()


async def judged(answer: bytes, status: int = 200, **config: Any) -> GuardVerdict:
    async with endpoint(answer, status) as (url, _):
        guard = await open_guard_model(GuardConfig(url=url, **config))
        return await guard.judge("text")


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (completion("unsafe", ("uns", 0.6), (" SAFE", 0.2), ("I", 0.2)), 0.75),
        (completion("safe", ("safe", 0.9)), 0.0),  # blank tokens before the word do not count
        (completion("Unsafe."), 1.0),
        (completion(" safe\n"), 0.0),
    ],
)
async def test_the_score_is_the_odds_of_the_second_word(answer: bytes, score: float) -> None:
    assert (await judged(answer)).score == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        (completion("maybe"), 200, "neither"),
        (completion("I", ("I", 0.97), ("safe", 0.01)), 200, "neither"),
        (b'{"choices": []}', 200, "malformed"),
        (b"<html>", 200, "malformed"),
        (b"\xff\xfe", 200, "malformed"),
        (completion("", ("", 1.0)), 200, "nothing"),
        (b"{}", 503, "503"),
    ],
)
async def test_anything_else_is_no_judgement(answer: bytes, status: int, why: str) -> None:
    with pytest.raises(NotJudged, match=why):
        await judged(answer, status)


async def test_a_kind_is_read_where_the_text_is_unsafe() -> None:
    kinds = {"S1": "violence", "S4": "minors"}
    assert await judged(completion("unsafe\ns4,s1"), kinds=kinds) == (1.0, "violence")
    assert await judged(completion("safe s4"), kinds=kinds) == (0.0, "")
    assert kind_of(GuardConfig(url="x", kinds=kinds), "unsafe S12") == ""


async def test_a_request_bears_the_key_and_the_template(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-guard\n")
    async with endpoint(completion("safe")) as (url, requests):
        config = GuardConfig(url=url, key_file=str(tmp_path / "key"), template="<{text}>", logprobs=False)
        await (await RemoteGuard.open(config)).judge("hello")
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert b"POST /v1/chat/completions " in head and b"authorization: Bearer sk-guard\r\n" in head
    assert json.loads(body)["messages"][0]["content"] == "<hello>" and "logprobs" not in json.loads(body)


@pytest.mark.parametrize("key", ["", "two\nlines", "schlüssel"])
async def test_a_key_that_is_none_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "key").write_text(key)
    with pytest.raises(BadPolicy, match="no key"):
        await open_guard_model(GuardConfig(url="http://guard.example", key_file=str(tmp_path / "key")))
