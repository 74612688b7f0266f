"""Hostile JSON schemas through every door, beside a user who wants nothing but answers.

    python -m bench.doors.hostile_schemas --engine llama --count 2000 --seed 1
    .venv-vllm/bin/python -m bench.doors.hostile_schemas --engine vllm

Two rounds: first ordinary schemas, then generated hostile ones, so many at once, each through the next door. In both,
and before, a bystander sends short chats and measures the time to the first token. Figures: what became of each
schema, how late the event loop came to what was due (the server's own histogram, of a beat every 10 ms), what the
watchdog named when that was over 50 ms, the growth of the server's memory (all its processes) over what it had after
the first round. At the end the server is killed with SIGKILL while it works on some of them, started again on the same
data, and must be there within `READY_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from bench.support import Option, command_line, is_faultless, report
from tests.support.doors.schema_doors import SchemaOutcome, schema_doors
from tests.support.doors.server_process import ROOT, ServerProcess
from tests.support.hostile_schemas import hostile_schemas
from tests.support.listening_sockets import free_ports
from tests.support.percentiles import percentile

MODELS: Final = ROOT / ".cache" / "models"
ENGINES: Final = {
    "llama": ["--model", str(MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf")],
    "vllm": [
        *("--model", str(MODELS / "SmolLM2-135M-Instruct.Q4_1-vllm-fp32"), "--threads", "1"),
        *("--slots", "4", "--context", "2048"),
        *("--vllm-args", '{"dtype": "float32", "kv_cache_memory_bytes": 500000000}'),
    ],
    "sim": [],
}
STALL_MS: Final = 50
READY_S: Final = 60.0
PAUSE_S: Final = 0.2  # between the bystander's chats
ALONE_S: Final = 10.0
SAMPLE_S: Final = 0.1
Done = list[tuple[str, str, SchemaOutcome]]
STALLED: Final = re.compile(r'"running": ?"([^"]*)"')
BUCKET: Final = re.compile(r'^sessile_loop_delay_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


class Watched:
    """What the server costs while a round goes on: memory, and the bystander's times."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.ttft_s: list[float] = []
        self.peak_bytes = 0

    def memory(self) -> int:
        total = 0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.server.pid)
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += each.memory_info().rss
        return total

    async def sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, self.memory())
            await asyncio.sleep(SAMPLE_S)

    async def stand_by(self) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            for number in itertools.count():
                with contextlib.suppress(httpx.HTTPError, KeyError, IndexError):
                    self.ttft_s.append(await first_token_s(http, self.server.port, f"Hello number {number}."))
                await asyncio.sleep(PAUSE_S)


