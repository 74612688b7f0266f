"""Conversations on llama.cpp with every kind of tokenizer, on tiny models with random weights: ten turns, an edit and
an answer made again compute no more than what stands behind the first difference, and the ids are the template's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from inference.llama import LlamaEngine, LlamaOptions
from sessions.model.types import Sampling, Tokens, UnixMs
from sessions.ports import ChatMessage
from sessions.turn.retokenisation import shared_length
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.engines import AlwaysRestores, ask, key
from tests.support.engines.tiny_models import KINDS, SENTENCE_PIECE, write_tiny_model

pytestmark = pytest.mark.model

TEMPLATES = {  # by the kind of tokenizer that their models have; the others get ChatML
    "llama-bpe": "llama3.1",
    "qwen2": "qwen3",
    "deepseek-llm": "r1-distill",
    "deepseek-v3": "deepseek-v3.1",
    "tekken": "mistral",
    "command-r": "command-r",
    "gpt-4o": "gpt-oss",
    SENTENCE_PIECE: "gemma3",
}
ANSWER_TOKENS = 6


def greedy(engine: LlamaEngine) -> Sampling:
    """Returns greedy sampling that never takes a part of a character: random weights write such bytes in any order,
    which is no text, and its ids are those of the replacement character."""
    return Sampling(temperature=0, logit_bias={str(each): -100.0 for each in _broken(engine)})


def _broken(engine: LlamaEngine) -> Iterator[int]:
    size = engine.tokenizer.about.vocabulary_size
    for token, piece in enumerate(engine.tokenizer.pieces(range(size))):
        try:
            piece.decode()
        except UnicodeDecodeError:
            yield token


@pytest.fixture(params=KINDS)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LlamaEngine]:
    file = tmp_path / "tiny.gguf"
    write_tiny_model(file, request.param, FAMILIES[TEMPLATES.get(request.param, "chatml")], SPECIALS)
    made = LlamaEngine(LlamaOptions(model_path=file, slots=2, context_window=2048), cost=AlwaysRestores())
    await made.start()
    yield made
    await made.close()


class Talk:
    """One session's conversation, and what the engine has computed of it."""

    def __init__(self, engine: LlamaEngine, name: str) -> None:
        self.engine = engine
        self.key = key(name)
        self.sampling = greedy(engine)
        self.messages: list[ChatMessage] = []
        self.before: Tokens = ()  # what the last run left in KV

    async def prompt(self) -> Tokens:
        return await self.engine.tokenizer.conversation("be brief", (), self.messages, UnixMs(0), answer=True)

    async def turn(self, text: str) -> str:
        """Asks, and verifies that the engine computes only what stands behind the first difference, and one token."""
        self.messages.append(ChatMessage(role="user", text=text))
        prompt = await self.prompt()
        answer = await ask(self.engine, self.key, prompt, max_tokens=ANSWER_TOKENS, sampling=self.sampling)
        kept = shared_length(prompt, self.before)
        assert len(prompt) - answer.finish.cached_tokens <= len(prompt) - kept + 1
        self.before = (*prompt, *answer.tokens)
        self.messages.append(ChatMessage(role="assistant", text=answer.text, tokens=answer.tokens))
        return answer.text


async def test_turns_edits_and_answers_made_again_compute_what_is_new(engine: LlamaEngine) -> None:
    talk = Talk(engine, "a")
    first = await talk.turn("where does the river go ü 日本?")
    for number in range(9):
        await talk.turn(f"and where does it go {number}?")
    talk.messages = talk.messages[:2]
    await talk.turn("the river and it?")
    talk.messages = []
    assert await talk.turn("where does the river go ü 日本?") == first, "the same prompt, the same answer"


async def test_texts_come_back_from_their_ids(engine: LlamaEngine) -> None:
    for text in ("where does the river go", " a  b\n\n c", "ü 日本 🙂", "<s></s><|im_start|>", '{"q": [1]}'):
        tokens = await engine.tokenizer.text(text)
        assert b"".join(engine.tokenizer.pieces(tokens)).decode() == text
        assert not set(tokens) & set(range(len(SPECIALS))), "nobody's words are special tokens"
