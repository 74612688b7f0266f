"""What encryption at rest costs, whether a word is left on the disk, and whether keys rotate through crashes.

    python -m bench.governance.at_rest --part cost          appends with sealed bodies against plain ones, in pairs
    python -m bench.governance.at_rest --part words         1,000 planted sentences, every byte searched
    python -m bench.governance.at_rest --part rotation      100 kills while keys rotate, are wrapped anew and rows swept

`cost`: two stores on SQLite in this process take turns (A B B A ...), as many appends of one delta as 400 sessions can
make, like `bench.journal --rate 0`; the figure is sealed over plain, the mean over pairs and its one-sided 95% lower
bound. Bars: 0.93 x, no word found, nothing unreadable and nothing lost.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from bench.journal import measure
from bench.support import Option, is_faultless, lower_bound, report, run_bench
from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.sweep import Reencryption
from persistence.key_database import SqliteKeyDatabase
from persistence.postgres.store import PostgresStore
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore
from tests.support.stores.journals import NOW, PostgresBed, SqliteBed, a_codec, postgres
from tests.support.stores.planted import files_under, planted_numbers, sentences
from tests.support.stores.planted_logs import plant, read_back
from tests.support.stores.rotation import RotationRun

BAR = 0.93


async def events_per_s(folder: Path, arguments: argparse.Namespace, *, sealed: bool) -> float:
    codec = await a_codec(SqliteKeyDatabase(folder / "keys.db")) if sealed else None
    store = SqliteStore(SqliteDatabase(folder, codec=codec))
    await store.open()
    try:
        load, _ = await measure(store.journal, arguments)
    finally:
        await store.close()
    return len(load.latencies_s) / float(arguments.seconds)


async def cost(arguments: argparse.Namespace) -> bool:
    ratios: list[float] = []
    for number in range(arguments.pairs):
        of: dict[bool, float] = {False: 0.0, True: 0.0}
        for sealed in (True, False) if number % 2 else (False, True):
            with tempfile.TemporaryDirectory(prefix="sessile-bench-", dir=arguments.data or None) as folder:
                of[sealed] += await events_per_s(Path(folder), arguments, sealed=sealed)
        ratios.append(of[True] / of[False])
    least = lower_bound(ratios)
    figures = {"pairs": len(ratios), "sealed / plain": sum(ratios) / len(ratios), "95% lower bound": least, "bar": BAR}
    report("journal at rest: cost", figures)
    return least >= BAR


async def words(arguments: argparse.Namespace) -> bool:
    texts = sentences(-(-arguments.sentences // 6) * 6)
    half = len(texts) // 12 * 6
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sessile-bench-")))
        found: dict[str, int] = {}
        for kind in ("sqlite", "postgres"):
            beds = [
                SqliteBed(folder / kind, sealed=sealed)
                if kind == "sqlite"
                else PostgresBed(postgres(), folder / kind, sealed=sealed, schema="planted")
                for sealed in (False, True)
            ]
            store = await beds[0].open()
            await plant(store, texts[:half])
            await store.close()
            store = await beds[1].open()
            await plant(store, texts[half:], first=half)
            assert isinstance(store, SqliteStore | PostgresStore) and isinstance(store.database.codec, SealingCodec)
            await Reencryption(store.database, store.database.codec, now_ms=lambda: NOW, settle_s=0).sweep()
            missing = set(texts) - await read_back(store)
            await store.close()
            store = await beds[1].open()
            bed = beds[1]
            content = await bed.tables() if isinstance(bed, PostgresBed) else files_under([bed.folder])
            found[kind] = len(planted_numbers(content)) + len(missing)
            await store.close()
    report("journal at rest: words", {"sentences": len(texts), "found or unreadable": found})
    return not any(found.values())


def rotation(arguments: argparse.Namespace) -> bool:
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
        run = RotationRun(Path(folder))
        faults: list[str] = []
        for _ in range(arguments.kills):
            run.kill_once(chance.uniform(0.02, 1.0))
            faults += run.check()
        figures = {
            "kills": arguments.kills,
            "rounds of rotation": run.rotations,
            "appends acknowledged": sum(run.acknowledged.values()),
            "unreadable or lost": len(faults),
        }
    report("journal at rest: rotation", figures)
    return is_faultless(faults)


async def main(arguments: argparse.Namespace) -> bool:
    match arguments.part:
        case "cost":
            return await cost(arguments)
        case "words":
            return await words(arguments)
    return await asyncio.to_thread(rotation, arguments)


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        part=Option("cost", choices=["cost", "words", "rotation"]),
        pairs=10,
        seconds=1.0,
        sessions=400,
        rate=Option(0.0, "events per second and session; 0: as fast as it goes"),
        readers=0,
        busy=0.0,
        data=Option("", "a folder on the disk to measure"),
        sentences=1_000,
        kills=100,
        seed=1,
    )
