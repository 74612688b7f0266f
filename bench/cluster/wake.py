"""A parked session is woken by one device: when does another, on another gateway, show it?

    python -m bench.cluster.wake [--sessions 30]

Two gateways and two replicas as real processes on Valkey and PostgreSQL, two devices in this one. Every session is
read by both devices and then leaves memory. The first device speaks; `lag` is from its own sight of the message to the
second's, and `shown` from its sending to the second's sight. Nobody reconnects in between, which is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from actors.directory.valkey import ValkeyDirectory
from bench.support import report, run_bench, spread
from tests.support.chaos.cluster import SIMULATED, ChaosCluster, chaos_cluster
from tests.support.chaos.device import Device, device
from transport.ops.operator_requests import SessionQuery, list_sessions
from transport.peer import PeerSecurity

IDLE_S = 4.0


async def parked(cluster: ChaosCluster) -> None:
    """Returns when no session is in memory."""
    security = PeerSecurity(token="the chaos runs' own")
    left = 1
    while left:
        await asyncio.sleep(0.25)
        left = (await list_sessions(ValkeyDirectory(cluster.valkey.url), security, SessionQuery(limit=1))).total


def seen_at(of: Device, session: str, offset: int) -> float:
    """When a device was told an event."""
    at: float = next(
        frame.at
        for frame in reversed(of.frames)
        if frame.body["type"] == "event"
        and frame.body["session"] == session
        and frame.body.get("first_offset", frame.body["offset"]) <= offset <= frame.body["offset"]
    )
    return at


async def main(given: argparse.Namespace) -> None:
    lags: list[float] = []
    totals: list[float] = []
    async with chaos_cluster(*SIMULATED, "--idle-s", str(IDLE_S)) as cluster:
        near, far = cluster.urls
        async with device(near) as speaker, device(far) as reader:
            names = [await speaker.create() for _ in range(given.sessions)]
            for name in names:
                await reader.read(name)
            await parked(cluster)
            connections = speaker.connections + reader.connections
            for name in names:
                sent_at = time.monotonic()
                answer = await speaker.command("message.create", session=name, content="Hello", max_output_tokens=3)
                offset = answer["offset"]
                for each in (speaker, reader):
                    await each.until(lambda c=each.cursors[name], o=offset: (c.position or 0) >= o)  # type: ignore[misc]
                shown_at = seen_at(reader, name, offset)
                lags.append(max(0.0, shown_at - seen_at(speaker, name, offset)))
                totals.append(shown_at - sent_at)
            reconnected = speaker.connections + reader.connections - connections
    report(
        "cluster_wake",
        {
            "sessions": given.sessions,
            **spread("lag_ms_{}", lags, "p50 p95 max", times=1000),
            **spread("shown_ms_{}", totals, "p50 p95", times=1000),
            "reconnected": reconnected,
        },
    )


if __name__ == "__main__":
    run_bench(main, __doc__, sessions=30)
