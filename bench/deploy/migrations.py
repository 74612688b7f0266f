"""How long a writer waits while each migration runs on a full journal.

    python -m bench.deploy.migrations --events 1000000 [--store sqlite|postgres]

The journal is filled at version 1 (50 events a session, with commands and usage rows), then migrated one version at a
time, while a writer appends as fast as it can; on PostgreSQL a reader also holds every table for 0.3 s out of 0.6.
Bar: no append waits longer than 1 s.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from bench.support import Option, is_faultless, report, run_bench
from tests.support.stores.migration_stalls import Stall, postgres_stalls, sqlite_stalls
from tests.support.stores.postgres_server import PostgresServer

BAR_S = 1.0


async def measured(store: str, events: int) -> list[Stall]:
    with tempfile.TemporaryDirectory(prefix="sessile-migrations-") as folder:
        if store == "sqlite":
            return await sqlite_stalls(Path(folder), events=events)
        server = PostgresServer()
        try:
            await asyncio.to_thread(server.start)
            return await postgres_stalls(server.dsn, Path(folder), events=events)
        finally:
            server.remove()


async def main(given: argparse.Namespace) -> bool:
    faults = []
    for store in ("sqlite", "postgres") if given.store == "both" else (given.store,):
        stalls = await measured(store, given.events)
        worst = max(stalls, key=lambda each: each.longest_s)
        report(
            f"migrations_{store}",
            {
                "events": given.events,
                "longest wait of an append s": worst.longest_s,
                "in migration": worst.number,
                **{
                    f"{each.number:03}": f"took {each.took_s:.3f} s, longest wait {each.longest_s:.3f} s"
                    for each in stalls
                },
            },
        )
        faults += [f"{store} {each.number:03}: {each.longest_s:.2f} s" for each in stalls if each.longest_s > BAR_S]
    return is_faultless(faults)


if __name__ == "__main__":
    run_bench(main, __doc__, events=1_000_000, store=Option("both", choices=("both", "sqlite", "postgres")))
