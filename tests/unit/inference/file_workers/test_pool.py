"""The server's end: bounded, and rid of what ends under it."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from inference.file_workers import pool as module
from inference.file_workers.pool import FileWorkers
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Overloaded, TooLarge
from testbed.documents.made import a_pdf
from testbed.images.made import a_pattern, encoded, noise


async def test_texts_are_taken_out_and_remembered() -> None:
    async with FileWorkers(Metrics(), workers=1) as workers:
        made = await workers.extract(a_pdf(["hello"]), filename="a.pdf")
        assert made.text == "hello\n" and made.media_type == "application/pdf"
        assert await workers.extract(a_pdf(["hello"]), filename="a.pdf") is made
        with pytest.raises(BadInput, match=r"^file_type_unsupported: "):
            await workers.extract(b"\x89PNG", filename="a.pdf")
        assert workers.documents.total == 2


@pytest.mark.slow
async def test_what_takes_too_long_is_refused_and_the_next_is_read() -> None:
    async with FileWorkers(workers=1, cpu_s=1, wall_s=5) as workers:
        nested = b"<!--" * 1
        many = b"<html>" + b"<p>x" * 6_000_000 + nested
        with pytest.raises(TooLarge, match=r"^file_too_complex: "):
            await workers.extract(many)
        assert (await workers.extract(b"x")).text == "x"


async def test_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    async with FileWorkers(workers=1) as workers:
        calls = [asyncio.create_task(workers.extract(b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await workers.extract(b"more")
        assert [each.text for each in await asyncio.gather(*calls)] == ["0", "1", "2"]


async def test_memory_of_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESULTS_BYTES_MAX", 2_000)
    monkeypatch.setattr(module, "RESULT_BYTES_MAX", 1_000)
    async with FileWorkers(workers=1) as workers:
        for number in range(9):
            await workers.extract(b"%d" % number * 60)
        assert 0 < len(workers._results) < 9 and 1_000 < workers._results_bytes <= 2_000
        known = list(workers._results)
        await workers.extract(b"x" * 1_000)
        assert list(workers._results) == known, "one that is too large is not remembered"


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (b"x" * 10_000, 10_000),
        ("\N{EARTH GLOBE EUROPE-AFRICA}".encode() * 1_000, 4_000),
    ],
)
async def test_memory_of_texts_counts_the_bytes_that_they_take(content: bytes, size: int) -> None:
    """It counted four bytes for each character of a text."""
    async with FileWorkers(workers=1) as workers:
        await workers.extract(content, filename="a.md")
        assert workers._results_bytes == pytest.approx(size, abs=1_000)


async def test_images_are_decoded_and_remembered() -> None:
    async with FileWorkers(Metrics(), workers=1) as workers:
        image = await workers.decode(encoded(a_pattern()))
        assert (image.media_type, image.width, image.height) == ("image/png", 40, 30)
        assert await workers.decode(encoded(a_pattern())) == image
        assert (await workers.decode(encoded(a_pattern()), edge_max=20)).width == 20
        for content, code in ((b"BM", "image_type_unsupported"), (encoded(noise((9, 9)))[:90], "image_unreadable")):
            with pytest.raises(BadInput, match=rf"^{code}: "):
                await workers.decode(content)
        counted = {labels[0]: int(count) for labels, count in workers.images.values.items() if count}
        assert counted == {"read": 2, "unsupported": 1, "unreadable": 1} and workers.documents.total == 0


async def test_what_is_remembered_of_an_image_is_found_by_its_hash() -> None:
    async with FileWorkers(workers=1) as workers:
        content = encoded(a_pattern())
        sha256 = hashlib.sha256(content).hexdigest()
        assert workers.known(sha256, edge_max=20, bytes_max=9_000) is None
        image = await workers.decode(content, edge_max=20, bytes_max=9_000)
        assert workers.known(sha256, edge_max=20, bytes_max=9_000) is image
        assert workers.known(sha256, edge_max=21, bytes_max=9_000) is None


async def test_an_image_that_comes_back_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OWN_MAX", 2)
    async with FileWorkers(workers=1) as workers:
        image = await workers.decode(encoded(noise((900, 900))), edge_max=500)
        assert image.media_type == "image/jpeg" and image.width == 500
        assert await workers.decode(image.data, edge_max=500) == await workers.decode(image.data) == image
        assert workers.images.total == 1
        smaller = await workers.decode(image.data, edge_max=100)
        assert smaller.width == 100 and len((await workers.decode(image.data, bytes_max=9_000)).data) <= 9_000
        assert len(workers._own) == 2


async def test_a_large_file_is_hashed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[int]()

    def recorded(content: bytes) -> Any:
        threads.append(threading.get_ident())
        return hashlib.sha256(content)

    monkeypatch.setattr(module, "hashlib", SimpleNamespace(sha256=recorded))
    async with FileWorkers(workers=1) as workers:
        await workers.extract(b"x" * (module.INLINE_BYTES + 1))
    assert threads and threading.get_ident() not in threads


async def test_an_image_is_no_document_to_the_memory() -> None:
    async with FileWorkers(workers=1) as workers:
        image, text = encoded(a_pattern()), b"x" * 99
        await workers.decode(image)
        with pytest.raises(BadInput, match=r"^file_type_unsupported: "):
            await workers.extract(image)
        await workers.extract(text)
        with pytest.raises(BadInput):
            await workers.decode(text)
