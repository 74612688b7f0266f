"""A follow-up turn while resident: what is reused, and its first token against a direct request to a slot.

    python -m bench.engine.follow_up --turns 12

Ours: one session over WebSocket, growing turn by turn. Peer: the same engine's own server, the same token counts sent
to one slot with `cache_prompt`, as ids. One engine thread each; turns of both alternate. Bars: ≥ 99% of reusable tokens
reused, TTFT ≤ 1.15 × the direct request's.
"""

from __future__ import annotations

import argparse
import time

from bench.peer import LlamaServerProcess
from bench.support import filler, report, run_bench
from tests.support.doors.server_process import ServerProcess
from tests.support.doors.wire_client import connected
from tests.support.percentiles import percentile

ANSWER = 32


async def main(arguments: argparse.Namespace) -> None:
    ratios: list[float] = []
    reusable = reused = 0
    mine: list[float] = []
    their: list[float] = []
    with (
        ServerProcess("--engine", "llama", "--threads", "1", "--slots", "2") as server,
        LlamaServerProcess(slots=2, threads=1) as peer,
    ):
        async with connected(server.url) as wire:
            session = await wire.create()
            before = 0  # tokens that the session's KV holds
            slot: list[int] = []
            for turn in range(arguments.turns):
                question = filler(400 if turn == 0 else 40, turn)
                started = time.monotonic()
                answer = await wire.command(
                    "message.create", session=session, content=question, max_output_tokens=ANSWER, temperature=0.0
                )
                frames = await wire.until_end(answer["response_id"])
                first = next(f for f in frames if f["event"]["type"] == "response.output_text.delta")
                ttft = (first["arrived"] - started) * 1000
                usage = frames[-1]["event"]["response"]["usage"]
                fresh = usage["input_tokens"] - before
                ids = (await peer.post("/tokenize", {"content": filler(fresh * 2, turn + 100)}))["tokens"][:fresh]
                slot = slot + ids
                started = time.monotonic()
                direct, answered = await peer.completion(slot, ANSWER, 0)
                direct_ms = (direct - started) * 1000
                slot = slot + answered[:-1]
                if turn:
                    reusable += before
                    reused += min(before, usage["input_tokens_details"]["cached_tokens"])
                    mine.append(ttft)
                    their.append(direct_ms)
                    ratios.append(ttft / direct_ms)
                before = usage["input_tokens"] + usage["output_tokens"] - 1
    report(
        "follow_up",
        {
            "turns": len(ratios),
            "reused share of reusable (bar 0.99)": reused / reusable,
            "TTFT p50 ms ours": percentile(mine, 0.5),
            "TTFT p50 ms direct slot": percentile(their, 0.5),
            "TTFT ratio p50 (bar 1.15)": percentile(ratios, 0.5),
        },
    )


if __name__ == "__main__":
    run_bench(main, __doc__, turns=12)
