"""Hostile images in the sandbox: each gets an image or a named refusal, and no process is left or lost."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from PIL import Image

from inference.file_workers.frames import ImageRequest
from inference.file_workers.pool import FileWorkers
from inference.file_workers.worker import answer
from sessions.model.errors import BadInput, TooLarge
from sessions.model.knowledge.images import DECODED_BYTES_MAX, DecodedImage
from testbed.images.hostile import hostile_images, samples
from testbed.images.made import a_pattern, a_png, encoded, opened

CODES = {"image_type_unsupported", "image_unreadable", "image_too_complex"}


@pytest.mark.parametrize("count", [60, pytest.param(2_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
async def test_hostile_images_get_an_image_or_a_named_refusal(count: int) -> None:
    before, outcomes = _children(), list[tuple[str, str]]()
    async with FileWorkers(workers=2) as workers:
        images = hostile_images(count, seed=37)

        async def lane() -> None:
            for kind, content in images:
                try:
                    image = await workers.decode(content)
                except BadInput as error:
                    outcomes.append((kind, error.code))
                else:
                    assert opened(image.data).size == (image.width, image.height), kind
                    assert len(image.data) <= DECODED_BYTES_MAX
                    outcomes.append((kind, "read"))

        await asyncio.gather(lane(), lane())
        assert workers.images.values[("worker_ended",)] == 0
        image = await workers.decode(encoded(a_pattern()))
        assert (image.width, image.height) == (40, 30), "the next one is read"
    assert len(outcomes) == count
    assert [outcome for outcome in outcomes if outcome[1] not in {"read", *CODES}] == []
    assert {"read", "image_unreadable", "image_too_complex"} <= {result for _, result in outcomes}
    assert _children() <= before


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_file_that_is_cut_anywhere_is_refused_or_whole(format: str) -> None:
    for _, content in [sample for sample in samples() if sample[0] == format]:
        for end in range(0, len(content), max(1, len(content) // 60)):
            reply = answer(ImageRequest(content[:end], 1568))
            assert reply.image is not None or (reply.fault is not None and reply.fault.code in CODES)
            assert reply.image is None or end > len(content) // 3, "a third of it is not the image"


@pytest.mark.slow
async def test_the_largest_images_fit_into_the_sandbox() -> None:
    async with FileWorkers(workers=1) as workers:
        row = 1 + 4 * 5_000
        sources = [a_png(5_000, 5_000, bytes(row * 5_000), colours=6)]
        clear = Image.new("RGBA", (5_000, 5_000), (1, 2, 3, 4))
        sources.append(encoded(clear, "WEBP", lossless=True, method=0, quality=0))
        for content in sources:
            image = await workers.decode(content)
            assert (image.width, image.height) == (1568, 1568)


async def test_too_many_bytes_are_refused_at_once() -> None:
    async with FileWorkers(workers=1) as workers:
        with pytest.raises(TooLarge, match=r"^image_too_complex: "):
            await workers.decode(b"\xff\xd8\xff" + bytes(20 << 20))


async def test_the_same_bytes_give_the_same_image_in_every_process() -> None:
    sources, results = [content for _, content in samples()], []
    for _ in range(2):
        async with FileWorkers(workers=2) as workers:
            results.append(await asyncio.gather(*(workers.decode(content) for content in sources)))
    assert results[0] == results[1]
    assert all(isinstance(image, DecodedImage) for image in results[0])
