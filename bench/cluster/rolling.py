"""What clients notice while replicas are drained and every process of a cluster is restarted under load.

    python -m bench.cluster.rolling [--open 50] [--sessions 24]

Real processes with simulated engines (50 tokens/s) on Valkey and PostgreSQL; devices record every frame. First a
replica with `--open` answers under way is told to leave (SIGTERM), with one other to go to. Then, under `--sessions`
conversations that never pause, each replica and each gateway is restarted, one after the other. `errors` are error
frames of any kind, retryable ones too, and answers that ended as failed or incomplete without having reached their
length.
"""

from __future__ import annotations

import argparse
import signal
import time
from urllib.parse import urlsplit

from bench.support import is_faultless, report, run_bench, spread
from tests.support.chaos.cluster import SIMULATED, ChaosCluster, chaos_cluster
from tests.support.chaos.device import Device
from tests.support.chaos.load import Load, load


def errors(devices: list[Device], since: float) -> list[str]:
    """What no client should be told, from a moment on: before it, a load that begins all at once is slowed down."""
    found = []
    for each in devices:
        for frame in each.frames:
            if frame.at < since:
                continue
            body = frame.body
            if body["type"] == "error":
                found.append(f"error {body['error']['code']}")
            elif body["type"] == "resumed" and body["mode"] in ("gone", "reset"):
                found.append(f"resumed as {body['mode']}")
            elif body["type"] == "event" and body["event"]["type"] in ("response.failed", "response.incomplete"):
                details = body["event"]["response"].get("incomplete_details") or {}
                if details.get("reason") != "max_output_tokens":
                    found.append(f"{body['event']['type']} {details.get('reason', '')}")
    return found


async def left(cluster: ChaosCluster, name: str) -> float:
    """SIGTERM; returns the seconds until the process has ended, which must be in order."""
    process = cluster.members[name].process
    assert process is not None
    began = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0, cluster.said(name)[-2000:]
    return time.perf_counter() - began


async def drained(num_open: int) -> None:
    async with (
        chaos_cluster(*SIMULATED, names=("r1", "g1")) as cluster,
        load(cluster, sessions=num_open, tokens=800) as running,
    ):
        await cluster.start("r2")
        await running.grows(5)
        since = time.monotonic()
        took = await left(cluster, "r1")
        await running.grows(5)
        await report_of("cluster_drain", running, since, {"open": num_open, "drain_s": took})


async def restarted(sessions: int) -> None:
    async with chaos_cluster(*SIMULATED) as cluster, load(cluster, sessions=sessions, tokens=100) as running:
        took: dict[str, float] = {}
        since = time.monotonic()
        for name in ("r1", "r2", "g1", "g2"):
            port = urlsplit(cluster.members[name].url).port
            took[name] = await left(cluster, name)
            await cluster.start(name, *(("--port", str(port)) if port else ()))
            await running.grows(10)
        figures = {f"left_{name}_s": seconds for name, seconds in took.items()}
        await report_of("cluster_rolling", running, since, {"sessions": sessions, **figures})


async def report_of(name: str, running: Load, since: float, figures: dict[str, object]) -> None:
    silences = running.silences()
    moves = running.moves()
    findings = await running.finish()
    found = errors(running.devices, since)
    report(
        name,
        {
            **figures,
            "turns": running.turns,
            "handed_off": moves.count("handoff"),
            "other_moves": len(moves) - moves.count("handoff"),
            **spread("silence_ms_{}", silences, "p50 max", times=1000),
            "errors": len(found),
            "findings": len(findings),
        },
    )
    is_faultless([*found, *findings])


async def main(given: argparse.Namespace) -> None:
    if given.open:
        await drained(given.open)
    if given.sessions:
        await restarted(given.sessions)


if __name__ == "__main__":
    run_bench(main, __doc__, open=50, sessions=24)
