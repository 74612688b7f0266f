"""lm-evaluation-harness on a small model: a task of 200 multiple-choice items, held against the engine's own scores."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from inference.llama import LlamaEngine, LlamaOptions
from inference.simulated import SimulatedOptions
from tests.support.doors.openai_server import SIMULATED, serving

ITEMS: Final = 200
TASK: Final = """task: own
dataset_path: json
dataset_kwargs: {data_files: {test: ITEMS}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
"""
_WORDS: Final = ("cat", "dog", "river", "hill", "lake", "house", "green", "cold", "bread", "water", "seven", "music")


def write_task(folder: Path) -> None:
    """Writes a task named `own`, with its items."""
    drawn = random.Random(7)
    items = []
    for number in range(ITEMS):
        choices = drawn.sample(_WORDS, 4)
        question = f"Item {number}. The {drawn.choice(_WORDS)} and the {drawn.choice(_WORDS)} go with the"
        items.append({"question": question, "choices": choices, "answer": drawn.randrange(4)})
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "own.yaml").write_text(TASK.replace("ITEMS", str(folder / "items.jsonl")))


async def evaluate(folder: Path, harness: Callable[[str], Awaitable[str]], model_path: Path) -> tuple[str, str]:
    """Runs the harness, given the server's address, and returns what is wrong, and what it printed."""
    options = LlamaOptions(
        model_path=model_path, model_name=SIMULATED, slots=1, context_window=1024, staging_folder=folder
    )
    engine: Any = LlamaEngine(options)
    write_task(folder)
    async with serving(SimulatedOptions(), engine=engine) as server:
        printed = await harness(server.server.url)
        files = list(folder.rglob("samples_own_*.jsonl"))
        if len(files) != 1:
            return "it wrote no samples", printed
        samples = [json.loads(line) for line in files[0].read_text().splitlines()]
        if len(samples) != ITEMS:
            return f"{len(samples)} of {ITEMS} items were answered", printed
        worst, other_picks = 0.0, 0
        for sample in samples:
            own, told = [], [float(answer[0]) for answer in sample["filtered_resps"]]
            for arguments in sample["arguments"].values():
                context, continuation = arguments["arg_0"], arguments["arg_1"]
                opening = len(await engine.tokenizer.text(context))
                scores = await engine.score([*await engine.tokenizer.text(context + continuation)], 1)
                own.append(sum(score.logprob or 0.0 for score in scores[opening - 1 : -1]))
            worst = max(worst, *(abs(a - b) for a, b in zip(own, told, strict=True)))
            other_picks += own.index(max(own)) != told.index(max(told))
        if worst > 1e-3 or other_picks:
            return f"log-likelihoods differ by up to {worst:.5f}, {other_picks} picks are others", printed
    return "", printed
