"""The whole server on this machine's GPU: what it says of it, first tokens by where a conversation's KV lies, a kill.

    python -m bench.device_server [--model PATH|hf:ORG/REPO] [--device auto] [--context 4000] [--streams 1 4]

Runs in the environment that serves on the GPU (docs/models.md): a build of xllamacpp with CUDA, or `--engine vllm` in
vLLM's. The server's own line on its device is printed. Then an answer over OpenAI's door; a conversation of `context`
tokens continued cold, while its KV is on the device, from host memory after others have taken the device, and from disk
after a restart; streams at once; and kill -9 in mid-answer, after which the answer goes on. Bars: restored at least 10
times sooner than cold, nothing lost or repeated at the kill. On a CPU it runs with `--device cpu --context 1000`.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.clients.crash_rounds import CrashReader, compare, finish, send_until_killed
from bench.support import Option, filler, is_faultless, percentile, report, run_bench
from testbed.server_process import ServerProcess
from testbed.wire_client import WireClient, connected, new_ulid, text_of

FOLLOW_UP = "And what comes after the mountains?"
ANSWER = 16
SOONER_BAR = 10


class TimedTurn(NamedTuple):
    """One turn as a client sees it."""

    first_s: float
    last_s: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    text: str


async def turn(wire: WireClient, session: str, content: str, tokens: int) -> TimedTurn:
    started = time.monotonic()
    answer = await wire.command(
        "message.create", session=session, content=content, max_output_tokens=tokens, temperature=0.0
    )
    frames = await wire.until_end(answer["response_id"])
    frames = [frame for frame in frames if frame["event"].get("response_id") == answer["response_id"]]  # no replay
    deltas = [frame for frame in frames if frame["event"]["type"] == "response.output_text.delta"]
    ended = frames[-1]["event"]["response"]
    if not deltas:
        raise RuntimeError(f"no answer: {ended['status']} {ended['error']}")
    usage = ended["usage"]
    return TimedTurn(
        deltas[0]["arrived"] - started,
        deltas[-1]["arrived"] - started,
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["output_tokens"],
        text_of(frames),
    )


def tier_hits(port: int) -> dict[str, int]:
    """Restores so far, by the tier that they came from."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode()
    hits = re.findall(r'^sessile_kv_cache_hits_total\{.*?tier="(\w+)".*?\} ([\d.e+]+)', lines, re.MULTILINE)
    return {tier: int(float(count)) for tier, count in hits}


