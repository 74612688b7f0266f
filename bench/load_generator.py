"""What the load generator costs and whether it measures right: on a llama-server, on ours, on a simulated engine.

    python -m bench.load_generator
    python -m bench.load_generator --servers llama-server ours

Of each server first the generator's own share of a core, by the clock of its process, while 100 users stream. Then the
time to first token as its client has it against an independent one's (the standard library's blocking `http.client`): a
pair of requests with prompts of one length, one after the other, in turns which of the two is first. The figure of a
round is the median over its pairs, that of the server the median over the rounds: what else the machine does falls on
both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import msgspec
import uvloop

from bench.peer import MODEL, LlamaServerProcess
from bench.support import Option, report, run_bench
from tests.support.doors.server_process import ROOT, ServerProcess
from transport.load.measurements import LatencyTargets, Measurements
from transport.load.runner import LoadPlan, LoadRunner, request_body
from transport.load.stream_client import StreamClient, parse_address
from transport.load.workload import Dialogue, TraceTurn, Workload

SERVERS: Final = ("simulated", "ours", "llama-server")
CPU_BAR: Final = 0.10
TTFT_BAR: Final = 0.03
CONTEXT: Final = 512
# Answers of the simulated engine come faster than people read; its prompts take a tenth of a second, a real one's more.
COST: Final = ("--sim-tokens-per-s", "25", "--sim-answer-tokens", "256", "--sim-prefill-per-s", "1000000")
TTFT: Final = ("--sim-tokens-per-s", "400", "--sim-answer-tokens", "16", "--sim-prefill-per-s", "100000")
PROMPT_WORDS: Final = {"simulated": 1500, "ours": 30, "llama-server": 30}
ANSWER_TOKENS: Final = 8


class GivenPrompt(Workload):
    """A workload of one question."""

    def __init__(self, prompt: str) -> None:
        super().__init__({"short": 1.0})
        self._prompt = prompt

    def next_dialogue(self) -> Dialogue:
        return Dialogue("given", [TraceTurn(self._prompt, output_tokens=ANSWER_TOKENS)])


@contextmanager
def served(name: str, *simulated: str, streams: int) -> Iterator[int]:
    """The port of a server that stands alone; `simulated`: the flags of that engine."""
    slots = str(streams)
    match name:
        case "llama-server":
            with LlamaServerProcess(slots=streams, threads=1, context=CONTEXT) as peer:
                yield peer.port
        case "ours":
            flags = ("--engine", "llama", "--model", str(MODEL), "--threads", "1", "--context", str(CONTEXT))
            with ServerProcess(*flags, "--slots", slots) as server:
                yield server.port
        case _:
            with ServerProcess("--engine", "sim", "--slots", slots, *simulated) as server:
                yield server.port


# -- its cost ---------------------------------------------------------------------------------------------------------


def cost(name: str, streams: int, seconds: float) -> dict[str, Any]:
    """What `./sessile load --json` prints of itself."""
    with ExitStack() as stack:
        port = stack.enter_context(served(name, *COST, streams=streams + 28 if name == "simulated" else streams))
        command = ["./sessile", "load", "--url", f"127.0.0.1:{port}", "--goodput", "0", "--json", "--timeout-s", "300"]
        command += ["--users", str(streams), "--seconds", str(seconds)]
        if name == "simulated":
            command += ["--mix", "short"]
        else:  # a real engine on a processor: little to read, so that all of them write most of the time
            trace = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".jsonl"))
            trace.write(json.dumps({"turns": [{"prompt_tokens": 10, "output_tokens": 48}]}))
            trace.flush()
            command += ["--mix", "turns", "--trace", trace.name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    read: dict[str, Any] = json.loads(done.stdout)
    if read["errors"]:
        raise RuntimeError(f"{name}: {read['errors']}")
    return {
        f"{name}: tokens/s of {streams} streams": read["summaries"][-1]["tokens_per_s"],
        f"{name}: own CPU of a core (bar {CPU_BAR:g})": read["own_cpu_share"],
    }


# -- what it measures -------------------------------------------------------------------------------------------------


async def generated(client: StreamClient, model: str, prompt: str) -> float:
    """Time to first token in ms, of one request as the load generator sends and measures it."""
    measurements = Measurements(LatencyTargets())
    plan = LoadPlan(model=model, users=1, requests=1, seconds=0.0)
    await LoadRunner(client, GivenPrompt(prompt), measurements, plan, time.perf_counter).run()
    (result,) = measurements.results
    if result.error or result.ttft_s is None:
        raise RuntimeError(result.error or "no text came")
    return result.ttft_s * 1000


def independent(connection: http.client.HTTPConnection, model: str, prompt: str) -> float:
    """The same of one request by another client."""
    body = msgspec.json.encode(request_body(model, [{"role": "user", "content": prompt}], ANSWER_TOKENS))
    started = time.perf_counter()
    try:
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
    except ConnectionError:  # closed while it lay idle, which the load generator tries once more, too
        connection.close()
        started = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
    first = 0.0
    for line in answer:
        if not first and line.startswith(b"data: {"):
            choices = json.loads(line[6:])["choices"]
            first = time.perf_counter() if choices and choices[0]["delta"].get("content") else 0.0
    if not first:
        raise RuntimeError(f"no text came: HTTP {answer.status}")
    return (first - started) * 1000


async def ttft(name: str, rounds: int, pairs: int) -> dict[str, Any]:
    words = Workload({"long": 1.0}, seed=1, long_tokens=PROMPT_WORDS[name])
    ratios: list[float] = []
    times: dict[str, list[float]] = {"generator": [], "independent": []}
    with served(name, *TTFT, streams=2) as port:
        client = StreamClient(parse_address(f"http://127.0.0.1:{port}"), "", clock=time.perf_counter, timeout_s=60)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        (model, *_), _ = await client.models()
        for number in range(-1, rounds):  # the first warms up
            of_round: list[float] = []
            for pair in range(pairs):
                prompt = words.next_dialogue().turns[0].prompt  # of both, but for how it begins: no cache may answer
                of_pair: dict[str, float] = {}
                for side in ("generator", "independent") if pair % 2 else ("independent", "generator"):
                    given = f"{'AZ'[side == 'generator']}{'MN'[pair % 2]} {prompt}"
                    if side == "generator":
                        of_pair[side] = await generated(client, model, given)
                    else:
                        of_pair[side] = await asyncio.to_thread(independent, connection, model, given)
                of_round.append(of_pair["generator"] / of_pair["independent"])
                for side in times:
                    times[side] += [of_pair[side]] if number >= 0 else []
            ratios += [statistics.median(of_round)] if number >= 0 else []
        client.close()
        connection.close()
    return {
        f"{name}: TTFT p50 ms, generator": statistics.median(times["generator"]),
        f"{name}: TTFT p50 ms, independent": statistics.median(times["independent"]),
        f"{name}: TTFT ratio, median (bar ±{TTFT_BAR:g})": statistics.median(ratios),
        f"{name}: TTFT ratio of each round": [round(each, 3) for each in ratios],
    }


def main(arguments: argparse.Namespace) -> bool:
    figures: dict[str, Any] = {"rounds": arguments.rounds, "pairs of a round": arguments.pairs}
    missed = []
    for name in arguments.servers:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as `./sessile load` has it
            measured = runner.run(ttft(name, arguments.rounds, arguments.pairs))
        measured |= cost(name, arguments.streams, arguments.seconds)
        figures |= measured
        of = {key.removeprefix(f"{name}: "): value for key, value in measured.items()}
        if of[f"own CPU of a core (bar {CPU_BAR:g})"] > CPU_BAR:
            missed.append(f"{name}: CPU")
        if abs(of[f"TTFT ratio, median (bar ±{TTFT_BAR:g})"] - 1) > TTFT_BAR:
            missed.append(f"{name}: TTFT")
    report("load_generator", {**figures, "bars missed": missed})
    return not missed


if __name__ == "__main__":
    every = Option(list(SERVERS), "which of them", SERVERS)
    run_bench(main, __doc__, servers=every, streams=100, seconds=20.0, rounds=9, pairs=12)
