"""Conversations on llama.cpp with every kind of tokenizer, on tiny models with random weights: ten turns, an edit and
an answer made again compute no more than what stands behind the first difference, and the ids are the template's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.llama import LlamaEngine, LlamaOptions
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.engine_conversation import EngineConversation
from tests.support.engines.engines import AlwaysRestores
from tests.support.engines.tiny_models import KINDS, TEMPLATES, write_tiny_model

pytestmark = pytest.mark.model


@pytest.fixture(params=KINDS)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LlamaEngine]:
    file = tmp_path / "tiny.gguf"
    write_tiny_model(file, request.param, FAMILIES[TEMPLATES.get(request.param, "chatml")], SPECIALS)
    made = LlamaEngine(LlamaOptions(model_path=file, slots=2, context_window=2048), cost=AlwaysRestores())
    await made.start()
    yield made
    await made.close()


async def test_turns_edits_and_answers_made_again_compute_what_is_new(engine: LlamaEngine) -> None:
    await EngineConversation(engine, "a").whole()


async def test_texts_come_back_from_their_ids(engine: LlamaEngine) -> None:
    for text in ("where does the river go", " a  b\n\n c", "ü 日本 🙂", "<s></s><|im_start|>", '{"q": [1]}'):
        tokens = await engine.tokenizer.text(text)
        assert b"".join(engine.tokenizer.pieces(tokens)).decode() == text
        assert not set(tokens) & set(range(len(SPECIALS))), "nobody's words are special tokens"
