"""Hostile JSON schemas through every door, beside a user who wants nothing but answers.

    python -m bench.doors.hostile_schemas --engine llama --count 2000 --seed 1
    .venv-vllm/bin/python -m bench.doors.hostile_schemas --engine vllm --replay-every 4

Generated schemas go in by blocks, so many at once, each through the next door. Behind a block (every
`--replay-every`th) the same requests come again with an ordinary schema in the hostile one's place, as long as that
was: those that were served, at the same moments of the block. What was refused has no place in it, because nobody sends
that; and of a tool's schema the engine reads every word, whoever wrote it. A bystander sends short chats all the while,
and before either. So "1.5 ×" compares times to the first token beside hostile requests with those beside as many
ordinary ones; the times without any company are shown, too.

Figures: what became of each schema, how late the event loop came to what was due beside hostile ones (the server's own
histogram, of a beat every 10 ms), what the watchdog named when that was over 50 ms, the growth of the server's memory
(all its processes) over what it had after `--plain` ordinary schemas. At the end the server is killed with SIGKILL
while it works on some of them, started again on the same data, and must be there within `READY_S`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import re
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import msgspec
import psutil

from bench.support import Option, command_line, is_faultless, report
from tests.support.doors.schema_doors import SchemaDoors, SchemaOutcome, schema_doors
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
BLOCK: Final = 100  # schemas between two looks at ordinary ones
REPLAYED: Final = 1_000_000  # numbers of ordinary schemas that come for hostile ones
LATE_S: Final = 0.05
WORST_S: Final = 0.25
GROWTH_MIB: Final = 256
RATIO: Final = 1.5
STALLED: Final = re.compile(r'"running": ?"([^"]*)"')
BUCKET: Final = re.compile(r'^sessile_loop_delay_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


class Watched:
    """What the server costs while rounds of a kind go on: memory, and the bystander's times."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.ttft_s: list[float] = []
        self.peak_bytes = 0
        self._texts = (f"Hello number {number}." for number in itertools.count())

    @property
    def ttft_p95_s(self) -> float:
        return percentile(self.ttft_s, 0.95)

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

    async def stand_by(self, stop: asyncio.Event) -> None:
        """Ends behind a chat: the slow ones count as the others do."""
        async with httpx.AsyncClient(timeout=60) as http:
            while not stop.is_set():
                with contextlib.suppress(httpx.HTTPError, KeyError, IndexError):
                    self.ttft_s.append(await first_token_s(http, self.server.port, next(self._texts)))
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
async def watching(watched: Watched) -> AsyncIterator[None]:
    stop = asyncio.Event()
    sampling, standing_by = asyncio.create_task(watched.sample()), asyncio.create_task(watched.stand_by(stop))
    try:
        yield
    finally:
        stop.set()
        await standing_by
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)


class Sent(NamedTuple):
    kind: str
    door: str
    outcome: SchemaOutcome
    at_s: float  # since its block began
    schema: Any


async def send(doors: SchemaDoors, kind: str, schema: Any, door: str, begun_at: float) -> Sent:
    at_s = time.monotonic() - begun_at
    try:
        outcome = await asyncio.wait_for(doors.send(door, schema), 120)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what became of the schema
        outcome = SchemaOutcome("failed", repr(error)[:200])
    return Sent(kind, door, outcome, at_s, schema)


async def play(doors: SchemaDoors, schemas: Iterable[tuple[str, Any, str]], at_once: int) -> list[Sent]:
    """(kind, schema, door), so many at the same time."""
    done: list[Sent] = []
    work, begun_at = iter(schemas), time.monotonic()

    async def sender() -> None:
        for kind, schema, door in work:
            done.append(await send(doors, kind, schema, door, begun_at))

    await asyncio.gather(*(sender() for _ in range(at_once)))
    return done


