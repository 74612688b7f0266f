"""Answers in a fixed format on llama.cpp in a process with several models: one after another, and beside each other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from inference.llama import LlamaEngine, LlamaOptions
from inference.llama.grammar_cache import GrammarCache
from sessions.model.types import Json, Sampling, TextOptions
from testbed.engine_client import ask, key
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.tiny_models import KINDS, write_tiny_model

pytestmark = pytest.mark.model
ROOT = Path(__file__).resolve().parents[2]
SCHEMA: Json = {
    "type": "object",
    "properties": {"a river": {"enum": ["where does", 7]}, "go": {"enum": [None]}},
    "required": ["a river", "go"],
    "additionalProperties": False,
}
FORMATTED = Sampling(temperature=0, text=TextOptions({"type": "json_schema", "name": "x", "schema": SCHEMA}))
Start = Callable[[str, tuple[str, ...]], Awaitable[LlamaEngine]]
MANY = tuple(f"<|special_{number}|>" for number in range(99))

IN_TURN = """
import asyncio, sys
from pathlib import Path
from inference.llama import LlamaEngine, LlamaOptions
from tests.contract.test_grammars_llama import formatted_answer

async def answer(file: Path) -> None:
    engine = LlamaEngine(LlamaOptions(model_path=file, slots=1, context_window=512))
    await engine.start()
    print(await formatted_answer(engine), flush=True)
    await engine.close()

async def answers() -> None:
    for name in sys.argv[1:] * 4:
        await answer(Path(name))

asyncio.run(answers())
"""


async def formatted_answer(engine: LlamaEngine) -> str:
    prompt = list(await engine.tokenizer.text("where does the river go"))
    return (await ask(engine, key("a"), prompt, max_tokens=64, sampling=FORMATTED)).text


def is_in_format(text: str) -> bool:
    value = msgspec.json.decode(text, type=dict[str, Json])
    return value in ({"a river": "where does", "go": None}, {"a river": 7, "go": None})


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an engine with a tiny model of a kind of tokenizer that has these special tokens."""
    engines: list[LlamaEngine] = []

    async def start(kind: str, specials: tuple[str, ...]) -> LlamaEngine:
        file = tmp_path / f"{len(engines)}.gguf"
        write_tiny_model(file, kind, FAMILIES["chatml"], specials)
        engines.append(LlamaEngine(LlamaOptions(model_path=file, slots=1, context_window=512)))
        await engines[-1].start()
        return engines[-1]

    yield start
    for engine in engines:
        await engine.close()


def test_models_that_follow_each_other_in_a_process_keep_their_formats(tmp_path: Path) -> None:
    """llama.cpp took the next model's vocabulary for the one before it, which had had its address, and aborted."""
    files = (tmp_path / "few.gguf", tmp_path / "many.gguf")
    for file, specials in zip(files, (SPECIALS, (*SPECIALS, *MANY)), strict=True):
        write_tiny_model(file, "qwen2", FAMILIES["chatml"], specials)
    run = [sys.executable, "-c", IN_TURN, *map(str, files)]
    child = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr[-2000:]
    answers = [line for line in child.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == 8 and all(map(is_in_format, answers))


async def test_models_beside_each_other_keep_their_formats_and_one_of_them_has_llama_cpps(start: Start) -> None:
    engines = [await start("qwen2", SPECIALS), await start("qwen2", (*SPECIALS, *MANY))]
    for _ in range(3):
        assert all(map(is_in_format, await asyncio.gather(*map(formatted_answer, engines))))
    servers = [engine._up.server for engine in engines]
    owns = [await server.has_grammars() for server in servers]
    assert sorted(owns) == [False, True]
    await engines[owns.index(True)].close()
    other = engines[owns.index(False)]
    assert is_in_format(await formatted_answer(other)) and await other._up.server.has_grammars()


def test_grammars_stay_away_where_the_file_of_the_model_before_is_another(tmp_path: Path) -> None:
    cache, file = GrammarCache(), tmp_path / "before.gguf"
    file.write_bytes(b"one")
    assert cache.claim("before", file) and not cache.claim("beside", file)
    cache.release("beside")
    assert cache.is_owned_by("before") and cache.claim("before", file)
    cache.release("before")
    file.write_bytes(b"others")
    assert not cache.claim("after", file) and not cache.is_owned_by("after")
    file.unlink()
    assert not cache.claim("after", file)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_tokenizer_keeps_a_format(kind: str, start: Start) -> None:
    """SentencePiece's were no format at all: a lone space was nothing to llama.cpp's grammar, and always allowed."""
    assert is_in_format(await formatted_answer(await start(kind, SPECIALS)))
