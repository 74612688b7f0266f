"""This release and the one before it in one cluster: hand-offs and failovers from one to the other, each way.

    python -m bench.cluster.mixed_versions --rounds 20 [--sessions 8] [--engine sim|llama] [--revision REV]
    python -m bench.cluster.mixed_versions --what upgrade --sessions 8

Real processes on Valkey and PostgreSQL; the release before runs from a `git archive` of its revision, in the same
environment. Each round conversations never pause while all of them are brought to one release's replica, it is killed
(kill -9), started again, and they are handed back and forth; the next round kills the other release's. `upgrade`: every
member is the older one; each is replaced by the newer in the order of docs/upgrading.md, and then taken back. Two
devices, one at each release's gateway, record every frame; the journal is held against them. Bar: 0 findings.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
from collections import Counter
from pathlib import Path

from bench.cluster.kill import FLAGS
from bench.support import Option, is_faultless, report, run_bench, spread
from tests.support.chaos.mixed import MixedRound, mixed_cluster, upgraded_and_back
from tests.support.neighbours.previous import REVISION, has_history, unpack_release


async def rounds(tree: Path, given: argparse.Namespace) -> list[str]:
    done: list[MixedRound] = []
    sessions = min(given.sessions, 2) if given.engine == "llama" else given.sessions  # its slots
    async with mixed_cluster(tree, *FLAGS[given.engine]) as mixed:
        for number in range(given.rounds):
            victim = ("r-old", "r-new")[number % 2]
            done.append(await mixed.round(victim, sessions=sessions, tokens=given.tokens))
            last = done[-1]
            print(f"{number}: {dict(last.moves)}, {last.seconds:.1f} s, {len(last.findings)} findings", flush=True)
    findings = [each for one in done for each in one.findings]
    report(
        "cluster_mixed_versions",
        {
            "engine": given.engine,
            "revision": given.revision[:12],
            "rounds": len(done),
            "sessions": sessions,
            **dict(sum((one.moves for one in done), Counter())),
            **spread("longest silence {} s", [one.longest_silence_s for one in done], "p50 max"),
            "lost, repeated or changed": len(findings),
        },
    )
    return findings


async def upgrade(tree: Path, given: argparse.Namespace) -> list[str]:
    members = ("r1-old", "r2-old", "g1-old", "g2-old")
    async with mixed_cluster(tree, *FLAGS[given.engine], members=members) as mixed:
        findings: list[str] = []
        for number in range(given.rounds):
            found = await upgraded_and_back(mixed, tree, sessions=given.sessions, tokens=given.tokens)
            print(f"{number}: upgraded and taken back, {len(found)} findings", flush=True)
            findings += found
    figures = {"engine": given.engine, "revision": given.revision[:12], "rounds": given.rounds}
    report("cluster_upgrade", {**figures, "sessions": given.sessions, "lost, repeated or changed": len(findings)})
    return findings


async def main(given: argparse.Namespace) -> bool:
    if not has_history(given.revision):
        print(f"this checkout does not have {given.revision}: fetch its history")
        return False
    with tempfile.TemporaryDirectory(prefix="sessile-release-") as folder:
        tree = unpack_release(Path(folder), given.revision)
        return is_faultless(await (upgrade if given.what == "upgrade" else rounds)(tree, given))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever was started is ended
    run_bench(
        main,
        __doc__,
        rounds=20,
        sessions=8,
        tokens=60,
        what=Option("rounds", choices=("rounds", "upgrade")),
        engine=Option("sim", choices=("sim", "llama")),
        revision=REVISION,
    )
