"""Many durable streams through one gateway process.

    python -m bench.cluster.streams [--streams 250] [--rate 25] [--seconds 10] [--inside]

Replicas and the gateway are processes, on a real Valkey and PostgreSQL; replicas have simulated engines. Every stream
is a session with a WebSocket of its own and gives `rate` durable events a second. The latency
is from the moment that stands in the record (just before its append, in whole milliseconds) to its arrival at the
client; CPU is the gateway process's, per event. With `--inside` this process is the gateway, without the sockets of
its clients: the router's and the peer link's share of it; `--profile` shows where that goes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import pstats
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import psutil
import uvloop

from actors.routing.router import Router
from bench.reading_device import Device, DeviceFrame, Happened
from bench.support import command_line, report, spread
from sessions.model.events import OutputTextDelta
from sessions.ports import Published
from tests.support.chaos.cluster import chaos_cluster
from tests.support.cluster.processes import processes
from tests.support.cluster.real import create, say

EVENTS_PER_TOKEN = 0.92  # of the simulated engine: its other tokens are beginnings of characters
SPARE_S = 25.0  # answers go on for so long beyond what is measured


class Meter:
    """What all readers of the run were told."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.measuring = False

    def sink(self, published: Published) -> None:
        if self.measuring:
            now_ms = time.time() * 1000
            self.late_ms += [
                now_ms - record.at for record in published.records if isinstance(record.event, OutputTextDelta)
            ]

    async def measured(self, seconds: float, cpu_s: Callable[[], float]) -> dict[str, float]:
        self.measuring = True
        began, cpu = time.perf_counter(), cpu_s()
        await asyncio.sleep(seconds)
        took, used = time.perf_counter() - began, cpu_s() - cpu
        self.measuring = False
        events = len(self.late_ms)
        return {
            "events_per_s": events / took,
            **spread("late_ms_{}", self.late_ms),
            "gateway_cpu_us_per_event": used / events * 1e6,
            "gateway_cpu_share": used / took,
        }


# -- over sockets --------------------------------------------------------------------------------------------------


class DelayReader(Device):
    """A device that tells how late each event came."""

    def __init__(self, host: str, port: int, meter: Meter) -> None:
        super().__init__(host, port)
        self._meter = meter

    def happened(self, frame: DeviceFrame, event: Happened) -> None:
        if self._meter.measuring and event.type == "response.output_text.delta":
            num = 1 if frame.first_offset is None else frame.offset - frame.first_offset + 1
            self._meter.late_ms += [time.time() * 1000 - frame.at] * num


async def over_sockets(streams: int, rate: float, seconds: float, replicas: int) -> dict[str, float]:
    tokens_per_s = rate / EVENTS_PER_TOKEN
    tokens = int(tokens_per_s * (seconds + SPARE_S))
    flags: tuple[str, ...] = ("--engine", "sim", "--sim-answer-tokens", "0", "--slots", str(streams))
    flags += ("--sim-tokens-per-s", str(tokens_per_s))
    names = (*(f"r{number}" for number in range(1, replicas + 1)), "g1")
    meter = Meter()
    async with chaos_cluster(*flags, names=names) as cluster, contextlib.AsyncExitStack() as stack:
        process = cluster.members["g1"].process
        assert process is not None
        gateway = psutil.Process(process.pid)
        address = urlsplit(cluster.urls[0])
        readers = [DelayReader(address.hostname or "127.0.0.1", address.port or 80, meter) for _ in range(streams)]
        for first in range(0, streams, 25):
            some = readers[first : first + 25]
            await asyncio.gather(*(reader.open() for reader in some))
            for reader in some:
                stack.callback(reader.close)
                reader.begin(tokens)
        await asyncio.sleep(2.0)
        return await meter.measured(seconds, lambda: sum(gateway.cpu_times()[:2]))


# -- without sockets -----------------------------------------------------------------------------------------------


async def inside(streams: int, rate: float, seconds: float, replicas: int, *, profile: bool) -> dict[str, float]:
    names = tuple(f"r{number}" for number in range(1, replicas + 1))
    options = ("--step-s", str(EVENTS_PER_TOKEN / rate), "--slots", str(streams), "--log", "error")
    meter = Meter()

    async def stream(router: Router, number: int) -> None:
        key = await create(router, f"stream{number}")
        router.watch(key, meter.sink)
        await say(router, key, tokens=int(rate / EVENTS_PER_TOKEN * (seconds + SPARE_S)))

    async with processes(*options, names=names) as made, made.gateway("g1") as (router, _):
        for first in range(0, streams, 25):
            await asyncio.gather(*(stream(router, number) for number in range(first, min(first + 25, streams))))
        await asyncio.sleep(2.0)
        profiler = cProfile.Profile()
        if profile:
            profiler.enable()
        figures = await meter.measured(seconds, time.process_time)
        if profile:
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        return figures


async def main(given: argparse.Namespace) -> None:
    if given.inside or given.profile:
        figures = await inside(given.streams, given.rate, given.seconds, given.replicas, profile=given.profile)
    else:
        figures = await over_sockets(given.streams, given.rate, given.seconds, given.replicas)
    due = given.streams * given.rate
    name = "cluster_streams_inside" if given.inside or given.profile else "cluster_streams"
    report(name, {"streams": given.streams, **figures, "share_of_due": figures["events_per_s"] / due})


if __name__ == "__main__":
    uvloop.run(
        main(command_line(__doc__, streams=250, rate=25.0, seconds=10.0, replicas=2, inside=False, profile=False))
    )
