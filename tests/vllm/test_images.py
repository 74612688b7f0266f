"""Images on vLLM beyond the contract: counts, restored KV, names that are too short, shared openings, odd prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from inference.tokens import as_tokens
from inference.vllm.engine import VllmEngine
from inference.vllm.images import VllmImages, engine_input
from sessions.model.errors import BadInput
from sessions.model.types import InputImage, InputText
from sessions.ports import ChatMessage
from sessions.turn.images import NAME_IDS, ImageName, image_runs, prompt_text
from testbed.engine_client import Answer
from testbed.server_process import ServerProcess
from tests.support.doors.image_turns import sees, three_turns
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.image_talk import ONE, PARTS, TWO, ImageTalk
from tests.support.engines.tiny_projector import input_image, noise
from tests.support.engines.tiny_seeing import IMAGE, TILE_MARKS, write_tiny_seeing_folder
from tests.support.engines.vllm_world import BLOCK_TOKENS, FEW, Cores, SeeingVllmWorld, VllmWorld, settled, start

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

FLIPPED = input_image(noise(1, flip=5_000))


@pytest.fixture
async def seeing(tmp_path: Path) -> AsyncIterator[SeeingVllmWorld]:
    made = SeeingVllmWorld(tmp_path)
    yield made
    await made.close()


def images_of(engine: VllmEngine) -> VllmImages:
    assert engine._images is not None
    return engine._images


async def crowd(engine: VllmEngine, round_: int) -> None:
    """Other sessions fill the device, so that nothing of anybody else's is left there."""
    filler = tuple(await engine.tokenizer.text(f" stone{round_} river" * 1024))[:900]
    for number in range(2):
        talk = ImageTalk(engine, f"crowd{round_}-{number}")
        await talk.run(filler[number:], max_tokens=1)
        await settled(engine)
        await engine.release(talk.key)


async def test_restored_kv_is_of_its_own_image_and_of_no_other(seeing: SeeingVllmWorld) -> None:
    engine = await start(seeing, device_blocks=FEW)
    talk = ImageTalk(engine, "a")
    prompt, first = await talk.ask(*PARTS, max_tokens=40)
    (run,) = image_runs(prompt)
    await settled(engine)
    await crowd(engine, 0)
    restored = await talk.run(prompt, max_tokens=40)
    assert restored.finish.cached_tokens == seeing.whole(len(prompt) - 1) > run.end - BLOCK_TOKENS
    assert engine.stats().counters["restores"] == 1
    cold = await ImageTalk(engine, "b").run(prompt, max_tokens=40, images=(ONE,))
    assert cold.finish.cached_tokens == 0
    assert cold.tokens == first.tokens == restored.tokens
    await settled(engine)
    await crowd(engine, 1)
    talk.messages.clear()
    _, flipped = await talk.ask(PARTS[0], FLIPPED, PARTS[2], max_tokens=40)
    assert flipped.finish.cached_tokens <= run.begin and flipped.tokens != first.tokens


async def test_counts_are_vllms_own(seeing: SeeingVllmWorld) -> None:
    engine = await start(seeing)
    shapes = [(60, 40), (200, 40), (40, 200), (7, 7), (1_000, 999)]
    images = [input_image(noise(number, width=width, height=height)) for number, (width, height) in enumerate(shapes)]
    talk = ImageTalk(engine, "a")
    lengths = set()
    for image in images:
        talk.messages.clear()
        prompt, answer = await talk.ask(InputText("where is "), image, max_tokens=1)
        (run,) = image_runs(prompt)
        seen = await images_of(engine).show(talk.key, as_tokens(prompt), images)
        sent = engine_input(seen.tokens.tolist(), seen.images, "salt")
        assert len(sent["prompt_token_ids"]) == len(seen.tokens) == len(prompt) == answer.finish.prompt_tokens
        assert sent["prompt_token_ids"][: run.begin] == list(prompt[: run.begin]) and seen.tokens == as_tokens(prompt)
        lengths.add(run.end - run.begin)
    assert len(lengths) > 1, "it depends on the shape"
    images_of(engine).forget(talk.key)
    assert not images_of(engine)._kept and images_of(engine)._kept_bytes == 0


