"""A process that spills is killed with -9 at any moment: what it said to be on disk is found again, whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inference.kv.disk import DiskTier
from inference.kv.staging import StagingFolder
from persistence.keys import SqliteKeyStore
from persistence.master_key import read_master_keys
from tests.support.engines.kv import IDENTITY, key, snapshot

SIZE = 300_000
BOUND = 12 * (SIZE + 2000)
ROOT = Path(__file__).resolve().parents[4]

WRITER = """
import asyncio, sys
from pathlib import Path
from inference.kv.disk import DiskTier
from inference.kv.staging import StagingFolder
from persistence.keys import SqliteKeyStore
from persistence.master_key import read_master_keys
from tests.support.engines.kv import IDENTITY, key, snapshot, write_payload

async def main(folder, first):
    keys = SqliteKeyStore(folder / "keys.db", read_master_keys(folder / "master.key", make=True))
    await keys.open()
    staging = StagingFolder(folder / "staging")
    tier = DiskTier(folder / "kv", int(sys.argv[3]), IDENTITY, keys)
    await tier.open()
    for number in range(first, first + 2000):
        manifest, payload = snapshot(key(f"s{number}"), 50, int(sys.argv[4]), salt=str(number))
        path = write_payload(staging.path, manifest, payload)
        assert await tier.put(manifest, path)
        path.unlink()
        print(number, flush=True)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("rounds", [2, pytest.param(4, marks=pytest.mark.slow)])
async def test_the_index_is_complete_after_kill_9(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(9)
    stored: list[int] = []
    (tmp_path / "staging").mkdir()
    for round_ in range(rounds):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(10_000 * round_), str(BOUND), str(SIZE)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            enough = chance.randrange(1, 25)
            for line in writer.stdout:
                stored.append(int(line))
                enough -= 1
                if not enough:
                    os.kill(writer.pid, signal.SIGKILL)  # it goes on meanwhile: in mid-write, as often as not
            assert writer.wait() == -signal.SIGKILL
        keys = SqliteKeyStore(tmp_path / "keys.db", read_master_keys(tmp_path / "master.key"))
        await keys.open()
        tier = DiskTier(tmp_path / "kv", BOUND, IDENTITY, keys)
        await tier.open()
        on_disk = sum(path.stat().st_size for path in (tmp_path / "kv").iterdir())
        assert tier.bytes == on_disk <= BOUND and tier.counters["refused_truncated"] == 0
        newest = stored[-8:]  # the bound keeps at least so many, whatever was written after the last word
        for number in newest:
            (entry,) = tier.of(key(f"s{number}"))
            await tier.fetch(entry, tmp_path / "back")
            assert (tmp_path / "back").read_bytes() == snapshot(key(f"s{number}"), 50, SIZE, salt=str(number))[1]
        await keys.close()
    staging = StagingFolder(tmp_path / "staging")  # what the dead kept in memory is removed by the next
    assert list((tmp_path / "staging").iterdir()) == [staging.path]
    staging.close()
