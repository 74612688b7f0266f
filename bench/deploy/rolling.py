"""What clients notice of a rolling update of the rendered chart, and of a node that is cut off or killed.

    python -m bench.deploy.rolling [--sessions 24] [--replicas 3] [--gateways 2]
    python -m bench.deploy.rolling --what cut
    python -m bench.deploy.rolling --what kill --layout dist/image/oci

The test kubelet runs the manifests that the chart renders: each pod in a network namespace of its own, with a real
Valkey and PostgreSQL, replicas with the simulated engine (50 tokens/s). Two devices record every frame of
conversations that never pause; the journal is held against them. Bar: no error, no gap, longest silence p95 <= 300 ms;
for a node <= 1 s. `by_...`: what those silences were due to and their stages (`bench.deploy.pauses`); `reader_late`: of
the measuring process itself.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.cluster.rolling import errors
from bench.deploy.pauses import figures, lateness
from bench.support import Option, is_faultless, report, run_bench, spread
from tests.support.chaos.load import Load, load
from tests.support.kubernetes.deployed import GATEWAY, POOL, Deployed, deployed, timeline
from tests.support.kubernetes.manifests import Manifest


async def rolled(cluster: Deployed, running: Load, manifests: list[Manifest]) -> dict[str, Any]:
    begun = time.perf_counter()
    cluster.kubernetes.apply(manifests)
    await cluster.kubernetes.settles(280.0)
    await running.grows(10)
    return {"update_s": time.perf_counter() - begun}


async def lost(cluster: Deployed, running: Load, what: str) -> dict[str, Any]:
    """The node of the replica that owns most: cut off, and healed once everybody goes on; or killed."""
    kubernetes = cluster.kubernetes
    owners = [await cluster.owner(session) for session in running.sessions]
    name = max(set(owners), key=owners.count)
    node = kubernetes.pods[name].node
    assert {pod.name for pod in kubernetes.on(node)} == {name}, "gateways are on nodes of their own"
    begun = time.perf_counter()
    if what == "kill":
        await kubernetes.kill(node)
    else:
        kubernetes.cut(node)
    await running.grows(5)
    took = {"owned": owners.count(name), "all_go_on_s": time.perf_counter() - begun}
    if what == "cut":
        kubernetes.heal(node)
        await running.grows(50)
    return took


def pause(running: Load, session: str) -> tuple[float, str]:
    """When the longest pause of a conversation's answers began."""
    deltas = running.device.cursors[session].deltas
    longest = max(pairwise(deltas), key=lambda two: (two[0].response == two[1].response) * (two[1].at - two[0].at))
    return longest[0].at, f"a conversation is silent for {1000 * (longest[1].at - longest[0].at):.0f} ms"


async def main(given: argparse.Namespace) -> None:
    values = {"gateway": {"replicas": given.gateways}, "pools": {"main": {"replicas": given.replicas}}}
    nodes = [f"n{number}" for number in range(1, given.replicas + given.gateways + 1)]
    layout = Path(given.layout) if given.layout else None
    async with deployed(values, layout=layout, nodes=nodes) as cluster:
        env = {
            "extraEnv": [{"name": "ROLLED", "value": "1"}]
        }  # a new template for all of them, as a new image would be
        manifests = await cluster.rendered({"gateway": env, "pools": {"main": env}})
        async with load(cluster, sessions=given.sessions, tokens=100) as running, lateness() as own:
            await running.grows(5)
            since, wall_s = time.monotonic(), time.time() - time.monotonic()
            if given.what == "update":
                took = await rolled(cluster, running, manifests)
            else:
                took = await lost(cluster, running, given.what)
            silences, moves, shares = running.silences(), running.moves(), figures(running, wall_s)
            findings = await running.finish()
        found = errors(running.devices, since)
        counts = {name: len(cluster.kubernetes.of(name)) for name in (GATEWAY, POOL)}
        if given.timeline:
            cluster.kubernetes.machine.events += [pause(running, session) for session in running.sessions[:5]]
            cluster.kubernetes.machine.events.sort()
            print(timeline(cluster.kubernetes.machine))
    report(
        f"chart_{given.what}",
        {
            "sessions": given.sessions,
            **counts,
            **took,
            "turns": running.turns,
            "handed_off": moves.count("handoff"),
            "other_moves": len(moves) - moves.count("handoff"),
            **spread("silence_ms_{}", silences, "p50 p95 max", times=1000),
            **shares,
            **spread("reader_late_ms_{}", own.late, "p95 max", times=1000),
            "errors": len(found),
            "findings": len(findings),
        },
    )
    is_faultless([*found, *findings])


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        sessions=24,
        replicas=3,
        gateways=2,
        what=Option("update", choices=("update", "cut", "kill")),
        layout="",
        timeline=False,
    )