async def first_token_s(http: httpx.AsyncClient, port: int, text: str) -> float:
    url = f"http://127.0.0.1:{port}/v1"
    model = (await http.get(f"{url}/models")).json()["data"][0]["id"]
    body = {"model": model, "stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    begun_at = time.monotonic()
    async with http.stream("POST", f"{url}/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data:") and '"content":"' in line.replace(" ", "") and '"content":""' not in line:
                return time.monotonic() - begun_at
    raise httpx.HTTPError("no token")


@contextlib.asynccontextmanager
async def watching(server: ServerProcess) -> AsyncIterator[Watched]:
    watched = Watched(server)
    tasks = [asyncio.create_task(watched.sample()), asyncio.create_task(watched.stand_by())]
    try:
        yield watched
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def play(server: ServerProcess, grpc: str, schemas: Sequence[tuple[str, Any]], at_once: int) -> Done:
    done: Done = []
    async with schema_doors(server.port, grpc) as doors:
        work = iter(list(zip(schemas, itertools.cycle(doors.names), strict=False)))

        async def sender() -> None:
            for (kind, schema), door in work:
                try:
                    outcome = await asyncio.wait_for(doors.send(door, schema), 120)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is what became of the schema
                    outcome = SchemaOutcome("failed", repr(error)[:200])
                done.append((kind, door, outcome))

        await asyncio.gather(*(sender() for _ in range(at_once)))
    return done


async def loop_delays(port: int) -> dict[float, float]:
    """Upper bound -> how often the loop was at most so late."""
    async with httpx.AsyncClient(timeout=30) as http:
        text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    return {float(bound): float(count) for bound, count in BUCKET.findall(text)}


def share_bound(delays: dict[float, float], share: float) -> float:
    """The smallest bucket that at least `share` of the delays lie in."""
    total = max(delays.values(), default=0)
    return min((bound for bound, count in delays.items() if total and count >= share * total), default=float("nan"))


def stalls(log: str) -> dict[str, int]:
    """What held the loop, by the three innermost calls, the most frequent first."""
    lines = (STALLED.search(line) for line in log.splitlines() if '"loop_stalled"' in line)
    return dict(Counter(" < ".join(line[1].split(" < ")[:3]) for line in lines if line).most_common())


def ordinary(number: int) -> tuple[str, Any]:
    properties = {f"field_{n}": {"type": "string"} for n in range(3)}
    return "ordinary", {"type": "object", "$comment": str(number), "properties": properties, "required": ["field_0"]}


async def kill_among(server: ServerProcess, grpc: str, schemas: Sequence[tuple[str, Any]]) -> float:
    """Kills the server while it works on these; returns how long until it answers again."""
    under_way = asyncio.create_task(play(server, grpc, schemas, len(schemas)))
    await asyncio.sleep(0.5)
    server.kill()
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    begun_at = time.monotonic()
    await asyncio.to_thread(server.start)
    async with httpx.AsyncClient(timeout=READY_S) as http:
        await first_token_s(http, server.port, "Are you back?")
    return time.monotonic() - begun_at


async def measure(engine: str, count: int, seed: int, at_once: int, plain: int, log: Path) -> list[str]:
    (grpc_port,) = free_ports(1)
    flags = ["--engine", engine, "--grpc-port", str(grpc_port), *ENGINES[engine]]
    flags += ["--loop-stall-ms", str(STALL_MS), "--log-level", "warning", "--log-format", "json"]
    grpc, hostile = f"127.0.0.1:{grpc_port}", [(each.kind, each.schema) for each in hostile_schemas(seed, count)]
    with ServerProcess(*flags, log=log) as server:
        async with watching(server) as alone:
            await asyncio.sleep(ALONE_S)
        async with watching(server) as before:
            await play(server, grpc, [ordinary(number) for number in range(plain)], at_once)
            base_bytes = before.memory()
        base_delays, base_log = await loop_delays(server.port), len(log.read_text())
        begun_at = time.monotonic()
        async with watching(server) as during:
            done = await play(server, grpc, hostile, at_once)
        seconds, delays = time.monotonic() - begun_at, await loop_delays(server.port)
        held = stalls(log.read_text()[base_log:])
        back_s = await kill_among(server, grpc, hostile[:: max(1, count // 16)][:16])
    delays = {bound: many - base_delays.get(bound, 0) for bound, many in delays.items()}
    growth = max(0, during.peak_bytes - base_bytes) / 2**20
    ttft_before, ttft = percentile(before.ttft_s, 0.95), percentile(during.ttft_s, 0.95)
    outcomes = Counter(outcome.code or "served" for _, _, outcome in done)
    unfair = [f"{kind} by {door}: {outcome}" for kind, door, outcome in done if not outcome.is_fair]
    total = max(delays.values(), default=0)
    figures = {
        "engine": engine,
        "schemas": len(done),
        "seconds": seconds,
        "outcomes": dict(outcomes),
        "served_by_kind": dict(Counter(kind for kind, _, outcome in done if not outcome.code)),
        "neither_served_nor_refused": len(unfair),
        "loop_delay_p99.9_at_most_s": share_bound(delays, 0.999),
        "loop_delay_worst_at_most_s": share_bound(delays, 1.0),
        "loop_delays_over_s": {bound: total - many for bound, many in delays.items() if bound >= 0.01},
        "loop_delays_seen": total,
        "loop_held_by": held,
        "memory_growth_mib": growth,
        "ttft_p95_s": ttft,
        "ttft_p95_beside_ordinary_s": ttft_before,
        "ttft_p95_alone_s": percentile(alone.ttft_s, 0.95),
        "ttft_ratio": ttft / ttft_before,
        "chats": tuple(len(each.ttft_s) for each in (alone, before, during)),
        "back_after_kill_s": back_s,
    }
    report("hostile schemas", figures)
    return unfair


def main() -> None:
    given = command_line(
        __doc__,
        positional=(),
        engine=Option("llama", "the engine behind the doors", tuple(ENGINES)),
        count=Option(2000, "hostile schemas"),
        plain=Option(150, "ordinary schemas before"),
        seed=1,
        at_once=Option(2, "schemas under way at the same time"),
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        try:
            unfair = asyncio.run(measure(given.engine, given.count, given.seed, given.at_once, given.plain, log))
        except RuntimeError as error:  # it did not start
            raise SystemExit(f"{error}\n{log.read_text()[-2000:]}") from error
    raise SystemExit(0 if is_faultless(unfair) else 1)


if __name__ == "__main__":
    main()
