"""What readers notice while parts of a cluster of real processes fail under load, and whether they were told the truth.

    python -m bench.cluster.outages [--sessions 12] [--only NAME ...] [--seconds 8]

Conversations go on at two gateways on two replicas with simulated engines (50 tokens/s), every joint behind a fault
proxy; two devices record every frame. Each fault lasts `--seconds`, then heals. For each: the longest silence within an
answer that any conversation had, how many sessions changed hands, and what the devices were sent against the journal.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

from bench.support import Option, is_faultless, percentile, report, run_bench
from tests.support.chaos.cluster import SIMULATED, ChaosCluster, chaos_cluster
from tests.support.chaos.load import Load, load
from tests.support.chaos.proxy import GOOD, Flow, Proxy

Outage = Callable[[ChaosCluster, Load, float], Awaitable[None]]

FLOWS = {
    "delay 200 to 400 ms": (Flow(delay_s=0.2, jitter_s=0.2), Flow(delay_s=0.2, jitter_s=0.2)),
    "black hole": (Flow(hole=True), Flow(hole=True)),
    "black hole, one way": (GOOD, Flow(hole=True)),
    "stalled": (Flow(stalled=True), Flow(stalled=True)),
    "slow, 4 kB/s": (GOOD, Flow(rate_bytes_s=4_000)),
    "cut at random bytes": (GOOD, Flow(cut_within_bytes=20_000)),
}
GATEWAY_JOINTS = ("journal", "directory")
JOINTS = ("peers", *GATEWAY_JOINTS)


async def victim(cluster: ChaosCluster, load: Load, joint: str, member: str = "") -> Proxy:
    """The proxy at a joint of an owner, or of a member."""
    proxy = getattr(cluster.members[member] if member else await cluster.owner(load.sessions[0]), joint)
    assert isinstance(proxy, Proxy)
    return proxy


def flowing(joint: str, name: str, member: str = "") -> Outage:
    async def outage(cluster: ChaosCluster, load: Load, seconds: float) -> None:
        up, down = FLOWS[name]
        proxy = await victim(cluster, load, joint, member)
        proxy.set(up=up, down=down)
        await asyncio.sleep(seconds)
        proxy.heal()
        if up.hole or down.hole:
            proxy.reset()  # what was swallowed is not sent again: such a connection is of no more use

    return outage


def half_open(joint: str) -> Outage:
    async def outage(cluster: ChaosCluster, load: Load, seconds: float) -> None:
        (await victim(cluster, load, joint)).half_open("client")
        await asyncio.sleep(seconds)

    return outage


def resets(joint: str) -> Outage:
    async def outage(cluster: ChaosCluster, load: Load, seconds: float) -> None:
        proxy = await victim(cluster, load, joint)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            proxy.reset()
            await asyncio.sleep(0.5)

    return outage


async def valkey_emptied(cluster: ChaosCluster, load: Load, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with cluster.valkey.client() as client:
            client.flushall()
        await asyncio.sleep(1.0)


async def valkey_away(cluster: ChaosCluster, load: Load, seconds: float) -> None:
    cluster.valkey.kill()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(cluster.valkey.start)


async def valkey_stopped(cluster: ChaosCluster, load: Load, seconds: float) -> None:
    cluster.valkey.pause()
    await asyncio.sleep(seconds)
    cluster.valkey.go_on()


def postgres(how: str, *, away: bool) -> Outage:
    async def outage(cluster: ChaosCluster, load: Load, seconds: float) -> None:
        await asyncio.to_thread(getattr(cluster.postgres, how))
        await asyncio.sleep(seconds if away else 0)
        await asyncio.to_thread(cluster.postgres.start)

    return outage


async def postgres_restored(cluster: ChaosCluster, load: Load, seconds: float) -> None:
    """A copy of the files, some seconds of writing, and the copy put back."""
    await asyncio.to_thread(cluster.postgres.stop)
    await asyncio.to_thread(cluster.postgres.backup)
    await asyncio.to_thread(cluster.postgres.start)
    await load.grows(10)
    await asyncio.sleep(seconds)
    load.restored = True
    await asyncio.to_thread(cluster.postgres.stop)
    await asyncio.to_thread(cluster.postgres.restore)
    await asyncio.to_thread(cluster.postgres.start)
    for each in load.devices:
        for session in load.sessions:
            cursor = each.cursors[session]
            await each.until(lambda c=cursor: c.resets > 0, 60.0)  # type: ignore[misc]


async def gateway_killed(cluster: ChaosCluster, load: Load, seconds: float) -> None:
    await cluster.members["g1"].kill()
    await asyncio.sleep(seconds)
    await cluster.start("g1")


async def replica_killed(cluster: ChaosCluster, load: Load, seconds: float) -> None:
    owner = await cluster.owner(load.sessions[0])
    await owner.kill()
    await asyncio.sleep(seconds)
    await cluster.start(owner.name)


OUTAGES: dict[str, Outage] = {
    "replica killed": replica_killed,
    "gateway killed": gateway_killed,
    "Valkey emptied every second": valkey_emptied,
    "Valkey killed, empty when it comes back": valkey_away,
    "Valkey stopped": valkey_stopped,
    "PostgreSQL restarted": postgres("stop", away=False),
    "PostgreSQL killed, recovers": postgres("kill", away=False),
    "PostgreSQL away": postgres("stop", away=True),
    "PostgreSQL restored from an older backup": postgres_restored,
    **{f"{joint}: {name}": flowing(joint, name) for joint in JOINTS for name in FLOWS},
    **{f"a gateway's {joint}: {name}": flowing(joint, name, "g1") for joint in GATEWAY_JOINTS for name in FLOWS},
    **{f"{joint}: half open": half_open(joint) for joint in JOINTS},
    **{f"{joint}: reset twice a second": resets(joint) for joint in JOINTS},
}


async def main(arguments: argparse.Namespace) -> bool:
    names = [name for name in OUTAGES if not arguments.only or any(part in name for part in arguments.only)]
    figures: dict[str, object] = {"sessions": arguments.sessions, "seconds": arguments.seconds}
    faults: list[str] = []
    async with chaos_cluster(*SIMULATED, proxied=True) as cluster:
        for name in names:
            async with load(cluster, sessions=arguments.sessions, tokens=150) as running:
                await OUTAGES[name](cluster, running, arguments.seconds)
                # A restore takes away what it has to; then answers may end with it.
                await running.grows(5, limit_s=90.0)
                findings = await running.finish()
                silences = running.silences()
                figures[name] = (
                    f"longest silence p50 {percentile(silences, 0.5):.2f} s, max {max(silences):.2f} s; "
                    f"{len(running.moves())} moves, {running.turns} turns, {len(findings)} findings"
                )
                faults += [f"{name}: {each}" for each in findings]
                print(f"{name}: {figures[name]}", flush=True)
    report("cluster_outages", figures)
    return is_faultless(faults)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever was started is ended
    only = Option([], "run those whose name contains one of these")
    run_bench(main, __doc__, sessions=12, seconds=8.0, only=only)