def chat(port: int, question: str) -> str:
    """An answer over OpenAI's door."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=30) as answer:
        model = msgspec.json.decode(answer.read())["data"][0]["id"]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 32,
        "temperature": 0.0,
    }
    sent = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", msgspec.json.encode(body), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(sent, timeout=120) as answer:
        return str(msgspec.json.decode(answer.read())["choices"][0]["message"]["content"])


class ServerBench:
    """One server, the conversations with it, and their first tokens by where their KV came from."""

    def __init__(self, server: ServerProcess, arguments: argparse.Namespace) -> None:
        self.server = server
        self.given = arguments
        self.first: dict[str, list[float]] = {"cold": [], "resident": [], "host": [], "disk": []}
        self.faults: list[str] = []
        self.tokens = 0

    async def first_tokens(self) -> None:
        """Of follow-up turns in as many conversations as there are rounds."""
        sessions: list[str] = []
        async with connected(self.server.url) as wire:
            await turn(wire, await wire.create(), "Hello.", 4)  # what only a first turn costs
            for number in range(self.given.rounds):
                session = await wire.create()
                sessions.append(session)
                cold = await turn(wire, session, f"{filler(self.given.context, number)}. {FOLLOW_UP}", ANSWER)
                self.tokens = cold.input_tokens
                self.first["cold"].append(cold.first_s)
                await self._follow_up(wire, session, "resident", "")
                for _ in range(2 * self.given.slots):
                    await turn(wire, await wire.create(), "Hello.", 4)
                await self._follow_up(wire, session, "host", "host")
        self.server.stop()
        self.server.start()
        async with connected(self.server.url) as wire:
            await turn(wire, await wire.create(), "Hello.", 4)
            for session in sessions:
                await wire.command("subscribe", session=session, offset=0)
                await self._follow_up(wire, session, "disk", "disk")

    async def _follow_up(self, wire: WireClient, session: str, kind: str, tier: str) -> None:
        before = tier_hits(self.server.port)
        done = await turn(wire, session, FOLLOW_UP, ANSWER)
        after = tier_hits(self.server.port)
        self.first[kind].append(done.first_s)
        came = [name for name in after if after[name] > before.get(name, 0)]
        wrong = tier not in came if tier else came
        if wrong or (tier == "host" and "disk" in came) or done.cached_tokens < 0.9 * done.input_tokens:
            self.faults.append(f"{kind}: {done.cached_tokens} of {done.input_tokens} tokens reused, from {came}")

    async def streams(self, count: int) -> float:
        """Tokens a second of so many answers at once."""
        async with connected(self.server.url) as wire:
            sessions = [await wire.create() for _ in range(count)]
        async with asyncio.TaskGroup() as group:
            started = time.monotonic()
            tasks = [group.create_task(self._stream(session, number)) for number, session in enumerate(sessions)]
        return sum(task.result() for task in tasks) / (time.monotonic() - started)

    async def _stream(self, session: str, number: int) -> int:
        async with connected(self.server.url) as wire:
            await wire.command("subscribe", session=session, offset=0)
            done = await turn(wire, session, f"Tell me story number {number}.", self.given.answer)
            return done.output_tokens

    async def kill(self) -> float:
        """Kills the server in mid-answer; seconds until it is ready again."""
        reader = CrashReader()
        async with connected(self.server.url) as wire:
            session = (await wire.command("session.create"))["session"]
        ask = {
            "id": new_ulid(),
            "session": session,
            "content": "Tell me a long story.",
            "max_output_tokens": 16 * self.given.answer,
        }
        await send_until_killed(self.server, reader, session, ask, self.given.kill_after)
        if not any(event["type"] == "response.output_text.delta" for _, event in reader.applied.values()):
            self.faults.append("killed before the first word: give a longer --kill-after")
        if reader.ended:
            self.faults.append("the answer had ended before the kill: give a shorter --kill-after")
        started = time.monotonic()
        self.server.start()
        ready = time.monotonic() - started
        await finish(self.server, reader, session, ask)
        await compare(self.server, reader, session)
        self.faults += reader.faults
        if list(reader.ended.values()) != [1]:
            self.faults.append(f"answers that ended: {reader.ended}")
        return ready


async def main(arguments: argparse.Namespace) -> bool:
    flags = ["--engine", arguments.engine, "--device", arguments.device, "--slots", str(arguments.slots)]
    if arguments.model:
        flags += ["--model", arguments.model]
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
        log = Path(folder) / "log"
        flags += ["--context", str(arguments.context + 1024), *arguments.flags.split()]
        server = ServerProcess(*flags, data=f"{folder}/data", log=log)
        try:
            ready = server.start()
            device = next((line for line in log.read_text().splitlines() if line.startswith("Device:")), "Device: ?")
            print(device)
            bench = ServerBench(server, arguments)
            question = "What is the capital of France?"
            answer = await asyncio.to_thread(chat, server.port, question)
            print(f"{question} {answer}", flush=True)
            await bench.first_tokens()
            rates = {f"{count} streams, tokens/s": await bench.streams(count) for count in arguments.streams}
            again = await bench.kill()
        finally:
            sys.stderr.write(log.read_text() if log.exists() else "")
            if server.process is not None and server.process.poll() is None:
                server.stop()
    cold = percentile(bench.first["cold"], 0.5)
    sooner = {tier: cold / percentile(bench.first[tier], 0.5) for tier in ("host", "disk")}
    report(
        "device_server",
        {
            "engine": arguments.engine,
            "device": device.removeprefix("Device: "),
            "tokens of a conversation": bench.tokens,
            "ready s": ready,
            **{f"first token, {kind}, p50 s": percentile(times, 0.5) for kind, times in bench.first.items()},
            **{f"cold / {tier} (bar {SOONER_BAR})": ratio for tier, ratio in sooner.items()},
            **rates,
            "ready again after the kill s": again,
            "faults (bar 0)": len(bench.faults),
        },
    )
    return is_faultless(bench.faults) and min(sooner.values()) >= SOONER_BAR


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        model=Option("", "as of `./sessile serve`; empty: the small one"),
        engine=Option("llama", choices=("llama", "vllm")),
        device=Option("auto", choices=("auto", "cpu", "cuda")),
        context=4000,
        slots=4,
        rounds=3,
        streams=[1, 4],
        answer=128,
        kill_after=1.0,
        flags=Option("", "more of `./sessile serve`"),
    )
