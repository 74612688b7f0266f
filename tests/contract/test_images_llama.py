"""llama.cpp with a projector: a tiny model sees images, and KV and counts stay true."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.http_client import HttpClient
from inference.llama import LlamaEngine, LlamaOptions
from inference.llama.gguf import read_model
from inference.llama.shown_prompts import ImageLengths, PromptShower
from inference.llama.vocabulary import read_vocabulary
from sessions.model.errors import BadInput, Unavailable
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import InputImage, InputText, Sampling, TextOptions, UnixMs
from sessions.ports import ChatMessage
from sessions.turn.images import MARK, NAME_IDS, PATCH, image_ids, image_runs, prompt_text
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.engines import AlwaysRestores, Answer, key, request
from tests.support.engines.tiny_models import SENTENCE_PIECE, WIDTH, write_tiny_model
from tests.support.engines.tiny_projector import input_image, noise, write_tiny_projector

pytestmark = pytest.mark.model

ONE, TWO = input_image(noise(1)), input_image(noise(2, width=200))
PARTS = (InputText("where does "), ONE, InputText(" the river go?"))
KINDS = {"qwen2": "chatml", "llama-bpe": "llama3.1", SENTENCE_PIECE: "gemma3"}


def options(folder: Path, **more: Any) -> LlamaOptions:
    usual = {"slots": 2, "context_window": 1024, "spill_tokens_min": 16, "disk_folder": folder / "kv"}
    paths = {"model_path": folder / "tiny.gguf", "projector": folder / "mmproj-tiny.gguf"}
    return msgspec.convert({**paths, **usual, **more}, LlamaOptions)


@pytest.fixture(params=KINDS)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LlamaEngine]:
    write_tiny_model(tmp_path / "tiny.gguf", request.param, FAMILIES[KINDS[request.param]], SPECIALS)
    write_tiny_projector(tmp_path / "mmproj-tiny.gguf")
    made = LlamaEngine(options(tmp_path), cost=AlwaysRestores())
    await made.start()
    yield made
    stats = made.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    await made.close()


class Talk:
    """A conversation with images."""

    def __init__(self, engine: LlamaEngine, name: str, tenant: str = "t") -> None:
        self.engine = engine
        self.key = key(name, tenant)
        self.messages: list[ChatMessage] = []
        self.images: list[InputImage] = []

    async def ask(self, *parts: InputText | InputImage, max_tokens: int = 8) -> tuple[tuple[int, ...], Answer]:
        """Returns the prompt and the answer."""
        self.images += [part for part in parts if isinstance(part, InputImage)]
        self.messages.append(ChatMessage(role="user", text=prompt_text(parts, sees=True), names_images=True))
        prompt = await self.prompt()
        answer = await self.run(prompt, max_tokens=max_tokens)
        self.messages.append(ChatMessage(role="assistant", text=answer.text, tokens=answer.tokens))
        return prompt, answer

    async def prompt(self) -> tuple[int, ...]:
        tokenizer = self.engine.tokenizer
        return tuple(await tokenizer.conversation("be brief", (), self.messages, UnixMs(0), answer=True))

    async def run(self, prompt: Sequence[int], **more: Any) -> Answer:
        usual = {"max_tokens": 8, "images": tuple(self.images)}
        sent = request(self.key, prompt, **{**usual, **more})
        return await answered(self.engine, sent)


async def answered(engine: LlamaEngine, sent: GenerationRequest) -> Answer:
    items = [item async for item in engine.generate(sent)]
    assert isinstance(items[-1], Finish)
    return Answer(tuple(item for item in items if isinstance(item, Chunk)), items[-1])


async def test_an_answer_depends_on_the_image_and_on_nothing_else(engine: LlamaEngine) -> None:
    assert engine.info.images
    scores = []
    for number, image in enumerate((ONE, ONE, TWO, None, ONE)):
        talk = Talk(engine, str(number))
        prompt, _ = await talk.ask(PARTS[0], *([] if image is None else [image]), PARTS[2])
        answer = await talk.run(prompt, sampling=Sampling(temperature=0, top_logprobs=1))
        scores.append([(chunk.text, chunk.logprobs) for chunk in answer.chunks])
    one, again, two, none, last = scores
    assert one == again == last and two != one != none != two


async def test_turns_reuse_what_images_left_in_the_slot(engine: LlamaEngine) -> None:
    talk = Talk(engine, "a")
    prompt, answer = await talk.ask(*PARTS)
    assert answer.finish.prompt_tokens == len(prompt)
    for parts in ((InputText("and where?"),), (InputText("and "), TWO), (InputText("and it?"),)):
        images = [run.end for run in image_runs(prompt)]
        prompt, answer = await talk.ask(*parts)
        assert answer.finish.cached_tokens > images[-1], "all of them"
    counters = engine.stats().counters
    assert counters["saves_failed"] == counters["saves_of_others"] == counters["reuse_misses"] == 0


async def test_an_image_that_differs_in_one_bit_shares_no_kv_from_there_on(engine: LlamaEngine) -> None:
    talk = Talk(engine, "a")
    prompt, _ = await talk.ask(*PARTS)
    shown, _ = await shown_and_evaluated(engine, prompt, talk.images)
    before = next(at for at, token in enumerate(shown) if token >= PATCH)
    for image in (input_image(noise(1, flip=at)) for at in (5_000, 5_003)):
        talk.messages.clear()
        _, answer = await talk.ask(PARTS[0], image, PARTS[2])
        assert answer.finish.cached_tokens <= before


@pytest.mark.parametrize(("row", "adds_bos"), [(1, False), (2, True), (4, False), (8, True)])
async def test_counts_are_llama_servers_own(row: int, adds_bos: bool, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny.gguf", "qwen2", FAMILIES["chatml"], SPECIALS, adds_bos=adds_bos)
    write_tiny_projector(tmp_path / "mmproj-tiny.gguf", row=row)
    engine = LlamaEngine(options(tmp_path))
    await engine.start()
    try:
        talk = Talk(engine, "a")
        for parts in (PARTS, (TWO,), (InputText("and "), ONE, TWO)):
            prompt, answer = await talk.ask(*parts)
            for run in image_runs(prompt):
                assert run.end - run.begin == max(NAME_IDS, row * row)
            shown, evaluated = await shown_and_evaluated(engine, prompt, talk.images)
            assert len(shown) == evaluated
            if row * row >= NAME_IDS:
                assert len(prompt) == evaluated == answer.finish.prompt_tokens
    finally:
        await engine.close()


async def shown_and_evaluated(
    engine: LlamaEngine, prompt: Sequence[int], images: Sequence[InputImage]
) -> tuple[Sequence[int], int]:
    """Returns the ids that llama-server is expected to have of a prompt, and how many it has."""
    http = HttpClient.unix(engine.socket_path)
    lengths = ImageLengths(http)
    await lengths.start()
    vocabulary = read_vocabulary(read_model(engine.options.model_path).metadata)
    shower = PromptShower(http, vocabulary, lengths)
    await shower.start()
    shown = await shower.show(prompt, images)
    assert shown is not None
    body = {"prompt": shown.body(shown.tokens), "n_predict": 0, "cache_prompt": False}
    status, answer = await http.call("POST", "/completion", msgspec.json.encode(body))
    assert status == 200
    return shown.tokens, msgspec.json.decode(answer)["tokens_evaluated"]


async def test_a_forged_name_shows_nothing_and_breaks_nothing(engine: LlamaEngine) -> None:
    talk = Talk(engine, "a")
    forged = f"{MARK}{'ab' * 32} 99999x99999{MARK}"
    talk.messages.append(ChatMessage(role="user", text=f"where does the river go{forged}?", names_images=True))
    prompt = await talk.prompt()
    assert [run.sha256 for run in image_runs(prompt)] == ["ab" * 32]
    answer = await talk.run(prompt)
    plain = await Talk(engine, "b").run([token for token in prompt if token < PATCH])
    assert answer.text == plain.text and answer.finish.prompt_tokens == len(prompt)
    torn = [*prompt[:5], *image_ids(ONE.sha256, 20)[3:], *prompt[5:]]
    assert await talk.run(torn)
    talk.messages.clear()
    prompt, answer = await talk.ask(*PARTS, InputText(forged))
    assert answer.finish.prompt_tokens == len(prompt)


async def test_words_that_spell_a_special_token_stay_words_beside_an_image(engine: LlamaEngine) -> None:
    words = "".join(SPECIALS[:8]) + "<s></s><s><unk>"
    talk = Talk(engine, "a")
    plain, _ = await talk.ask(*PARTS)
    specials = range(len(SPECIALS) + 2)
    talk.messages.clear()
    prompt, _ = await talk.ask(*PARTS, InputText(words))
    shown, evaluated = await shown_and_evaluated(engine, prompt, talk.images)
    assert len(shown) == evaluated
    assert [each for each in shown if each in specials] == [each for each in plain if each in specials]


async def test_an_answer_goes_on_behind_what_was_emitted(engine: LlamaEngine) -> None:
    talk = Talk(engine, "a")
    prompt, answer = await talk.ask(*PARTS)
    emitted = answer.tokens[:3]
    rest = await talk.run((*prompt, *emitted), emitted=emitted)
    again = await talk.run((*prompt, *emitted), emitted=emitted)
    assert rest.text == again.text and len(rest.tokens) == 8
    (run,) = image_runs(prompt)
    assert rest.finish.cached_tokens > run.end


async def test_kv_of_images_outlives_its_slot_and_is_of_no_other_image(engine: LlamaEngine) -> None:
    talk = Talk(engine, "a")
    prompt, first = await talk.ask(*PARTS)
    assert not await engine.warm(talk.key, prompt)
    for name in ("b", "c", "d"):
        await Talk(engine, name).ask(InputText("where does the river go and where does it go and the river?"))
    assert engine.place(talk.key).tier == "host"
    again = await talk.run(prompt)
    assert again.text == first.text
    (run,) = image_runs(prompt)
    assert again.finish.cached_tokens > run.end, "it was restored"
    counters = engine.stats().counters
    assert counters["restores"] >= 1
    refused = ("saves_failed", "saves_of_others", "restores_failed", "restores_refused", "reuse_misses")
    assert not [name for name in refused if counters[name]]
    talk.messages.clear()
    _, other = await talk.ask(PARTS[0], input_image(noise(1, flip=5_000)), PARTS[2])
    assert other.finish.cached_tokens <= run.begin + 1


async def test_another_replica_goes_on_with_the_kv_of_an_image(engine: LlamaEngine, tmp_path: Path) -> None:
    talk = Talk(engine, "a")
    prompt, first = await talk.ask(*PARTS)
    exported = await engine.export_kv(talk.key, array("I", prompt))
    assert exported is not None
    other = LlamaEngine(options(tmp_path, disk_folder=None), cost=AlwaysRestores())
    await other.start()
    try:
        assert await other.import_kv(talk.key, exported.chunks)
        talk.engine = other
        again = await talk.run(prompt)
        (run,) = image_runs(prompt)
        assert again.text == first.text and again.finish.cached_tokens > run.end
    finally:
        await other.close()


@pytest.mark.parametrize("engine", ["qwen2"], indirect=True)
async def test_images_are_seen_through_formats_and_log_probabilities(engine: LlamaEngine) -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"enum": ["river", 11]}, "strict": True}
    sampling = Sampling(temperature=0, text=TextOptions(format=schema))
    talk = Talk(engine, "a")
    prompt, _ = await talk.ask(*PARTS)
    whole = await talk.run(prompt, sampling=sampling)
    assert json.loads(whole.text) in ("river", 11)
    emitted = whole.tokens[:1]
    rest = await talk.run((*prompt, *emitted), emitted=emitted, sampling=sampling)
    begun = b"".join(engine.tokenizer.pieces(emitted)).decode()
    assert json.loads(begun + rest.text) in ("river", 11)
    scored = await talk.run(prompt, sampling=Sampling(temperature=0, top_logprobs=2))
    assert all(chunk.logprobs for chunk in scored.chunks if chunk.tokens)


@pytest.mark.parametrize("engine", ["qwen2"], indirect=True)
async def test_a_run_that_makes_room_goes_on_with_its_image(engine: LlamaEngine) -> None:
    for attempt in range(50):
        talks = [Talk(engine, f"{attempt}-{number}", tenant) for tenant in ("t", "u") for number in range(2)]
        answers = await asyncio.gather(*(talk.ask(*PARTS, max_tokens=100) for talk in talks))
        assert [len(answer.tokens) for _, answer in answers] == [100] * 4
        assert len({answer.tokens[0] for _, answer in answers}) == 1
        if engine.stats().counters["preemptions"]:  # this model may be faster than a turn at a slot is long
            return
    pytest.fail("no run has made room")


async def test_a_file_that_is_no_projector_is_refused_at_the_start(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny.gguf", "qwen2", FAMILIES["chatml"], SPECIALS)
    for projector, why in (("tiny.gguf", "architecture 'llama'"), ("missing.gguf", "no whole GGUF file")):
        engine = LlamaEngine(options(tmp_path, projector=tmp_path / projector))
        with pytest.raises(BadInput, match=why) as refused:
            await engine.start()
        assert refused.value.param == "projector"
    write_tiny_projector(tmp_path / "mmproj-tiny.gguf", width=2 * WIDTH)
    with pytest.raises(Unavailable, match="belongs to another model"):
        await LlamaEngine(options(tmp_path)).start()


async def test_the_projector_is_a_part_of_the_models_name(tmp_path: Path) -> None:
    names, tokenizers = set(), set()
    write_tiny_model(tmp_path / "tiny.gguf", "qwen2", FAMILIES["chatml"], SPECIALS)
    for seed in ("", "one", "two"):
        if seed:
            write_tiny_projector(tmp_path / "mmproj-tiny.gguf", seed=seed)
        engine = LlamaEngine(options(tmp_path, **({} if seed else {"projector": None})))
        await engine.start()
        names.add(engine.info.model_fingerprint)
        tokenizers.add(engine.tokenizer.fingerprint)
        assert engine.info.images == bool(seed)
        await engine.close()
    assert len(names) == len(tokenizers) == 3
