"""A replicated server is killed under load with its Litestream, and restored into another folder: what is lost?

    python -m bench.recovery.replicate --rounds 50

Each round: conversations go on over WebSockets, the server and its Litestream are killed at once (SIGKILL), the copy is
restored. RPO is the time from the last restored record to the last one that a reader was shown. Bars: RPO at most 2 s,
every log a prefix of what was acknowledged, 0 unreadable.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bench.support import Option, report, run_bench
from testbed.replicated_server import Talks, bring_keys, logs_in, replicated, run


async def one_round(folder: Path, talks_at_once: int, turns: int) -> tuple[float, int, int]:
    """(RPO in seconds, records lost, logs that are no prefix)"""
    data, restored, url = folder / "data", folder / "restored", f"file://{folder}/replica"
    with replicated(data, folder, "--replicate", url) as server:
        talks = Talks(server.url, talks_at_once)
        await talks.each_had(turns)
        server.kill()
        await talks.ended()
    bring_keys(data, restored)
    done = run("restore", "--from", url, "--data", str(restored))
    if done.returncode:
        raise RuntimeError(done.stderr)
    before, after = await logs_in(data, list(talks.offsets)), await logs_in(restored, list(talks.offsets))
    rpo_s, lost, differ = 0.0, 0, 0
    shown_at = max(before[session][offset - 1].at for session, (_, offset) in talks.offsets.items())
    for session, (_, offset) in talks.offsets.items():
        kept = after[session]
        differ += kept != before[session][: len(kept)]
        missing = before[session][len(kept) : offset]
        lost += len(missing)
        if missing:
            rpo_s = max(rpo_s, (shown_at - missing[0].at) / 1000)
    return rpo_s, lost, differ


async def main(given: argparse.Namespace) -> None:
    figures = []
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory(prefix="s") as folder:
            figures.append(await one_round(Path(folder), given.talks, given.turns))
    rpos = sorted(rpo_s for rpo_s, _, _ in figures)
    report(
        "replicated journal, killed and restored",
        {
            "rounds": given.rounds,
            "RPO s p50": rpos[len(rpos) // 2],
            "RPO s max (bar 2)": rpos[-1],
            "records lost": sum(lost for _, lost, _ in figures),
            "logs that are no prefix (bar 0)": sum(differ for _, _, differ in figures),
        },
    )


if __name__ == "__main__":
    run_bench(
        main, __doc__, rounds=50, talks=Option(8, "conversations at once"), turns=Option(20, "of each before the kill")
    )
