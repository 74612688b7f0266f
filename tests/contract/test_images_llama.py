"""llama.cpp with a projector: a tiny model sees images, and KV and counts stay true."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from inference.llama import LlamaEngine, LlamaOptions
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import InputImage, InputText, UnixMs
from sessions.ports import ChatMessage
from sessions.turn.images import NAME_IDS, image_runs, prompt_text
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.engines import AlwaysRestores, Answer, key, request
from tests.support.engines.tiny_models import SENTENCE_PIECE, write_tiny_model
from tests.support.engines.tiny_projector import input_image, noise, write_tiny_projector

pytestmark = pytest.mark.model

ONE, TWO = input_image(noise(1)), input_image(noise(2, width=200))
PARTS = (InputText("where does "), ONE, InputText(" the river go?"))
KINDS = {"qwen2": "chatml", "llama-bpe": "llama3.1", SENTENCE_PIECE: "gemma3"}


def options(folder: Path, **more: object) -> LlamaOptions:
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

    def __init__(self, engine: LlamaEngine, name: str) -> None:
        self.engine = engine
        self.key = key(name)
        self.messages: list[ChatMessage] = []
        self.images: list[InputImage] = []

    async def ask(self, *parts: InputText | InputImage) -> tuple[tuple[int, ...], Answer]:
        """Returns the prompt and the answer."""
        self.images += [part for part in parts if isinstance(part, InputImage)]
        self.messages.append(ChatMessage(role="user", text=prompt_text(parts, sees=True)))
        prompt = await self.prompt()
        answer = await self.run(prompt)
        self.messages.append(ChatMessage(role="assistant", text=answer.text, tokens=answer.tokens))
        return prompt, answer

    async def prompt(self) -> tuple[int, ...]:
        tokenizer = self.engine.tokenizer
        return tuple(await tokenizer.conversation("be brief", (), self.messages, UnixMs(0), answer=True))

    async def run(self, prompt: Sequence[int], **more: object) -> Answer:
        sent = msgspec.structs.replace(request(self.key, prompt, max_tokens=8), images=tuple(self.images), **more)
        return await answered(self.engine, sent)


async def answered(engine: LlamaEngine, sent: GenerationRequest) -> Answer:
    items = [item async for item in engine.generate(sent)]
    assert isinstance(items[-1], Finish)
    return Answer(tuple(item for item in items if isinstance(item, Chunk)), items[-1])


async def test_an_answer_depends_on_the_image_and_on_nothing_else(engine: LlamaEngine) -> None:
    assert engine.info.images
    texts = [(await Talk(engine, str(number)).ask(*PARTS))[1].text for number in range(3)]
    (_, other) = await Talk(engine, "other").ask(PARTS[0], TWO, PARTS[2])
    (_, blind) = await Talk(engine, "blind").ask(PARTS[0], PARTS[2])
    assert texts[0] == texts[1] == texts[2] and len({texts[0], other.text, blind.text}) == 3


async def test_turns_reuse_what_images_left_in_the_slot(engine: LlamaEngine) -> None:
    talk = Talk(engine, "a")
    prompt, answer = await talk.ask(*PARTS)
    assert answer.finish.prompt_tokens == len(prompt)
    for parts in ((InputText("and where?"),), (InputText("and "), TWO), (InputText("and it?"),)):
        before = len(prompt)
        prompt, answer = await talk.ask(*parts)
        assert answer.finish.cached_tokens >= before - NAME_IDS
        (run, *_) = image_runs(prompt)
        assert answer.finish.cached_tokens > run.end
    stats = engine.stats().counters
    assert stats["saves_failed"] == stats["saves_of_others"] == stats["reuse_misses"] == 0