async def test_words_and_answers_with_an_images_tokens_show_nothing(seeing: SeeingVllmWorld) -> None:
    engine = await start(seeing)
    mark = engine.tokenizer.token_id(IMAGE)
    assert mark is not None
    words = "".join(TILE_MARKS)
    assert mark not in await engine.tokenizer.text(words)
    talk = ImageTalk(engine, "a")
    await talk.ask(InputText(words), max_tokens=1)
    talk.messages[-1] = type(talk.messages[-1])(role="assistant", text=IMAGE, tokens=(mark,) * 3)
    prompt, answer = await talk.ask(*PARTS)
    assert answer.finish.prompt_tokens == len(prompt)
    seen = await images_of(engine).show(talk.key, as_tokens(prompt), talk.images)
    sent = engine_input(seen.tokens.tolist(), seen.images, "salt")
    (place,) = sent["mm_placeholders"]["image"]
    (run,) = image_runs(prompt)
    assert (place.offset, place.length) == (run.begin, run.end - run.begin)


async def test_an_opening_stays_shared_beside_images(seeing: SeeingVllmWorld) -> None:
    engine = await start(seeing)
    instructions = "be brief and where does the river go and " * 8
    opening = len(await engine.tokenizer.opening(instructions, ()))

    async def turn(name: str, image: InputImage) -> Answer:
        talk = ImageTalk(engine, name)
        talk.images.append(image)
        text = prompt_text((PARTS[0], image), sees=True)
        talk.messages.append(ChatMessage(role="user", text=text, names_images=True))
        return await talk.run(await talk.prompt(instructions), shared_prefix=opening)

    shared = seeing.whole(opening)
    assert shared
    assert (await turn("a", ONE)).finish.cached_tokens == 0
    for name, image in (("b", ONE), ("c", TWO)):
        assert (await turn(name, image)).finish.cached_tokens == shared


async def test_an_image_of_fewer_tokens_than_its_name_is_seen_and_leaves_no_kv_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "short"
    write_tiny_seeing_folder(folder, FAMILIES["chatml"], SPECIALS, row=4, tiles=False)
    world = VllmWorld(tmp_path, model_path=folder)
    world.cores = Cores()
    try:
        engine = await start(world)
        talk = ImageTalk(engine, "a")
        prompt, first = await talk.ask(*PARTS, max_tokens=40)
        (run,) = image_runs(prompt)
        assert run.end - run.begin == NAME_IDS == first.finish.prompt_tokens - len(prompt) + NAME_IDS
        again = await talk.run(prompt, max_tokens=40)
        assert again.tokens == first.tokens and again.finish.cached_tokens >= world.whole(run.end - NAME_IDS)
        await settled(engine)
        assert engine._offload is not None
        assert engine._offload.tiers.catalog.place(talk.key).tokens <= run.begin
        talk.messages.clear()
        _, flipped = await talk.ask(PARTS[0], FLIPPED, PARTS[2], max_tokens=40)
        assert flipped.finish.cached_tokens <= run.begin and flipped.tokens != first.tokens
        await world.close()
    finally:
        world.cores.close()


async def test_an_image_that_the_model_does_not_take_is_refused_where_it_is_counted(seeing: SeeingVllmWorld) -> None:
    engine = await start(seeing)
    images = images_of(engine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images._processor, "apply", lambda *_: 1 / 0)
        with pytest.raises(BadInput, match="5 times 6 pixels"):
            await images.length(ImageName("ab" * 32, 5, 6))
    assert await images.length(ImageName("ab" * 32, 5, 6)) > 0


async def test_a_model_that_is_told_to_see_nothing_sees_nothing(tmp_path: Path) -> None:
    world = SeeingVllmWorld(tmp_path)
    world.cores = Cores()
    try:
        engine = await start(world, engine_args={"dtype": "float32", "limit_mm_per_prompt": {"image": 0}})
        assert not engine.info.images and not engine.tokenizer.sees
        await world.close()
    finally:
        world.cores.close()


async def test_a_server_answers_about_images(tmp_path: Path) -> None:
    write_tiny_seeing_folder(tmp_path / "tiny", FAMILIES["chatml"], SPECIALS)
    sizes = ("--threads", "1", "--slots", "2", "--context", "2048")
    settings = ("--vllm-args", '{"dtype": "float32", "kv_cache_memory_bytes": 200000000}')
    command = ("--engine", "vllm", "--model", str(tmp_path / "tiny"), *sizes, *settings)
    server = ServerProcess(*command, data=str(tmp_path / "data"))
    await asyncio.to_thread(server.start)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as http:
            assert await sees(http, "tiny")
            one, again, two, none = [await three_turns(http, "tiny", seed) for seed in (1, 1, 2, None)]
            assert [text for text, _, _ in one] == [text for text, _, _ in again]
            assert len({text for text, _, _ in (one[0], two[0], none[0])}) == 3
            for (_, before, _), (_, usage, _) in pairwise(one):
                assert usage["prompt_tokens_details"]["cached_tokens"] > before["prompt_tokens"] - BLOCK_TOKENS
    finally:
        await asyncio.to_thread(server.stop)
