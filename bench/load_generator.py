"""What the load generator costs, and whether it measures right: `./sessile load` on the simulated engine.

    python -m bench.load_generator

First the generator's own share of a core, by its process's clock, while 100 users stream. Then its median time to first
token against an independent client's (the standard library's blocking `http.client`), one request after the other in
alternating rounds, with prompts of the same length.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import time
from typing import Any

from bench.support import report, run_bench
from tests.support.doors.server_process import ROOT, ServerProcess
from transport.load.workload import Workload

# Answers faster than people read; and prompts of a tenth of a second, so that 3% is more than a client's noise.
COST = ("--slots", "128", "--sim-tokens-per-s", "25", "--sim-answer-tokens", "256", "--sim-prefill-per-s", "1000000")
TTFT = ("--sim-tokens-per-s", "400", "--sim-answer-tokens", "16", "--sim-prefill-per-s", "100000")
PROMPT_WORDS = 1500


def generated(port: int, *words: str) -> dict[str, Any]:
    """What `./sessile load --json` prints."""
    command = ["./sessile", "load", "--url", f"127.0.0.1:{port}", "--goodput", "0", "--json", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    read: dict[str, Any] = json.loads(done.stdout)
    if read["errors"]:
        raise RuntimeError(str(read["errors"]))
    return read


def independent(port: int, model: str, requests: int, seed: int) -> list[float]:
    """Times to first text in ms, of one request after the other."""
    times: list[float] = []
    connection = http.client.HTTPConnection("127.0.0.1", port)
    prompts = Workload({"long": 1.0}, seed=seed, long_tokens=PROMPT_WORDS)
    for _ in range(requests):
        message = {"role": "user", "content": prompts.next_dialogue().turns[0].prompt}
        body = json.dumps({"model": model, "messages": [message], "stream": True, "max_tokens": 128})
        started = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer, first = connection.getresponse(), 0.0
        for line in answer:
            if not first and line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                first = time.perf_counter() if choices and choices[0]["delta"].get("content") else 0.0
        times.append((first - started) * 1000)
    connection.close()
    return times


def main(arguments: argparse.Namespace) -> bool:
    figures: dict[str, Any] = {}
    with ServerProcess("--engine", "sim", *COST) as server:
        words = ("--users", str(arguments.streams), "--seconds", str(arguments.seconds), "--mix", "short")
        read = generated(server.port, *words)
        whole = read["summaries"][-1]
        figures |= {
            "streams": arguments.streams,
            "tokens_per_s": whole["tokens_per_s"],
            "own_cpu_share": read["own_cpu_share"],
        }
    ratios = []
    with ServerProcess("--engine", "sim", *TTFT) as server:
        words = ("--users", "1", "--requests", str(arguments.requests), "--mix", "long")
        for number in range(arguments.rounds):
            read = generated(server.port, *words, "--long-tokens", str(PROMPT_WORDS), "--seed", str(number))
            ours = read["summaries"][-1]["ttft_ms"]["p50"]
            theirs = statistics.median(independent(server.port, read["model"], arguments.requests, 1000 + number))
            ratios.append(ours / theirs)
            figures |= {"ttft_p50_ms": ours, "ttft_p50_ms_independent": theirs}
    figures |= {"ttft_ratio_median": statistics.median(ratios), "ttft_ratios": [round(each, 3) for each in ratios]}
    report("load_generator", figures)
    return bool(figures["own_cpu_share"] <= 0.10 and abs(figures["ttft_ratio_median"] - 1) <= 0.03)


if __name__ == "__main__":
    run_bench(main, __doc__, streams=100, seconds=20.0, requests=30, rounds=3)
