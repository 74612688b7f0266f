"""Conversations on vLLM with several kinds of tokenizer, on tiny models with random weights: ten turns, an edit and an
answer made again compute no more than what stands behind the first difference and one block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.vllm.engine import VllmEngine
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.engine_conversation import EngineConversation
from tests.support.engines.engines import AlwaysRestores
from tests.support.engines.tiny_models import FOLDER_KINDS, TEMPLATES, write_tiny_folder
from tests.support.engines.vllm_world import BLOCK_TOKENS, Cores, LentCore, vllm_options

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]
WINDOW = 2048


@pytest.fixture(params=FOLDER_KINDS)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[VllmEngine]:
    folder = tmp_path / "tiny"
    write_tiny_folder(folder, request.param, FAMILIES[TEMPLATES[request.param]], SPECIALS)
    options = vllm_options(tmp_path, model_path=folder, context_window=WINDOW, device_blocks=4 * WINDOW // BLOCK_TOKENS)
    cores = Cores()
    made = VllmEngine(options, core=LentCore(options, cores), cost=AlwaysRestores())
    await made.start()
    yield made
    await made.close()
    cores.close()


async def test_turns_edits_and_answers_made_again_compute_what_is_new(engine: VllmEngine) -> None:
    await EngineConversation(engine, "a", block=BLOCK_TOKENS, answer_tokens=BLOCK_TOKENS).whole()
    for text in ("where does the river go", " a  b\n\n c", "ü 日本 🙂", "<s></s><|im_start|>", '{"q": [1]}'):
        tokens = await engine.tokenizer.text(text)
        assert b"".join(engine.tokenizer.pieces(tokens)).decode() == text
        assert not set(tokens) & set(range(len(SPECIALS))), "nobody's words are special tokens"