async def replay(doors: SchemaDoors, served: Sequence[Sent], first: int) -> list[Sent]:
    """Ordinary schemas, from the number `first` on, at the doors and moments of those that were served."""
    begun_at = time.monotonic()

    async def one(number: int, each: Sent) -> Sent:
        await asyncio.sleep(each.at_s)
        return await send(doors, *ordinary(number, each.schema), each.door, begun_at)

    return list(await asyncio.gather(*(one(first + index, each) for index, each in enumerate(served))))


async def loop_delays(port: int) -> dict[float, float]:
    """Upper bound -> how often the loop was at most so late."""
    async with httpx.AsyncClient(timeout=30) as http:
        text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    return {float(bound): float(count) for bound, count in BUCKET.findall(text)}


def share_bound(delays: Mapping[float, float], share: float) -> float:
    """The smallest bucket that at least `share` of the delays lie in."""
    total = max(delays.values(), default=0)
    return min((bound for bound, count in delays.items() if total and count >= share * total), default=float("nan"))


def stalls(log: str) -> dict[str, int]:
    """What held the loop, by the three innermost calls, the most frequent first."""
    lines = (STALLED.search(line) for line in log.splitlines() if '"loop_stalled"' in line)
    return dict(Counter(" < ".join(line[1].split(" < ")[:3]) for line in lines if line).most_common())


def ordinary(number: int, as_long_as: Any = None) -> tuple[str, Any]:
    """With the text of another for a description: as a tool's it stands in the prompt, and is paid for."""
    properties = {f"field_{n}": {"type": "string"} for n in range(3)}
    schema = {"type": "object", "$comment": str(number), "properties": properties, "required": ["field_0"]}
    if as_long_as is not None:
        schema["description"] = msgspec.json.encode(as_long_as).decode().replace('"', "'").replace("\\", "/")
    return "ordinary", schema


async def kill_among(server: ServerProcess, grpc: str, schemas: Sequence[tuple[str, Any]]) -> float:
    """Kills the server while it works on these; returns how long until it answers again."""

    async def work() -> None:
        async with schema_doors(server.port, grpc) as doors:
            await play(doors, by_doors(doors, schemas), len(schemas))

    under_way = asyncio.create_task(work())
    await asyncio.sleep(0.5)
    server.kill()
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    begun_at = time.monotonic()
    await asyncio.to_thread(server.start)
    async with httpx.AsyncClient(timeout=READY_S) as http:
        await first_token_s(http, server.port, "Are you back?")
    return time.monotonic() - begun_at


def by_doors(doors: SchemaDoors, schemas: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any, str]]:
    """Each through the next door."""
    return ((*each, door) for each, door in zip(schemas, itertools.cycle(doors.names), strict=False))


class Rounds(NamedTuple):
    """What blocks of hostile schemas showed, and what ordinary ones in their place. `delays` counts beats of the loop
    beside hostile ones, by the bound of a bucket that they lie below."""

    hostile: Watched
    ordinary: Watched
    sent: list[Sent]
    replayed: list[Sent]
    delays: dict[float, float]


async def rounds(
    server: ServerProcess, doors: SchemaDoors, schemas: Sequence[tuple[str, Any]], options: argparse.Namespace
) -> Rounds:
    done = Rounds(Watched(server), Watched(server), [], [], {})
    work = list(by_doors(doors, schemas))
    for first in range(0, len(work), BLOCK):
        before = await loop_delays(server.port)
        async with watching(done.hostile):
            sent = await play(doors, work[first : first + BLOCK], options.at_once)
        for bound, many in (await loop_delays(server.port)).items():
            done.delays[bound] = done.delays.get(bound, 0) + many - before.get(bound, 0)
        done.sent.extend(sent)
        if first // BLOCK % options.replay_every:
            continue
        async with watching(done.ordinary):
            served = [each for each in sent if not each.outcome.code]
            done.replayed.extend(await replay(doors, served, REPLAYED + first))
    return done


