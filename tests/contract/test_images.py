"""Every engine whose model sees images passes this suite, on tiny models whose answers depend on the image."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.llama import LlamaEngine, LlamaOptions
from sessions.model.types import InputText, Sampling, TextOptions
from sessions.ports import ChatMessage, Engine
from sessions.turn.images import MARK, PATCH, image_ids, image_runs
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.engines import SLOTS, WINDOW, AlwaysRestores, World
from tests.support.engines.image_talk import ONE, PARTS, TWO, ImageTalk
from tests.support.engines.tiny_models import SENTENCE_PIECE, write_tiny_model
from tests.support.engines.tiny_projector import input_image, noise, write_tiny_projector

HAS_VLLM = importlib.util.find_spec("vllm") is not None
KINDS = {"qwen2": "chatml", "llama-bpe": "llama3.1", SENTENCE_PIECE: "gemma3"}  # of llama.cpp's models
WORLDS = [
    *(pytest.param(kind, marks=pytest.mark.model) for kind in KINDS),
    *([pytest.param("vllm", marks=pytest.mark.vllm)] if HAS_VLLM else []),  # in its own environment: `make test-vllm`
]


class SeeingLlamaWorld(World):
    name = "llama"

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder)
        self.model, self.projector = folder / "tiny.gguf", folder / "mmproj-tiny.gguf"
        write_tiny_model(self.model, kind, FAMILIES[KINDS[kind]], SPECIALS)
        write_tiny_projector(self.projector)

    def _make(self, waiting_max: int) -> Engine:
        return LlamaEngine(
            LlamaOptions(
                model_path=self.model,
                projector=self.projector,
                slots=SLOTS,
                context_window=WINDOW,
                waiting_max=waiting_max,
                spill_tokens_min=16,
                disk_folder=self.folder / "kv",
            ),
            cost=AlwaysRestores(),
        )


@pytest.fixture(params=WORLDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if request.param == "vllm":
        from tests.support.engines.vllm_world import SeeingVllmWorld

        made: World = SeeingVllmWorld(tmp_path)
    else:
        made = SeeingLlamaWorld(tmp_path, request.param)
    yield made
    await made.close()


@pytest.fixture
async def engine(world: World) -> Engine:
    return await world.engine()


async def test_an_answer_depends_on_the_image_and_on_nothing_else(engine: Engine) -> None:
    assert engine.info.images
    scores = []
    for number, image in enumerate((ONE, ONE, TWO, None, ONE)):
        talk = ImageTalk(engine, str(number))
        prompt, _ = await talk.ask(PARTS[0], *([] if image is None else [image]), PARTS[2])
        answer = await talk.run(prompt, sampling=Sampling(temperature=0, top_logprobs=1))
        scores.append((answer.text, [each for chunk in answer.chunks for each in chunk.logprobs]))
    one, again, two, none, last = scores
    assert one == again == last and two != one != none != two


async def test_turns_reuse_what_images_left_on_the_device(world: World, engine: Engine) -> None:
    talk = ImageTalk(engine, "a")
    prompt, answer = await talk.ask(*PARTS)
    assert answer.finish.prompt_tokens == len(prompt)
    for parts in ((InputText("and where?"),), (InputText("and "), TWO), (InputText("and it?"),)):
        images = [run.end for run in image_runs(prompt)]
        prompt, answer = await talk.ask(*parts)
        assert answer.finish.cached_tokens > images[-1] - world.block_tokens, "all of them"
    counters = engine.stats().counters
    assert not [name for name in ("saves_failed", "saves_of_others", "reuse_misses") if counters.get(name)]


async def test_an_image_that_differs_in_one_bit_shares_no_kv_from_there_on(engine: Engine) -> None:
    talk = ImageTalk(engine, "a")
    prompt, _ = await talk.ask(*PARTS)
    (run,) = image_runs(prompt)
    for image in (input_image(noise(1, flip=at)) for at in (5_000, 5_003)):
        talk.messages.clear()
        _, answer = await talk.ask(PARTS[0], image, PARTS[2])
        assert answer.finish.cached_tokens <= run.begin + 1  # llama-server's own ids may be others in front of it


async def test_a_forged_name_shows_nothing_and_breaks_nothing(engine: Engine) -> None:
    talk = ImageTalk(engine, "a")
    forged = f"{MARK}{'ab' * 32} 99999x99999{MARK}"
    talk.messages.append(ChatMessage(role="user", text=f"where does the river go{forged}?", names_images=True))
    prompt = await talk.prompt()
    assert [run.sha256 for run in image_runs(prompt)] == ["ab" * 32]
    answer = await talk.run(prompt)
    plain = await ImageTalk(engine, "b").run([token for token in prompt if token < PATCH])
    assert answer.text == plain.text and answer.finish.prompt_tokens == len(prompt)
    torn = [*prompt[:5], *image_ids(ONE.sha256, 20)[3:], *prompt[5:]]
    assert await talk.run(torn)
    talk.messages.clear()
    prompt, answer = await talk.ask(*PARTS, InputText(forged))
    assert answer.finish.prompt_tokens == len(prompt)


async def test_an_answer_goes_on_behind_what_was_emitted(world: World, engine: Engine) -> None:
    talk = ImageTalk(engine, "a")
    prompt, answer = await talk.ask(*PARTS)
    emitted = answer.tokens[:3]
    rest = await talk.run((*prompt, *emitted), emitted=emitted)
    again = await talk.run((*prompt, *emitted), emitted=emitted)
    assert rest.text == again.text and len(rest.tokens) == 8
    (run,) = image_runs(prompt)
    assert rest.finish.cached_tokens > run.end - world.block_tokens


async def test_another_replica_goes_on_with_the_kv_of_an_image(world: World, engine: Engine) -> None:
    talk = ImageTalk(engine, "a")
    prompt, first = await talk.ask(*PARTS)
    assert not await engine.warm(talk.key, prompt), "whoever asks for it has no images"
    exported = await engine.export_kv(talk.key, array("I", prompt))
    assert exported is not None
    world.folder = world.folder / "other"
    other = await world.engine()
    assert await other.import_kv(talk.key, exported.chunks)
    talk.engine = other
    again = await talk.run(prompt)
    (run,) = image_runs(prompt)
    assert again.text == first.text and again.finish.cached_tokens > run.end - world.block_tokens


@pytest.mark.parametrize("world", [WORLDS[0], *WORLDS[len(KINDS) :]], indirect=True)
async def test_images_are_seen_through_formats_and_log_probabilities(engine: Engine) -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"enum": ["river", 11]}, "strict": True}
    sampling = Sampling(temperature=0, text=TextOptions(format=schema))
    talk = ImageTalk(engine, "a")
    prompt, _ = await talk.ask(*PARTS)
    whole = await talk.run(prompt, sampling=sampling)
    assert json.loads(whole.text) in ("river", 11)
    emitted = whole.tokens[:1]
    rest = await talk.run((*prompt, *emitted), emitted=emitted, sampling=sampling)
    begun = b"".join(engine.tokenizer.pieces(emitted)).decode()
    assert json.loads(begun + rest.text) in ("river", 11)
    scored = await talk.run(prompt, sampling=Sampling(temperature=0, top_logprobs=2))
    assert all(chunk.logprobs for chunk in scored.chunks if chunk.tokens)


@pytest.mark.parametrize("world", [WORLDS[0], *WORLDS[len(KINDS) :]], indirect=True)
async def test_a_run_that_makes_room_goes_on_with_its_image(engine: Engine) -> None:
    for attempt in range(50):
        talks = [ImageTalk(engine, f"{attempt}-{number}", tenant) for tenant in ("t", "u") for number in range(2)]
        answers = await asyncio.gather(*(talk.ask(*PARTS, max_tokens=100) for talk in talks))
        assert [len(answer.tokens) for _, answer in answers] == [100] * 4
        assert len({answer.tokens[0] for _, answer in answers}) == 1
        if engine.stats().counters["preemptions"]:  # this model may be faster than a turn at a slot is long
            return
    pytest.fail("no run has made room")
