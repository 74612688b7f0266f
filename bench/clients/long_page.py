"""A conversation of 200 turns on the page in a real Chromium while a 100 KB answer streams into it and somebody types.

    python -m bench.clients.long_page --turns 200 --kilobytes 100 --tokens-per-s 50 --quick-kilobytes 80

The answer is Markdown with code, formulas and tables (`long_answer.txt`, over and over), a token of four characters at
a time. The whole of it at 50 tokens/s takes over eight minutes; what `--quick-kilobytes` names comes twenty times as
fast, so that the rest, where the text is longest and each token costs most, is what is seen at the rate. Bars: no task
of the page's main thread over 50 ms of CPU, 95% of the keys shown within 50 ms, memory bounded (the heap after
collection grows by no more than 32 MiB). It needs Node and Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from bench.support import Option, is_faultless, report, run_bench
from inference.simulated import SimulatedEngine, SimulatedOptions, decode
from sessions.model.generation import Chunk, Finish, GenerationRequest
from tests.support.doors.assembly import assembled
from tests.support.doors.server_process import ROOT
from tests.support.doors.wire_client import connected

TOKEN = 4  # characters of one
HASTE = 20  # times as fast, for what is not looked at
SECTION = (Path(__file__).parent / "long_answer.txt").read_text()


def text_of(characters: int) -> str:
    return "".join(SECTION.replace("@n", str(n)) for n in range(characters // len(SECTION) + 1))[:characters]


class Writing(SimulatedEngine):
    """Answers at once while the conversation is made, and then with a long text, at a rate."""

    def __init__(self, text: str, quick: int, tokens_per_s: float) -> None:
        super().__init__(SimulatedOptions(context_window=1_000_000, kv_tokens_max=4_000_000))
        self._text, self._quick, self._rate = text, quick, tokens_per_s
        self.paced = False

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        begun = len(decode(request.emitted))
        loop = asyncio.get_running_loop()
        text, due = (self._text if self.paced else SECTION), loop.time()
        for at in range(begun, len(text), TOKEN):
            piece = text[at : at + TOKEN]
            if self.paced:
                due += 1 / (self._rate * (HASTE if at < self._quick else 1))
                await asyncio.sleep(max(0.0, due - loop.time()))
            yield Chunk(tuple(piece.encode()), piece)
        yield Finish("stop", len(request.prompt), 0)


async def main(given: argparse.Namespace) -> bool:
    characters = given.kilobytes * 1000
    engine = Writing(text_of(characters), given.quick_kilobytes * 1000, given.tokens_per_s)
    async with assembled(engine=engine) as server:
        async with connected(server.ws) as wire:
            session = await wire.create(title="A long one")
            for turn in range(given.turns):
                sent = await wire.command(
                    "message.create", session=session, content=f"Question {turn} about the tides?"
                )
                await wire.until_end(str(sent["response_id"]))
        engine.paced = True
        run = await asyncio.create_subprocess_exec(
            *(str(ROOT / "deploy" / "with_node.sh"), "node", str(ROOT / "tests" / "browser" / "long_page.mjs")),
            *("--url", f"{server.server.url}/", "--session", session, "--characters", str(characters)),
            cwd=ROOT,
            env={**os.environ, "SESSILE_TEST_PYTHON": sys.executable},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await run.communicate()
    result = msgspec.json.decode(output)
    good = is_faultless(result["faults"])
    report("long_page", {**vars(given), **result, "faults": len(result["faults"])})
    return good


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        turns=200,
        kilobytes=100,
        tokens_per_s=50.0,
        quick_kilobytes=Option(80, "of the answer come faster, before what is measured at the rate"),
    )