async def measure(options: argparse.Namespace, log: Path) -> list[str]:
    (grpc_port,) = free_ports(1)
    flags = ["--engine", options.engine, "--grpc-port", str(grpc_port), *ENGINES[options.engine]]
    flags += ["--loop-stall-ms", str(STALL_MS), "--log-level", "warning", "--log-format", "json"]
    grpc = f"127.0.0.1:{grpc_port}"
    hostile = [(each.kind, each.schema) for each in hostile_schemas(options.seed, options.count)]
    begun_at = time.monotonic()
    with ServerProcess(*flags, log=log) as server:
        alone, before = Watched(server), Watched(server)
        async with schema_doors(server.port, grpc) as doors:
            async with watching(alone):
                await asyncio.sleep(ALONE_S)
            async with watching(before):
                await play(doors, by_doors(doors, map(ordinary, range(options.plain))), options.at_once)
                base_bytes = before.memory()
            base_log = len(log.read_text())
            done = await rounds(server, doors, hostile, options)
        held = stalls(log.read_text()[base_log:])
        back_s = await kill_among(server, grpc, hostile[:: max(1, options.count // 16)][:16])
    unfair = [f"{each.kind} by {each.door}: {each.outcome}" for each in done.sent if not each.outcome.is_fair]
    growth = max(0, done.hostile.peak_bytes - base_bytes) / 2**20
    ratio = done.hostile.ttft_p95_s / done.ordinary.ttft_p95_s
    total = max(done.delays.values(), default=0)
    late, worst = share_bound(done.delays, 0.999), share_bound(done.delays, 1.0)
    missed = {
        "neither served nor refused": bool(unfair),
        f"loop p99.9 over {LATE_S} s": late > LATE_S,
        f"loop worst over {WORST_S} s": worst > WORST_S,
        f"memory grew by over {GROWTH_MIB} MiB": growth > GROWTH_MIB,
        f"TTFT p95 over {RATIO} times that beside ordinary ones": ratio > RATIO,
    }
    figures = {
        "engine": options.engine,
        "schemas": len(done.sent),
        "seconds": time.monotonic() - begun_at,
        "missed": [name for name, is_so in missed.items() if is_so],
        "outcomes": dict(Counter(each.outcome.code or "served" for each in done.sent)),
        "outcomes_of_ordinary": dict(Counter(each.outcome.code or "served" for each in done.replayed)),
        "served_by_kind": dict(Counter(each.kind for each in done.sent if not each.outcome.code)),
        "neither_served_nor_refused": len(unfair),
        "loop_delay_p99.9_at_most_s": late,
        "loop_delay_worst_at_most_s": worst,
        "loop_delays_over_s": {bound: total - many for bound, many in done.delays.items() if bound >= 0.01},
        "loop_delays_seen": total,
        "loop_held_by": held,
        "memory_growth_mib": growth,
        "ttft_p95_s": done.hostile.ttft_p95_s,
        "ttft_p95_beside_ordinary_s": done.ordinary.ttft_p95_s,
        "ttft_ratio": ratio,
        "ttft_p95_alone_s": alone.ttft_p95_s,
        "ttft_p95_beside_ordinary_at_once_s": before.ttft_p95_s,
        "chats": tuple(len(each.ttft_s) for each in (alone, before, done.hostile, done.ordinary)),
        "back_after_kill_s": back_s,
    }
    report("hostile schemas", figures)
    return [*unfair, *figures["missed"]]


def main() -> None:
    options = command_line(
        __doc__,
        positional=(),
        engine=Option("llama", "the engine behind the doors", tuple(ENGINES)),
        count=Option(2000, "hostile schemas"),
        plain=Option(150, "ordinary schemas before"),
        seed=1,
        replay_every=Option(1, "blocks, of which one is compared with ordinary requests"),
        at_once=Option(2, "schemas under way at the same time"),
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        try:
            faults = asyncio.run(measure(options, log))
        except RuntimeError as error:  # it did not start
            raise SystemExit(f"{error}\n{log.read_text()[-2000:]}") from error
    raise SystemExit(0 if is_faultless(faults) else 1)


if __name__ == "__main__":
    main()
