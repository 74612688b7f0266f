"""llama.cpp with a projector: a tiny model sees images, and KV and counts stay true."""

from __future__ import annotations

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
from sessions.model.types import InputImage, InputText
from sessions.turn.images import NAME_IDS, PATCH, image_runs
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.engines import AlwaysRestores
from tests.support.engines.image_talk import ONE, PARTS, TWO, ImageTalk
from tests.support.engines.tiny_models import SENTENCE_PIECE, WIDTH, write_tiny_model
from tests.support.engines.tiny_projector import input_image, noise, write_tiny_projector

pytestmark = pytest.mark.model

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


async def test_an_image_that_differs_in_one_bit_shares_no_kv_from_there_on(engine: LlamaEngine) -> None:
    talk = ImageTalk(engine, "a")
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
        talk = ImageTalk(engine, "a")
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


async def test_words_that_spell_a_special_token_stay_words_beside_an_image(engine: LlamaEngine) -> None:
    words = "".join(SPECIALS[:8]) + "<s></s><s><unk>"
    talk = ImageTalk(engine, "a")
    plain, _ = await talk.ask(*PARTS)
    specials = range(len(SPECIALS) + 2)
    talk.messages.clear()
    prompt, _ = await talk.ask(*PARTS, InputText(words))
    shown, evaluated = await shown_and_evaluated(engine, prompt, talk.images)
    assert len(shown) == evaluated
    assert [each for each in shown if each in specials] == [each for each in plain if each in specials]


async def test_kv_of_images_outlives_its_slot_and_is_of_no_other_image(engine: LlamaEngine) -> None:
    talk = ImageTalk(engine, "a")
    prompt, first = await talk.ask(*PARTS)
    assert not await engine.warm(talk.key, prompt)
    for name in ("b", "c", "d"):
        await ImageTalk(engine, name).ask(InputText("where does the river go and where does it go and the river?"))
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
