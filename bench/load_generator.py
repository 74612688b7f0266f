"""What the load generator costs, and whether it measures right: `./sessile load` on the simulated engine.

    python -m bench.load_generator

`cost` is the generator's own share of a core, by its process's clock, while 100 users stream. `ttft` compares its median
time to first token with that of an independent client (the standard library's blocking `http.client`, a thread for each
user) in alternating rounds: same number of users, prompts of the same length.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

from bench.support import filler, report, run_bench
from tests.support.doors.server_process import ROOT, ServerProcess

# An answer that goes on for the whole run, as many tokens a second as a user of a GPU gets; a prompt takes a tenth of a
# second, so that 3% of it is more than a client's own noise.
COST = ("--slots", "128", "--sim-tokens-per-s", "2500", "--sim-answer-tokens", "64", "--sim-prefill-per-s", "1000000")
TTFT = ("--slots", "8", "--sim-tokens-per-s", "400", "--sim-answer-tokens", "16", "--sim-prefill-per-s", "10000")
PROMPT_TOKENS = 1500


def generated(port: int, *words: str) -> dict[str, Any]:
    """What `./sessile load --json` prints."""
    command = [sys.executable, "app.py", "load", "--url", f"127.0.0.1:{port}", "--goodput", "0", "--json", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    read: dict[str, Any] = json.loads(done.stdout)
    if read["errors"]:
        raise RuntimeError(str(read["errors"]))
    return read


def independent(port: int, model: str, users: int, requests: int, seed: int) -> list[float]:
    """Times to first text in ms, of `requests` requests of `users` threads."""
    times: list[float] = []
    left = iter(range(requests))
    lock = threading.Lock()

    def user() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                break
            prompt = f"{seed} {number} {filler(PROMPT_TOKENS, seed * 1000 + number)}"
            body = {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "stream": True,
                "max_tokens": 128,
            }
            started = time.perf_counter()
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer, first = connection.getresponse(), 0.0
            for line in answer:
                if not first and line.startswith(b"data: {"):
                    choices = json.loads(line[6:])["choices"]
                    first = time.perf_counter() if choices and choices[0]["delta"].get("content") else 0.0
            times.append((first - started) * 1000)
        connection.close()

    threads = [threading.Thread(target=user) for _ in range(users)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
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
        words = ("--users", str(arguments.users), "--requests", str(arguments.requests), "--mix", "long")
        for number in range(arguments.rounds):
            read = generated(server.port, *words, "--long-tokens", str(PROMPT_TOKENS), "--seed", str(number))
            ours = read["summaries"][-1]["ttft_ms"]["p50"]
            theirs = statistics.median(
                independent(server.port, read["model"], arguments.users, arguments.requests, number)
            )
            ratios.append(ours / theirs)
            figures |= {"ttft_p50_ms": ours, "ttft_p50_ms_independent": theirs}
    figures |= {"ttft_ratio_median": statistics.median(ratios), "ttft_ratios": [round(each, 3) for each in ratios]}
    report("load_generator", figures)
    return bool(figures["own_cpu_share"] <= 0.10 and abs(figures["ttft_ratio_median"] - 1) <= 0.03)


if __name__ == "__main__":
    run_bench(main, __doc__, streams=100, seconds=20.0, users=2, requests=30, rounds=3)
