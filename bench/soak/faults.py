"""What is done to the cluster: a fault is drawn by weight, lasts a random while, and is healed before the next.

`SPARED` members are never killed, so that their memory can be followed over hours; they are stopped and cut off like
all others.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from bench.soak.disk import FillableDisk, limit_files
from testbed.chaos.cluster import ChaosCluster, Member
from testbed.chaos.proxy import GOOD, Flow

SPARED: Final = ("r1", "g1")
FLOWS: Final = (
    (Flow(delay_s=0.2, jitter_s=0.2), Flow(delay_s=0.2, jitter_s=0.2)),
    (Flow(hole=True), Flow(hole=True)),
    (GOOD, Flow(hole=True)),
    (Flow(stalled=True), Flow(stalled=True)),
    (GOOD, Flow(cut_within_bytes=20_000)),
)
LOG_ROOM_BYTES: Final = 256 << 10


class FaultWorld:
    """What faults work on."""

    def __init__(self, cluster: ChaosCluster, disk: FillableDisk, rng: random.Random) -> None:
        self.cluster = cluster
        self.disk = disk
        self.rng = rng
        self.kills = 0

    def any(self, role: str, *, killable: bool = False) -> Member:
        members = [each for each in self.cluster.members.values() if each.role == role]
        return self.rng.choice([each for each in members if not (killable and each.name in SPARED)])

    async def restart(self, member: Member) -> None:
        """At the same address."""
        port = urlsplit(member.url).port if member.role == "gateway" else None
        await self.cluster.start(member.name, *(("--port", str(port)) if port else ()))

    async def lasts(self, at_most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(0.2, at_most_s))


async def member_killed(world: FaultWorld, role: str) -> None:
    member = world.any(role, killable=True)
    await member.kill()
    world.kills += 1
    await world.lasts(2.0)
    await world.restart(member)


async def member_stopped(world: FaultWorld, role: str) -> None:
    """SIGSTOP, for a moment or for longer than its lease."""
    member = world.any(role)
    member.signal(signal.SIGSTOP)
    try:
        await world.lasts(9.0)
    finally:
        member.signal(signal.SIGCONT)


async def joint_cut(world: FaultWorld) -> None:
    """One joint of one member misbehaves."""
    member = world.any(world.rng.choice(("replica", "gateway")))
    proxy = world.rng.choice(member.proxies)
    up, down = world.rng.choice(FLOWS)
    proxy.set(up=up, down=down)
    try:
        await world.lasts(6.0)
    finally:
        proxy.heal()
        if up.hole or down.hole:
            proxy.reset()  # what was swallowed is not sent again


async def joint_reset(world: FaultWorld) -> None:
    for member in world.cluster.members.values():
        for proxy in member.proxies:
            if world.rng.random() < 0.5:
                proxy.reset()


async def valkey_flushed(world: FaultWorld) -> None:
    def flush() -> None:
        with world.cluster.valkey.client() as client:
            client.flushall()

    await asyncio.to_thread(flush)


async def valkey_killed(world: FaultWorld) -> None:
    world.cluster.valkey.kill()
    world.kills += 1
    await world.lasts(3.0)
    await asyncio.to_thread(world.cluster.valkey.start)


async def valkey_stopped(world: FaultWorld) -> None:
    world.cluster.valkey.pause()
    try:
        await world.lasts(5.0)
    finally:
        world.cluster.valkey.go_on()


async def postgres_killed(world: FaultWorld) -> None:
    await asyncio.to_thread(world.cluster.postgres.kill)
    world.kills += 1
    await asyncio.to_thread(world.cluster.postgres.start)


async def postgres_stopped(world: FaultWorld) -> None:
    world.cluster.postgres.pause()
    try:
        await world.lasts(3.0)
    finally:
        world.cluster.postgres.resume()


async def journal_disk_full(world: FaultWorld) -> None:
    """No room is left for the journal; a PostgreSQL that gives up over it is started again when there is."""
    postgres = world.cluster.postgres
    world.disk.fill(postgres.pids())
    try:
        await world.lasts(5.0)
    finally:
        world.disk.free(postgres.pids() if postgres.running else ())
        if not postgres.running:
            await asyncio.to_thread(postgres.start)


async def replica_disk_full(world: FaultWorld) -> None:
    """A replica's files cannot grow: its KV tier has no room. What it logs still fits."""
    member = world.any("replica")
    assert member.process is not None
    size = (world.cluster.folder / f"{member.name}.log").stat().st_size
    limit_files([member.process.pid], size + LOG_ROOM_BYTES)
    try:
        await world.lasts(5.0)
    finally:
        limit_files([member.process.pid], -1)


class Fault(NamedTuple):
    name: str
    weight: int
    happens: Callable[[FaultWorld], Awaitable[None]]


FAULTS: Final = (
    Fault("replica killed", 8, lambda world: member_killed(world, "replica")),
    Fault("gateway killed", 5, lambda world: member_killed(world, "gateway")),
    Fault("replica stopped", 2, lambda world: member_stopped(world, "replica")),
    Fault("gateway stopped", 1, lambda world: member_stopped(world, "gateway")),
    Fault("joint cut", 3, joint_cut),
    Fault("joints reset", 2, joint_reset),
    Fault("Valkey flushed", 2, valkey_flushed),
    Fault("Valkey killed", 2, valkey_killed),
    Fault("Valkey stopped", 1, valkey_stopped),
    Fault("PostgreSQL killed", 2, postgres_killed),
    Fault("PostgreSQL stopped", 1, postgres_stopped),
    Fault("journal's disk full", 1, journal_disk_full),
    Fault("replica's disk full", 1, replica_disk_full),
)


def draw(rng: random.Random, only: list[str]) -> Fault:
    """`only`: words that a fault's name has one of."""
    able = [each for each in FAULTS if not only or any(word in each.name for word in only)]
    return rng.choices(able, [each.weight for each in able])[0]
