"""Histories that are changed in twenty ways before they are resent: what is computed against what must be.

    python -m bench.openai.mutated_histories --histories 2000 --seed 1
    .venv-vllm/bin/python -m bench.openai.mutated_histories --engine vllm --histories 2000 --seed 1

Through `/v1/chat/completions` of a whole server on llama.cpp or vLLM. Half of the conversations were answered there
turn by turn, half were brought along and answered once; each is resent with one change at a random place
(`tests.support.rounds.mutated_histories`). Bar: of every one, no more is computed than the tokens behind the first
difference and one block of 32. With `--restart-every N` the server ends and starts again between the conversations and
what is resent of them, N at a time: what is stored must do. Exits with 1 when the bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx

from bench.support import Option, is_faultless, report, run_bench
from tests.support.doors.server_process import ROOT, ServerProcess
from tests.support.rounds.mutated_histories import MUTATIONS, HistoryRound, HistoryRounds

BLOCK: Final = 32
VLLM_MODEL: Final = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1-vllm-fp32"
ENGINES: Final = {
    "llama": ("--engine", "llama", "--threads", "1", "--slots", "2"),
    "vllm": ("--engine", "vllm", "--model", str(VLLM_MODEL), "--threads", "1", "--slots", "2", "--context", "2048"),
    "sim": ("--engine", "sim"),
}


@contextlib.asynccontextmanager
async def served(given: argparse.Namespace, data: str) -> AsyncIterator[HistoryRounds]:
    server = ServerProcess(*ENGINES[given.engine], data=data)
    with server:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=300) as http:
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            yield HistoryRounds(http, model, exchanges=given.exchanges, answer_tokens=given.answer_tokens)


async def played(given: argparse.Namespace, data: str) -> list[tuple[int, HistoryRound]]:
    """Each history's number and what it cost. The ways take turns."""
    rounds: list[tuple[int, HistoryRound]] = []
    ways = list(MUTATIONS)
    numbers = range(given.first, given.first + given.histories)
    size = given.restart_every or 1
    batches = [numbers[at : at + size] for at in range(0, len(numbers), size)]
    async with contextlib.AsyncExitStack() as servers:
        player = await servers.enter_async_context(served(given, data))
        for batch in batches:
            chances = [random.Random(given.seed * 1_000_003 + number) for number in batch]
            begun = [await player.begin(rng) for rng in chances]
            if given.restart_every:
                await servers.aclose()
                player = await servers.enter_async_context(served(given, data))
            for number, rng, conversation in zip(batch, chances, begun, strict=True):
                rounds.append((number, await player.resend(ways[number % len(ways)], rng, conversation)))
    return rounds


def figures_of(rounds: list[tuple[int, HistoryRound]]) -> dict[str, Any]:
    of_way: dict[str, list[HistoryRound]] = defaultdict(list)
    for _, each in rounds:
        of_way[each.mutation].append(each)
    over = {way: max(each.computed - each.behind for each in those) for way, those in of_way.items()}
    return {
        "histories": len(rounds),
        "within (bar 1)": sum(each.is_within(BLOCK) for _, each in rounds) / len(rounds),
        "prompt tokens": sum(each.prompt_tokens for _, each in rounds),
        "behind the first difference": sum(each.behind for _, each in rounds),
        "computed": sum(each.computed for _, each in rounds),
        "in the session that they came from": sum(each.same_session for _, each in rounds),
        **{f"{way}: computed beyond, at most (bar {BLOCK})": most for way, most in over.items()},
    }


async def main(given: argparse.Namespace) -> bool:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as data:
        rounds = await played(given, data)
    report(f"mutated_histories_{given.engine}", {**figures_of(rounds), "seconds": time.monotonic() - started})
    return is_faultless([f"{number}: {each}" for number, each in rounds if not each.is_within(BLOCK)])


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        engine=Option("llama", choices=list(ENGINES)),
        histories=Option(2000, "how many are resent"),
        seed=1,
        first=Option(0, "the number of the first one: to see one again"),
        exchanges=Option(3, "questions of a conversation before the one that is resent"),
        answer_tokens=12,
        restart_every=Option(0, "conversations between two restarts of the server; 0: none"),
    )
