"""The server's end: bounded, and rid of what ends under it."""

from __future__ import annotations

import asyncio

import pytest

from inference.documents import extractor as module
from inference.documents.extractor import DocumentWorkers
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Overloaded, TooLarge, Unavailable
from tests.support.documents.made import a_pdf


async def test_texts_are_taken_out_and_remembered() -> None:
    async with DocumentWorkers(Metrics(), workers=1) as workers:
        made = await workers.extract(a_pdf(["hello"]), filename="a.pdf")
        assert made.text == "hello\n" and made.media_type == "application/pdf"
        assert await workers.extract(a_pdf(["hello"]), filename="a.pdf") is made
        with pytest.raises(BadInput) as refused:
            await workers.extract(b"\x89PNG", filename="a.pdf")
        assert refused.value.code == "file_type_unsupported"
        assert workers.documents.total == 2


async def test_what_takes_too_long_is_refused_and_the_next_is_read() -> None:
    async with DocumentWorkers(workers=1, cpu_s=1, wall_s=5) as workers:
        nested = b"<!--" * 1
        many = b"<html>" + b"<p>x" * 6_000_000 + nested
        with pytest.raises(TooLarge) as refused:
            await workers.extract(many)
        assert refused.value.code == "file_too_complex"
        assert (await workers.extract(b"x")).text == "x"


async def test_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    async with DocumentWorkers(workers=1) as workers:
        calls = [asyncio.create_task(workers.extract(b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await workers.extract(b"more")
        assert [each.text for each in await asyncio.gather(*calls)] == ["0", "1", "2"]


async def test_who_leaves_disturbs_nobody() -> None:
    async with DocumentWorkers(workers=1) as workers:
        left = asyncio.create_task(workers.extract(b"one"))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert (await workers.extract(b"two")).text == "two"


async def test_a_closed_one_refuses() -> None:
    workers = DocumentWorkers(workers=1)
    waiting = asyncio.create_task(workers.extract(b"x"))
    await asyncio.sleep(0)
    await workers.close()
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        await workers.extract(b"y")


async def test_memory_of_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TEXTS_BYTES_MAX", 4_000)
    async with DocumentWorkers(workers=1) as workers:
        for number in range(9):
            await workers.extract(b"%d" % number * 60)
        assert len(workers._texts) < 9 and workers._texts_bytes <= 4_000
