"""Archived sessions: how long the first touch takes, and how much smaller the journal is.

    python -m bench.recovery.archive --sessions 3 --turns 1000

A server with the simulated engine has conversations of `turns` turns and stops. Then its journal is opened here: every
session is archived, the file gives its space back, and each session is read as a reader's snapshot is (loaded from the
object store, put back, folded), `rounds` times. Bars: reads p95 ≤ 300 ms, the journal ≥ 90% smaller, no step of giving
space back over 1 s.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from bench.support import filler, report, run_bench
from persistence.archive.archiver import Archiver, ArchiveTimes
from persistence.archive.cold_sessions import ColdSessions
from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.tenant_keys import TenantKeys
from persistence.at_rest.wrapping import MasterKeyWrapper
from persistence.key_database import SqliteKeyDatabase
from persistence.master_key import read_master_keys
from persistence.objects.folder import FolderObjects
from persistence.sqlite.database import SqliteDatabase, SqliteTuning
from persistence.sqlite.store import SqliteStore
from sessions.machine.state import replay
from sessions.model.types import SessionKey, UnixMs
from tests.support.doors.server_process import ServerProcess
from tests.support.doors.wire_client import connected
from tests.support.percentiles import percentile

READ_MS, SMALLER, STEP_S = 300.0, 0.9, 1.0


def now_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


async def converse(server: ServerProcess, turns: int) -> None:
    async with connected(server.url) as wire:
        session = await wire.create()
        for number in range(turns):
            made = await wire.command("message.create", session=session, content=filler(30, number))
            await wire.until_end(made["response_id"])


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("journal.db*"))


async def main(arguments: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as scratch:
        folder = Path(scratch) / "data"
        flags = ("--engine", "sim", "--sim-tokens-per-s", "20000", "--sim-answer-tokens", "60", "--retention-days", "1")
        server = ServerProcess(*flags, data=str(folder))
        server.start()
        await asyncio.gather(*(converse(server, arguments.turns) for _ in range(arguments.sessions)))
        server.stop()
        database_keys = SqliteKeyDatabase(folder / "keys.db")
        await database_keys.open()
        wrapper = MasterKeyWrapper(read_master_keys(folder / "master.key"))
        codec = SealingCodec(TenantKeys(database_keys, wrapper, now_ms=now_ms))
        tuning = SqliteTuning(gives_back=True)
        database = SqliteDatabase(folder, codec=codec, tuning=tuning)
        cold = ColdSessions(database, FolderObjects(Path(scratch) / "objects"), now_ms=now_ms)
        store = SqliteStore(database, cold)
        await store.open()
        found = await database.fetch("SELECT tenant, session, top FROM heads WHERE tenant <> '' AND top > 0")
        sessions = [SessionKey(tenant, session) for tenant, session, _ in found]
        before = size_of(folder)
        archiver = Archiver(database, cold, ArchiveTimes(cold_s=0.0), now_ms=now_ms)
        began = time.perf_counter()
        moved = await archiver.sweep()
        took = time.perf_counter() - began
        longest = archiver.longest_step_s
        await store.close()
        after = size_of(folder)
        again = SqliteDatabase(folder, codec=codec, tuning=tuning)
        cold = ColdSessions(again, FolderObjects(Path(scratch) / "objects"), now_ms=now_ms)
        store = SqliteStore(again, cold)
        await store.open()
        reads: list[float] = []
        for _ in range(arguments.rounds):
            for key in sessions:
                began = time.perf_counter()
                loaded = await store.journal.load(key, now_ms=now_ms())
                assert loaded is not None and len(replay(loaded).items) >= 2 * arguments.turns
                reads.append((time.perf_counter() - began) * 1000)
            for key in sessions:
                await cold.archive(key)
        await store.close()
        await database_keys.close()
        p95, smaller = percentile(reads, 0.95), 1 - after / before
        figures = {
            "sessions": moved,
            "events a session": found[0][2],
            "turns": arguments.turns,
            "first touch p50 ms": percentile(reads, 0.5),
            "first touch p95 ms, bar 300": p95,
            "journal MB before": before / 1e6,
            "journal MB after": after / 1e6,
            "smaller by, bar 0.9": smaller,
            "archiving s": took,
            "longest step of giving back s, bar 1": longest,
        }
    report("archived sessions", figures)
    return p95 <= READ_MS and smaller >= SMALLER and longest <= STEP_S


if __name__ == "__main__":
    run_bench(main, __doc__, sessions=3, turns=1000, rounds=10)
