"""The bounds around a guard model: segments, places, deadlines, and what ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from inference.moderation.guard import OVERLAP, SEGMENT_CHARS, SEGMENTS_MAX, GuardClient, split_segments
from inference.moderation.guard_models import GuardVerdict
from inference.moderation.policy import GuardConfig
from inference.moderation.worker_client import NotJudged


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
