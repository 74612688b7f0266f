"""docs/backup.md's two ways to copy a PostgreSQL journal: a server's conversations go on while a backup is made, the
database is lost, and another server goes on with what was restored to a point in time, in a folder of its own."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from testbed.postgres_server import PostgresServer
from testbed.replicated_server import Talks, go_on, logs_of, replicated, resumed_at
from transport.cli.settings import Settings

DEBIAN: Final = Path(__file__).resolve().parents[2] / "dist" / "backups" / "usr"
CONFIGURATION: Final = """
[global]
repo1-path={folder}/copies
log-path={folder}
lock-path={folder}
log-level-file=off
start-fast=y

[sessile]
pg1-path={folder}/data
pg1-socket-path={folder}
pg1-user=postgres
"""


class PgBackRest:
    """A database that pgBackRest copies; both are Debian's."""

    def __init__(self) -> None:
        self._binaries = next(DEBIAN.glob("lib/postgresql/*/bin"), DEBIAN)
        if self._binaries == DEBIAN:
            pytest.fail("pgBackRest is missing: run deploy/ensure_backups.sh, which says why")
        self.server = PostgresServer("-c", "archive_mode=on", binaries=self._binaries)
        configuration = self.server.folder / "pgbackrest.conf"
        configuration.write_text(CONFIGURATION.format(folder=self.server.folder))
        self._command = (str(DEBIAN / "bin" / "pgbackrest"), f"--config={configuration}", "--stanza=sessile")
        self.archive_command = f"{' '.join(self._command)} archive-push %p"

    def set_up(self) -> None:
        self.server.run(*self._command, "stanza-create")
        self.server.run(*self._command, "check")

    def back_up(self) -> None:
        self.server.run(*self._command, "backup")

    def restore(self, at: str) -> PostgresServer:
        restored = PostgresServer("-c", "archive_mode=off", binaries=self._binaries, empty=True)
        words = ("--type=time", f"--target={at}", "--target-action=promote", f"--pg1-path={restored.data}")
        self.server.run(*self._command, *words, "restore")
        return restored


class OwnTools:
    """A database that is copied with what PostgreSQL ships: pg_basebackup and an archive of the write-ahead log."""

    def __init__(self) -> None:
        self.server = PostgresServer("-c", "archive_mode=on")
        self._copies = self.server.folder / "copies"
        wal = self._copies / "wal"
        self.server.run("mkdir", str(self._copies), str(wal))
        self.archive_command = f"test ! -f {wal}/%f && cp %p {wal}/%f.part && mv {wal}/%f.part {wal}/%f"

    def set_up(self) -> None:
        pass

    def back_up(self) -> None:
        base = str(self._copies / "base")
        self.server.run_own("pg_basebackup", "-d", self.server.dsn, "-D", base, "--checkpoint=fast")

    def restore(self, at: str) -> PostgresServer:
        target = ("-c", f"recovery_target_time={at}", "-c", "recovery_target_action=promote")
        restore_command = ("-c", f"restore_command=cp {self._copies}/wal/%f %p")
        restored = PostgresServer("-c", "archive_mode=off", *restore_command, *target, empty=True)
        restored.run("cp", "-a", f"{self._copies}/base/.", str(restored.data))
        restored.run("touch", str(restored.data / "recovery.signal"))
        return restored


@pytest.fixture
def own() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s") as folder:
        yield Path(folder)


async def second_of(connection: asyncpg.Connection) -> datetime:
    """Returns the database's time, to the second."""
    now: datetime = await connection.fetchval("SELECT date_trunc('second', now())")
    return now


@pytest.mark.parametrize("tool", [PgBackRest, OwnTools])
async def test_a_restored_database_has_what_was_acknowledged_and_readers_are_reset(
    tmp_path: Path, own: Path, tool: type[PgBackRest] | type[OwnTools]
) -> None:
    copies = tool()
    database = copies.server
    database.start()
    connection = await asyncpg.connect(database.dsn)
    quoted = copies.archive_command.replace("'", "''")
    await connection.execute(f"ALTER SYSTEM SET archive_command = '{quoted}'")
    await connection.execute("SELECT pg_reload_conf()")
    await asyncio.to_thread(copies.set_up)
    lost, data = tmp_path / "lost", tmp_path / "data"
    with replicated(lost, own, "--journal", database.dsn) as server:
        talks = Talks(server.url, 4)
        await talks.each_had(2)
        await asyncio.to_thread(copies.back_up)
        backed_up_at = await second_of(connection)
        while await second_of(connection) == backed_up_at:  # pgBackRest knows when a backup ended to the second
            await talks.each_had(min(talks.num_turns) + 1)
        await talks.each_had(min(talks.num_turns) + 2)
        certain = dict(talks.offsets)
        at = str(await connection.fetchval("SELECT now()"))
        await talks.each_had(max(talks.num_turns) + 2)
        await everything_archived(connection)
        server.process.kill()
        await talks.ended()
    await connection.close()
    sessions = list(talks.offsets)
    before = await logs_of(settings_of(lost, database), sessions)
    database.kill()

    restored = await asyncio.to_thread(copies.restore, at)
    restored.start()
    data.mkdir()
    shutil.copy(lost / "master.key", data)
    after = await logs_of(settings_of(data, restored), sessions)
    for session, (_, offset) in talks.offsets.items():
        assert len(before[session]) >= offset, "what a reader has seen is durable"
        assert after[session] == before[session][: len(after[session])]
        assert certain[session][1] <= len(after[session]) < offset, "all until that moment, and nothing of later"
    with replicated(data, own, "--journal", restored.dsn) as server:
        for session, (epoch, offset) in talks.offsets.items():
            resumed = await resumed_at(server.url, session, epoch, offset)
            assert resumed["mode"] == "reset" and resumed["reason"] in ("offset_ahead", "epoch_changed")
            await go_on(server.url, session)
            resumed = await resumed_at(server.url, session, epoch, len(after[session]))
            assert (resumed["mode"], resumed["reason"]) == ("reset", "epoch_changed")
            assert resumed["epoch"] != epoch
    restored.remove()
    database.remove()


def settings_of(data: Path, database: PostgresServer) -> Settings:
    return Settings(data=str(data), journal=database.dsn)


async def everything_archived(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Returns when the archive has all that was committed until now."""
    last = await connection.fetchval("SELECT pg_walfile_name(pg_switch_wal())")
    async with asyncio.timeout(60):
        while (await connection.fetchval("SELECT last_archived_wal FROM pg_stat_archiver") or "") < last:
            pass
