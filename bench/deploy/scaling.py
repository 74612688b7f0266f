"""Scales the rendered chart by its own KEDA queries, 3 -> 1 -> 3 replicas, under conversations that never pause.

    python -m bench.deploy.scaling [--every 5] [--quiet 30] [--busy 24] [--calm 4]

A real Prometheus scrapes the replicas' /metrics; the queries, thresholds, windows and policies are the chart's.
`--quiet` is its downAfterSeconds, shorter than the default of 300 s, and `--every` its pollingInterval, so that the
bench ends. `--busy` conversations at first and at last, `--calm` in between. Bar: 0 sessions lost, no swinging (each
number of replicas is come to once on the way), KV carried along.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from itertools import groupby, pairwise

from bench.cluster.rolling import errors
from bench.support import is_faultless, report, run_bench
from tests.support.chaos.device import Device
from tests.support.chaos.load import load
from tests.support.kubernetes.deployed import POOL, PROMETHEUS, deployed, timeline
from tests.support.kubernetes.scaling import Keda

LIMIT_S = 280.0


async def main(given: argparse.Namespace) -> None:
    pool = {
        "replicas": 3,
        "slots": 8,
        "autoscaling": {"enabled": True, "min": 1, "max": 3, "downAfterSeconds": given.quiet, "waitingPerReplica": 100},
    }
    values = {"pools": {"main": pool}, "monitoring": {"prometheusUrl": PROMETHEUS}}
    findings: list[str] = []
    found: list[str] = []
    devices: list[Device] = []
    async with deployed(values, devices=1, watched=True) as cluster:
        kubernetes = cluster.kubernetes
        kubernetes.scale(POOL, 3)
        await kubernetes.settles()
        since, more = time.monotonic(), given.busy - given.calm
        async with load(cluster, sessions=given.calm, tokens=100) as calm:
            async with (
                load(cluster, sessions=more, tokens=100) as busy,
                contextlib.AsyncExitStack() as stack,
            ):
                await calm.grows(5)
                keda = await stack.enter_async_context(Keda(cluster, every_s=given.every))
                findings += await busy.finish()
                devices += busy.devices
                await kubernetes.until(lambda: kubernetes.count(keda.target) == 1 and kubernetes.is_settled(), LIMIT_S)
                down = time.monotonic() - since
                async with load(cluster, sessions=more, tokens=100) as again:
                    await kubernetes.until(
                        lambda: kubernetes.count(keda.target) == 3 and kubernetes.is_settled(), LIMIT_S
                    )
                    up = time.monotonic() - since
                    await again.grows(50)
                    findings += await again.finish()
                    devices += again.devices
                readings = keda.readings
            moves = calm.moves()
            findings += await calm.finish()
            devices += calm.devices
        found = errors(devices, since)
        if given.timeline:
            print(timeline(kubernetes.machine))
            for each in readings:
                print(f"{each.at - since:8.2f} s  {each.num_pods} -> {each.to}  {each.values}")
    steps = [count for count, _ in groupby(each.to for each in readings)]
    turns = sum((a - b) * (b - c) < 0 for (a, b), (_, c) in pairwise(pairwise(steps)))
    figures = {"steps": "-".join(map(str, steps)), "swings": turns - 1, "down_s": down, "up_s": up - down}
    figures |= {"handed_off": moves.count("handoff"), "other_moves": len(moves) - moves.count("handoff")}
    report("chart_scaling", figures | {"errors": len(found), "findings": len(findings)})
    is_faultless([*found, *findings])


if __name__ == "__main__":
    run_bench(main, __doc__, every=5.0, quiet=30, busy=24, calm=4, timeline=False)
