"""Restores to any second of a run, checked record by record against an outside witness; how long a restore takes.

    python -m bench.recovery.restore --sessions 200 --seconds 20 --points 5
    python -m bench.recovery.restore --sessions 10000 --seconds 120 --points 20

A process of its own appends to an SQLite journal with a backup beside it, and writes down for each append when it began
and when it was acknowledged. It is killed (SIGKILL) at the end, and its journal is lost: only the backup and the master
key are left. For `points` seconds of the run, and for the end, the journal is restored as of then and compared: nothing
may be in it that had not begun by then, every record is what was appended, and what was acknowledged more than a second
before has to be there (RPO). RTO is the time of a whole restore with its check of every record, for 10 GB of segments.
Bars: RPO ≤ 1 s, RTO ≤ 60 s per 10 GB, 0 records that differ.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from bench.support import is_faultless, report, run_bench
from persistence.at_rest.wrapping import MasterKeyWrapper
from persistence.backup.restore import RestoreServices, restore_journal
from persistence.backup.shipper import BackupShipper, ShippingTimes, shipping
from persistence.key_database import SqliteKeyDatabase
from persistence.master_key import MasterKeyRing
from persistence.objects.folder import FolderObjects
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore
from sessions.model.events import OutputTextDelta
from sessions.model.types import UnixMs
from tests.support.doors.server_process import ROOT
from tests.support.stores.journals import MASTER, a_codec, an_append, delta, grant, key

LINE = struct.Struct("<IIIQQ")  # session, first and last offset, began and acknowledged in milliseconds
RPO_MS, RTO_S_PER_10_GB = 1000, 60.0


class Acknowledged(NamedTuple):
    session: int
    first: int
    last: int
    began: int
    at: int


def now_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def text_of(session: int, offset: int) -> str:
    return f"{session}.{offset} " * 6


async def append_for(folder: Path, sessions: int, seconds: float, rate: float) -> None:
    """The process that is killed."""
    keys = SqliteKeyDatabase(folder / "data" / "keys.db")
    (folder / "data").mkdir()
    codec = await a_codec(keys)
    store = SqliteStore(SqliteDatabase(folder / "data", codec=codec))
    await store.open()
    objects = FolderObjects(folder / "objects")
    shipper = BackupShipper(
        store.database, (keys, codec.keys), objects, now_ms=now_ms, times=ShippingTimes(interval_s=0.25)
    )
    chance = random.Random(5)
    with (folder / "witness").open("wb", buffering=0) as witness:
        async with shipping(shipper):

            async def speak(number: int) -> None:
                began = now_ms()
                head = await grant(store.journal, key(f"s{number:05}"), now=began)
                top = 0
                while True:
                    await asyncio.sleep(chance.expovariate(rate))
                    count = chance.randint(1, 4)
                    records = tuple(delta(top + n, text_of(number, top + n)) for n in range(1, count + 1))
                    began = now_ms()
                    append = an_append(head, top=top, records=records, at=began)
                    await store.journal.append(append)
                    top += count
                    witness.write(LINE.pack(number, top - count + 1, top, began, now_ms()))

            tasks = [asyncio.create_task(speak(number)) for number in range(sessions)]
            await asyncio.sleep(seconds)
            os.kill(os.getpid(), 9)
            await asyncio.gather(*tasks)


async def check(folder: Path, at: int | None, lines: list[Acknowledged]) -> tuple[list[str], float, float, int]:
    """(faults, the RPO in milliseconds, seconds, bytes) of one restore."""
    made = iter(range(10**9))
    wrapper = MasterKeyWrapper(MasterKeyRing([MASTER]))
    services = RestoreServices(
        objects=FolderObjects(folder / "objects"), wrapper=wrapper, now_ms=now_ms, new_id=lambda: f"id{next(made)}"
    )
    target = folder / "restored"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    began = time.perf_counter()
    done = await restore_journal(services, target, at=None if at is None else UnixMs(at))
    took = time.perf_counter() - began
    faults = list(done.problems)
    keys = SqliteKeyDatabase(target / "keys.db")
    store = SqliteStore(SqliteDatabase(target, codec=await a_codec(keys)))
    await store.open()
    tops: dict[int, int] = {}
    for number in {line.session for line in lines}:
        page = await store.journal.read(key(f"s{number:05}"), after=0, limit=10**6, bytes_max=2**40)
        records = () if page is None else page.records
        tops[number] = len(records)
        for record in records:
            event = record.event
            if not isinstance(event, OutputTextDelta) or event.delta != text_of(number, record.offset):
                faults.append(f"s{number}: offset {record.offset} differs")
    await store.close()
    await keys.close()
    end = at if at is not None else max(line.at for line in lines)
    begun: dict[int, int] = defaultdict(int)
    lost = 0
    for line in lines:
        if line.began <= end:
            begun[line.session] = max(begun[line.session], line.last)
        if line.at <= end and line.last > tops[line.session]:
            lost = max(lost, end - line.at)
    # An append that had begun at the kill may be there without having been acknowledged: four records at most.
    slack = 4 if at is None else 0
    faults += [f"s{number}: {top} records" for number, top in tops.items() if at and top > begun[number] + slack]
    if lost > RPO_MS:
        faults.append(f"as of {at}: acknowledged {lost} ms before, and lost")
    return faults, lost, took, done.bytes


async def main(arguments: argparse.Namespace) -> bool:
    if arguments.child:
        await append_for(Path(arguments.child), arguments.sessions, arguments.seconds, arguments.rate)
    folder = Path(tempfile.mkdtemp(prefix="sessile-bench-", dir=arguments.data or None))
    try:
        words = [f"--{name}={getattr(arguments, name)}" for name in ("sessions", "seconds", "rate")]
        command = [sys.executable, "-m", "bench.recovery.restore", *words, f"--child={folder}"]
        await asyncio.to_thread(subprocess.run, command, cwd=ROOT)
        raw = (folder / "witness").read_bytes()
        whole = len(raw) // LINE.size * LINE.size
        lines = [Acknowledged(*fields) for fields in LINE.iter_unpack(raw[:whole])]
        shutil.rmtree(folder / "data")
        first, last = min(line.at for line in lines), max(line.at for line in lines)
        # Of the first seconds there is no whole copy yet.
        seconds = range(first // 1000 + 2, last // 1000 + 1)
        chosen = random.Random(arguments.seed).sample(seconds, min(arguments.points, len(seconds)))
        faults: list[str] = []
        rpo, rto = 0.0, 0.0
        size = 0
        for at in [*sorted(second * 1000 for second in chosen), None]:
            found, lost, took, size = await check(folder, at, lines)
            faults += found
            rpo, rto = max(rpo, lost), took
        rto_10_gb = rto / size * 10**10
        figures = {
            "sessions": arguments.sessions,
            "records acknowledged": sum(line.last - line.first + 1 for line in lines),
            "restores": len(chosen) + 1,
            "records lost, changed or invented": len(faults),
            "RPO ms, bar 1000": rpo,
            "segments MB": size / 1e6,
            "whole restore s": rto,
            "RTO s per 10 GB, bar 60": rto_10_gb,
        }
        report("restore to any second", figures)
        return is_faultless(faults) and rto_10_gb <= RTO_S_PER_10_GB
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    run_bench(main, __doc__, sessions=200, seconds=20.0, rate=2.0, points=5, seed=1, data="", child="")
