"""Many durable streams at once through one server process, the client on the other core.

    python -m bench.streams --streams 400 --rate 25 --seconds 20 [--search]

Simulated engine, each stream on its own connection and session, `rate` tokens a second, so that each token is a durable
event of its own. The figure is from the engine's token to the socket of its reader: the server process notes
when the engine yields each chunk, the client when the frame with it arrives; both read the same monotonic clock.
`--search` raises the number of streams until p99 leaves the bar. CPU is the server's, per event and by part (a
sampling timer inside the server process attributes running time to the package that it was spent in).
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import psutil

from bench.reading_device import Device, DeviceFrame, Happened
from bench.support import ROOT, percentile, report, run_bench, spread
from testbed.server_process import ServerProcess

PARTS = ("sessions", "actors", "persistence", "transport", "inference", "uvicorn", "websockets", "asyncio", "aiosqlite")


# -- inside the server -------------------------------------------------------------------------------------------------


def serve(arguments: list[str]) -> int:
    """`app.py serve` with a notebook on the engine's output; SIGUSR1 writes it out and starts a new page."""
    sys.path.insert(0, str(ROOT))
    import app
    from inference.simulated.engine import SimulatedEngine
    from sessions.model.generation import Chunk, Finish, GenerationRequest

    made: list[tuple[str, int, float]] = []
    samples: collections.Counter[str] = collections.Counter()
    data = arguments[arguments.index("--data") + 1]
    generate = SimulatedEngine.generate

    async def noted(self: SimulatedEngine, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        length = 0
        async for part in generate(self, request):
            if isinstance(part, Chunk):
                length += len(part.text)
                made.append((request.response_id, length, time.monotonic()))
            yield part

    def sample(_: int, frame: FrameType | None) -> None:
        samples[part_of(frame)] += 1

    def write(_: int, __: FrameType | None) -> None:
        page = {"made": list(made), "samples": dict(samples)}
        made.clear()
        samples.clear()
        path = Path(data) / "notes.json"
        path.with_suffix(".part").write_bytes(msgspec.json.encode(page))
        path.with_suffix(".part").rename(path)

    SimulatedEngine.generate = noted  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, write)
    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, 0.005, 0.005)
    return app.main(["serve", *arguments])


def part_of(frame: FrameType | None) -> str:
    """The package whose code, innermost, is at work."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        top = name.split(".", 1)[0]
        if top in PARTS:
            return ".".join(name.split(".")[:2]) if top in PARTS[:5] else top
        frame = frame.f_back
    return "other"


# -- the client ----------------------------------------------------------------------------------------------------


class Stream(Device):
    """A device that notes when each length of an answer's text came."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.response = ""
        self.length = 0
        self.events = 0
        self.arrived: dict[int, float] = {}

    def happened(self, frame: DeviceFrame, event: Happened) -> None:
        self.events += 1
        if event.delta:
            self.length += len(event.delta)
            self.arrived[self.length] = time.monotonic()
        elif event.type == "response.created":
            self.response = event.response_id

    async def request_answer(self, tokens: int) -> None:
        self.length, self.arrived, self.events = 0, {}, 0
        end = self.expect("end")
        self.begin(tokens)
        await end


async def measure(count: int, rate: float, seconds: float) -> dict[str, Any]:
    flags = ["--engine", "sim", "--sim-tokens-per-s", str(rate), "--sim-answer-tokens", "0", "--slots", str(count)]
    server = ServerProcess(*flags, program=("-m", "bench.streams", "serve"))
    with server:
        process = psutil.Process(server.pid)
        streams = [Stream("127.0.0.1", server.port) for _ in range(count)]
        for start in range(0, count, 50):
            await asyncio.gather(*(stream.open() for stream in streams[start : start + 50]))
        notes = Path(server.data) / "notes.json"
        await written(server, notes)
        before, threads = process.cpu_times(), {t.id: t.user_time + t.system_time for t in process.threads()}
        started = time.monotonic()

        async def late(stream: Stream, after: float) -> None:
            await asyncio.sleep(after)
            await stream.request_answer(int(rate * seconds))

        await asyncio.gather(*(late(stream, index / count / rate) for index, stream in enumerate(streams)))
        took = time.monotonic() - started
        after = process.cpu_times()
        by_thread = {t.id: t.user_time + t.system_time - threads.get(t.id, 0.0) for t in process.threads()}
        page = await written(server, notes)
        for stream in streams:
            stream.close()
    made = {(response, length): at for response, length, at in page["made"]}
    waits = [
        (arrived - made[(stream.response, length)]) * 1000
        for stream in streams
        for length, arrived in stream.arrived.items()
        if (stream.response, length) in made
    ]
    events = sum(stream.events for stream in streams)
    cpu = (after.user - before.user) + (after.system - before.system)
    loop = by_thread.get(server.pid, 0.0)
    samples = page["samples"]
    total = sum(samples.values()) or 1
    parts = {
        f"  of which {name}": round(count / total * loop / events * 1e6, 1)
        for name, count in sorted(samples.items(), key=lambda each: -each[1])[:14]
    }
    return {
        "streams": count,
        "events": events,
        "events/s": round(events / took),
        "measured deltas": len(waits),
        **spread("token to socket {} ms", waits, "p50 max"),
        "token to socket p99 ms (bar 100)": percentile(waits, 0.99),
        "server CPU share of one core": cpu / took,
        "CPU us per event": cpu / events * 1e6,
        "  the event loop's thread": loop / events * 1e6,
        "  other threads (journal, sockets)": (cpu - loop) / events * 1e6,
        **parts,
    }


async def written(server: ServerProcess, notes: Path) -> Any:
    """Asks the server for its notes since the last time, and waits until they are on the disk."""
    notes.unlink(missing_ok=True)
    server.process.send_signal(signal.SIGUSR1)  # type: ignore[union-attr]
    async with asyncio.timeout(60):
        while not notes.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
    return msgspec.json.decode(notes.read_bytes())


async def main(arguments: argparse.Namespace) -> None:
    count = arguments.streams
    best = 0
    while True:
        figures = await measure(count, arguments.rate, arguments.seconds)
        report("streams", figures)
        if figures["token to socket p99 ms (bar 100)"] > 100:
            break
        best = count
        if not arguments.search:
            break
        count += arguments.step
    report("streams: highest that holds", {"streams": best, "events/s each": arguments.rate})


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        threading.current_thread().name = "loop"
        sys.exit(serve(sys.argv[2:]))
    run_bench(main, __doc__, streams=400, rate=25.0, seconds=20.0, step=100, search=False)
