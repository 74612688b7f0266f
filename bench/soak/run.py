"""A real cluster under random faults for hours, unattended, and one report.

    make soak HOURS=8
    python -m bench.soak.run --hours 0.05 [--engine sim|llama] [--only "disk full"] [--seed 1] [--out dist/soak]

Two gateways, three replicas, Valkey and PostgreSQL, a fault proxy at every joint. In chapters of `--chapter` seconds
conversations never pause on two devices whose connections are cut about once a second, while replicas, gateways and
servers are killed and stopped, joints cut, Valkey is emptied and disks are full, one fault after the other. At the end
of a chapter what both devices were sent is held against the journal, and conversations of earlier chapters are read
again. A member that ends by itself, and a conversation that stands still for 90 s, are findings too. `report.json` is
written after each chapter, and `samples.json` beside it; `growth` says of each thing that was measured how it grew over
the last hour (of a run shorter than two hours over its last half, and not judged; nor are members that are killed).
Bar: 0 findings in 10^5 resumes and 10^3 kills; what is held is flat over the last hour.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import time
from collections import Counter
from pathlib import Path

import msgspec
import structlog

from bench.cluster.kill import FLAGS
from bench.soak.disk import FillableDisk, fillable_disk
from bench.soak.faults import SPARED, FaultWorld, draw
from bench.soak.monitor import Growth, Monitor, growth
from bench.soak.witness import Witness
from bench.support import Option, is_faultless, report, run_bench, where
from testbed.chaos.cluster import ChaosCluster, chaos_cluster
from testbed.chaos.load import Load, load
from testbed.postgres_server import PostgresServer

log = structlog.get_logger(__name__)

NAMES = ("r1", "r2", "r3", "g1", "g2")
IDLE_S = 30.0  # sessions of earlier chapters leave memory, and the directory
STILL_S = 90.0
LOOKS = 5
PAUSE_S = 3.0


class SoakResult(msgspec.Struct, kw_only=True):
    """What is known of a soak so far."""

    conditions: dict[str, object]
    hours: float = 0.0
    chapters: int = 0
    turns: int = 0
    resumes: int = 0
    connections_cut: int = 0
    kills: int = 0
    looks: int = 0
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    findings: list[str] = msgspec.field(default_factory=list)
    silences: list[tuple[float, float]] = msgspec.field(default_factory=list)  # (hours, the longest of a chapter in s)
    growth: list[Growth] = msgspec.field(default_factory=list)

    @property
    def rising(self) -> list[str]:
        return [f"{each.what} of {each.who}" for each in self.growth if each.flat is False]

    @property
    def verdict(self) -> str:
        rising = f"; rising: {', '.join(self.rising)}" if self.rising else ""
        return f"{len(self.findings)} findings{rising}"


class Soak:
    def __init__(self, cluster: ChaosCluster, disk: FillableDisk, given: argparse.Namespace) -> None:
        self._cluster = cluster
        self._given = given
        self._rng = random.Random(given.seed)
        self._world = FaultWorld(cluster, disk, random.Random(f"{given.seed} faults"))
        self._witness = Witness(cluster.journal, self._rng)
        self._monitor = Monitor(cluster, every_s=given.sample)
        self._out = Path(given.out)
        self._began = time.monotonic()
        self.result = SoakResult(
            conditions={**vars(given), **where(), "full disk": "tmpfs" if disk.folder else "limit"}
        )

    async def run(self) -> None:
        monitoring = asyncio.create_task(self._monitor.run())
        try:
            until = self._began + self._given.hours * 3600
            while time.monotonic() < until:
                self.result.chapters += 1
                try:
                    await self._chapter(min(until, time.monotonic() + self._given.chapter))
                except Exception as error:  # one chapter fails, and the soak goes on: unattended
                    log.exception("chapter_failed", chapter=self.result.chapters)
                    self._finding(f"{type(error).__name__}: {error}"[:2000])
                await self._mend()
                await self._write()
        finally:
            monitoring.cancel()
            await asyncio.gather(monitoring, return_exceptions=True)

    def _finding(self, text: str) -> None:
        self.result.findings.append(f"chapter {self.result.chapters}: {text}")
        print(f"FINDING {self.result.findings[-1]}", flush=True)

    async def _chapter(self, until: float) -> None:
        begun = time.monotonic()
        async with load(self._cluster, sessions=self._given.sessions, tokens=self._given.tokens) as running:
            cutting = asyncio.create_task(self._cut(running))
            try:
                while time.monotonic() < until:
                    await self._one_fault(running)
                    await asyncio.sleep(self._rng.uniform(0.2, PAUSE_S))
            finally:
                cutting.cancel()
                await asyncio.gather(cutting, return_exceptions=True)
                self._count(running, begun)
            for each in await running.finish():
                self._finding(each)
            for session in running.sessions[:2]:
                await self._witness.remember(session)
        for each in await self._witness.look(LOOKS):
            self._finding(each)

    async def _one_fault(self, running: Load) -> None:
        fault = draw(self._world.rng, self._given.only)
        begun = time.monotonic()
        try:
            await fault.happens(self._world)
            self.result.faults[fault.name] += 1
            await running.grows(1, limit_s=STILL_S)
        except TimeoutError as error:
            still = [f"{session} on {(await self._cluster.owner(session)).name}" for session in running.sessions[:3]]
            raise AssertionError(f"conversations stand still {STILL_S:.0f} s after: {fault.name}; {still}") from error
        if self._given.verbose:
            print(f"{fault.name}: all go on {time.monotonic() - begun:.1f} s after it began", flush=True)

    async def _cut(self, running: Load) -> None:
        """Clients lose their connections, each about every `--cut` seconds."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.1, 2.0 * self._given.cut / len(running.devices)))
            self._rng.choice(running.devices).cut()
            self.result.connections_cut += 1

    def _count(self, running: Load, begun: float) -> None:
        result = self.result
        result.turns += running.turns
        result.kills = self._world.kills
        for each in running.devices:
            result.resumes += sum(f.body["type"] == "resumed" and f.body["mode"] != "gone" for f in each.frames)
        if running.sessions:
            result.silences.append(((begun - self._began) / 3600, max(running.silences())))

    async def _mend(self) -> None:
        """Whatever a chapter left behind: every member lives, and none had ended by itself."""
        postgres = self._cluster.postgres
        if not postgres.running:
            await asyncio.to_thread(postgres.start)
        for name in NAMES:
            member = self._cluster.members[name]
            for proxy in member.proxies:
                proxy.heal()
            if member.process is None:  # killed, and the chapter ended before it was started again
                await self._world.restart(member)
            elif member.process.returncode is not None:
                self._finding(
                    f"{name} ended by itself ({member.process.returncode}): {self._cluster.said(name)[-500:]}"
                )
                await self._world.restart(member)

    async def _write(self) -> None:
        result = self.result
        result.hours = (time.monotonic() - self._began) / 3600
        result.looks = self._witness.looks
        lines = self._monitor.lines
        result.growth = growth(lines, (*SPARED, "Valkey", "PostgreSQL"))
        self._out.mkdir(parents=True, exist_ok=True)
        (self._out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
        (self._out / "samples.json").write_bytes(msgspec.json.encode(lines))
        print(
            f"{result.hours:.2f} h, chapter {result.chapters}: {result.turns} turns, {result.resumes} resumes, "
            f"{result.kills} kills, {result.verdict}",
            flush=True,
        )


async def main(given: argparse.Namespace) -> bool:
    with fillable_disk() as disk:
        postgres = PostgresServer(parent=disk.folder)
        flags = (*FLAGS[given.engine], "--idle-s", str(IDLE_S))
        async with chaos_cluster(*flags, names=NAMES, proxied=True, postgres=postgres) as cluster:
            soak = Soak(cluster, disk, given)
            await soak.run()
            result = soak.result
    report(
        "soak",
        {
            **{name: getattr(result, name) for name in ("hours", "chapters", "turns", "resumes", "kills", "looks")},
            "faults": dict(result.faults),
            "longest silence s": max((silence for _, silence in result.silences), default=0.0),
            "rising": result.rising,
            "lost, repeated, changed or still": len(result.findings),
        },
    )
    return is_faultless([*result.findings, *result.rising])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever was started is ended
    run_bench(
        main,
        __doc__,
        hours=8.0,
        chapter=Option(90.0, "seconds"),
        sessions=12,
        tokens=100,
        seed=1,
        engine=Option("sim", choices=("sim", "llama")),
        cut=Option(1.0, "a client's connection is cut about every so many seconds"),
        sample=Option(10.0, "seconds between samples"),
        only=Option([], "faults whose names have one of these words"),
        out="dist/soak",
        verbose=False,
    )
