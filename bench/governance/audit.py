"""What a verdict's row of the audit log costs the append that carries it.

    python -m bench.governance.audit --pairs 10 --seconds 1.5

Bar: within noise. Sessions append a delta with a command and a head patch, as a message does, one after the other and
each waiting for its append; in every pair of runs once with a verdict of one finding, once without, in an order that
alternates, and a third run without one says what the noise is. Told are the medians of the ratios (with / without, and
without / without) of appends a second and of their median latency, with the range of their middle 80%. `verify` is
timed over all that was written. SQLite in a folder, PostgreSQL from its wheel (`--journal` names one).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

from bench.support import Option, run_bench
from persistence import open_store
from sessions.governance.audit_verify import verify
from sessions.model.audit import Audited
from sessions.model.journal_types import Append
from sessions.model.types import UnixMs
from sessions.model.verdicts import Finding
from sessions.ports import Journal
from sessions.store import Store
from tests.support.percentiles import percentile
from tests.support.stores.journals import ACME, NOW, a_command, delta, grant, key, patch
from tests.support.stores.postgres_server import PostgresServer

SESSIONS = 16
KINDS = ("sqlite", "postgres")
FOUND = Finding(
    category="pii/email",
    action="redact",
    start=10,
    end=30,
    model="patterns/1",
    policy="0123456789abcdef",
    text="a" * 20,
)


async def measured(journal: Journal, name: str, seconds: float, *, audited: bool) -> list[float]:
    """Latencies of appends, in seconds."""
    row = Audited(action="verdict", at=NOW, session=name, user="mary", detail={"direction": "input"}, findings=(FOUND,))
    until, took = time.perf_counter() + seconds, list[float]()

    async def session(number: int) -> None:
        at = key(f"{name}-{number}")
        head, top = await grant(journal, at), 0
        while time.perf_counter() < until:
            append = Append(
                key=at,
                fence=head.fence,
                top=top,
                records=(delta(top + 1),),
                commands=(a_command(top),),
                head=patch(open=bool(top % 2)),
                audit=(row,) if audited else (),
                at=UnixMs(NOW + top),
            )
            began = time.perf_counter()
            await journal.append(append)
            took.append(time.perf_counter() - began)
            top += 1

    await asyncio.gather(*(session(number) for number in range(SESSIONS)))
    return took


async def compare(store: Store, kind: str, pairs: int, seconds: float) -> None:
    await measured(store.journal, "warm", seconds, audited=True)
    ratios: dict[str, list[float]] = {"rate": [], "p50": [], "rate_noise": [], "p50_noise": []}
    plain_rates, plain_p50s = list[float](), list[float]()
    for pair in range(pairs):
        runs = {}
        order = ("with", "without", "again") if pair % 2 else ("again", "without", "with")
        for which in order:
            took = await measured(store.journal, f"{which}{pair}", seconds, audited=which == "with")
            runs[which] = (len(took) / seconds, percentile(took, 0.5))
        for name, top in (("", "with"), ("_noise", "again")):
            ratios[f"rate{name}"].append(runs[top][0] / runs["without"][0])
            ratios[f"p50{name}"].append(runs[top][1] / runs["without"][1])
        plain_rates.append(runs["without"][0])
        plain_p50s.append(runs["without"][1])
    began = time.perf_counter()
    found = await verify(store.audit, ACME)
    took_s = time.perf_counter() - began
    print(f"{kind}: {statistics.median(plain_rates):,.0f} appends/s, p50 {statistics.median(plain_p50s) * 1000:.2f} ms")
    for name, values in ratios.items():
        low, high = percentile(values, 0.1), percentile(values, 0.9)
        print(f"  {name:<11} × {statistics.median(values):.3f}  ({low:.3f} to {high:.3f})")
    print(f"  verify      {found.rows:,} rows, intact: {found.intact}, {found.rows / took_s:,.0f} rows/s")
    worst = percentile(ratios["rate_noise"], 0.1)
    within = statistics.median(ratios["rate"]) >= worst
    print(f"  verdict     {'within noise' if within else f'above noise: the median is below {worst:.3f}'}")


async def main(arguments: argparse.Namespace) -> None:
    for kind in KINDS if arguments.journal == "both" else (arguments.journal,):
        async with contextlib.AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url = kind
            if kind == "postgres":
                server = PostgresServer()
                server.start()
                stack.callback(server.stop)
                url = server.dsn
            store = open_store(url, folder=Path(folder))
            await store.open()
            stack.push_async_callback(store.close)
            await compare(store, kind, arguments.pairs, arguments.seconds)


if __name__ == "__main__":
    run_bench(main, __doc__, pairs=10, seconds=1.5, journal=Option("both", choices=(*KINDS, "both")))
