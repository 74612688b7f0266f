"""Cancel: how soon the engine's slot is free, and that no delta follows the answer.

    python -m bench.engine.cancel --rounds 100

Over WebSocket, on llama.cpp with two slots: one holds a stream that goes on, in the other an answer is cancelled at a
random moment, half of the time while its prompt is being computed. From the cancel sent to the moment that
llama-server itself (/slots, asked again and again) calls the slot idle; it answers between steps, so the figures are
upper bounds. A step's length is the longest silence of the other stream in the same round: it gets a token a step.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.support import filler, report, run_bench, spread
from inference.http_client import HttpClient
from tests.support.doors.server_process import ROOT, ServerProcess
from tests.support.doors.wire_client import connected
from tests.support.percentiles import percentile

ADDRESS = "llama.address"
GOES_ON = {"max_output_tokens": 800, "logit_bias": {"0": -100.0, "2": -100.0}}  # the small model's ends are never said


class _Slot(msgspec.Struct):
    is_processing: bool


def serve(arguments: list[str]) -> int:
    """`app.py serve` that writes down where its llama-server listens."""
    sys.path.insert(0, str(ROOT))
    import app
    from inference.llama.server import LlamaServer

    path = Path(arguments[arguments.index("--data") + 1]) / ADDRESS
    start = LlamaServer.start

    async def noted(self: LlamaServer) -> HttpClient:
        http = await start(self)
        path.write_text(http.socket_path)
        return http

    LlamaServer.start = noted  # type: ignore[method-assign]
    return app.main(["serve", *arguments])


async def num_busy(http: HttpClient) -> int:
    _, body = await http.call("GET", "/slots")
    return sum(slot.is_processing for slot in msgspec.json.decode(body, type=list[_Slot]))


async def main(arguments: argparse.Namespace) -> bool:
    chance = random.Random(arguments.seed)
    late: list[dict[str, Any]] = []
    freed: dict[str, list[float]] = {"decode": [], "prefill": []}
    over: list[float] = []
    answers: list[float] = []
    with ServerProcess(
        "--engine", "llama", "--threads", "1", "--slots", "2", program=("-m", "bench.engine.cancel", "serve")
    ) as server:
        http = HttpClient.unix((Path(server.data) / ADDRESS).read_text())
        async with connected(server.url) as wire, connected(server.url) as background:
            other = await background.create()
            for number in range(arguments.rounds):
                kind = ("decode", "prefill")[number % 2]
                session = await wire.create()
                on = await background.command(
                    "message.create", session=other, content=f"A long story, number {number}.", **GOES_ON
                )
                while (await background.events.get())["event"]["type"] != "response.output_text.delta":
                    continue
                words = filler(1500 if kind == "prefill" else 5, number)
                answer = await wire.command("message.create", session=session, content=words, **GOES_ON)
                if kind == "decode":
                    for _ in range(chance.randrange(4, 12)):
                        await wire.events.get()
                await asyncio.sleep(0.3 * chance.random())
                while await num_busy(http) < 2:
                    continue
                started = time.monotonic()
                done = await wire.command("response.cancel", session=session, response_id=answer["response_id"])
                answers.append(time.monotonic() - started)
                while await num_busy(http) > 1:  # each answer takes a step, so this is no busy loop
                    continue
                ended = time.monotonic()
                freed[kind].append(ended - started)
                await background.command("response.cancel", session=other, response_id=on["response_id"])
                arrivals: list[float] = []
                while not background.events.empty():
                    frame = background.events.get_nowait()
                    if frame["event"]["type"] == "response.output_text.delta":
                        arrivals.append(frame["arrived"])
                step = max((b - a for a, b in itertools.pairwise(arrivals)), default=0.0)
                over.append(ended - started - step)
                while not wire.events.empty():
                    frame = wire.events.get_nowait()
                    if frame["session"] == session and frame["offset"] > done["offset"]:
                        late.append(frame)
                await wire.command("session.delete", session=session)
    report(
        "cancel",
        {
            "rounds": arguments.rounds,
            "cancel answered p50 ms": percentile(answers, 0.5) * 1000,
            **spread("slot free in decode, {} ms", freed["decode"], times=1000),
            **spread("slot free in prefill, {} ms", freed["prefill"], times=1000),
            "beyond the round's longest step, p99 ms (bar 100)": percentile(over, 0.99) * 1000,
            "events after the answer": len(late),
        },
    )
    return not late


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        sys.exit(serve(sys.argv[2:]))
    run_bench(main, __doc__, rounds=100, seed=1)
