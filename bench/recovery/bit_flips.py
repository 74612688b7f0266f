"""Flips one bit of a backup at a time and asks `backup verify`: is it found, and in the object that it was in?

    python -m bench.recovery.bit_flips --flips 1000

Half of the bits are chosen among all bits, half in an object chosen first, so that small objects get theirs. Bar: all.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from bench.support import is_faultless, report, run_bench
from tests.support.stores.backups import BackupBed
from tests.support.stores.journals import a_log, an_append


async def main(arguments: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
        bed = BackupBed(Path(folder))
        async with bed.opened() as (store, shipper):
            for number in range(arguments.sessions):
                head = await a_log(store.journal, f"s{number}", 5, tenant=f"tenant{number % 3}")
                if number % 4 == 0:
                    await bed.ship(shipper)
                await store.journal.append(an_append(head, 5))
            await bed.ship(shipper)
        objects = sorted(path for path in bed.path.rglob("*") if path.is_file())
        sizes = [path.stat().st_size for path in objects]
        chance = random.Random(arguments.seed)
        faults = (await bed.verify()).findings
        for number in range(arguments.flips):
            path = chance.choices(objects, sizes if number % 2 else None)[0]
            whole = path.read_bytes()
            place = chance.randrange(len(whole) * 8)
            damaged = bytearray(whole)
            damaged[place // 8] ^= 1 << place % 8
            path.write_bytes(damaged)
            findings = (await bed.verify()).findings
            path.write_bytes(whole)
            name = path.relative_to(bed.path).as_posix()
            if not any(finding.startswith(name) for finding in findings):
                faults.append(f"bit {place} of {name}: {findings[:2]}")
        figures = {
            "objects": len(objects),
            "bytes": sum(sizes),
            "bits flipped": arguments.flips,
            "not found": len(faults),
        }
    report("bit flips in a backup", figures)
    return is_faultless(faults)


if __name__ == "__main__":
    run_bench(main, __doc__, flips=1000, sessions=24, seed=1)
