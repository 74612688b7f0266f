"""The SQLite file: its tables, their migrations, and whether it may be used.

`migrations/NNN.sql` takes a file to version NNN. `user_version` is the version that a program has to know to use the
file, `applied_migrations` (from 015 on) how far it was migrated. A file is refused if it requires a version that this
program does not know, or belongs to another application.

Every table of sessions begins with the tenant, and every one but `responses` with (tenant, session), so that no
statement can forget whose rows it touches. `audit` is chained by tenant (sessions/model/audit.py). `api_keys` is read
before a tenant is known. `responses` holds the session of each response; it follows from the events of the same append.
`events` is in the order of arrival with an index beside it: clustered by session, each event of a busy server would
rewrite 2.3 pages of 4 KiB instead of 1.1 (400 sessions at once), which is most of what a commit costs. The other tables
are clustered.

`heads` holds one row that is no session: tenant '' and session '' is the store itself. Its fence is the number of this
opening, its top counts commits, its incarnation is the store's. Every transaction moves it by the same statement that
checks the sessions' fences, so a second process that opened the file in spite of the lock is fenced.

`updated_at` of a head moves with the appends that carry a head patch (a turn begins or ends, a title changes), not with
every delta: it is indexed for listing. `usage.seq` numbers the rows, and `relayed_at` stays NULL until an outbox relay
has passed the row on. Indexes that only purge and sweep need are partial.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import aiosqlite
import structlog

from persistence.sql.migrations import read_migrations, required_version
from persistence.sqlite.library import sqlite3
from sessions.model.errors import Unavailable

log = structlog.get_logger(__name__)

APPLICATION_ID: Final = 0x5365731E
SQLITE_VERSION_MIN: Final = (3, 38, 0)
LAST_WITH_ARCHIVE: Final = "the version before 0.3.0 (revision ec02a8a4, which calls itself 0.2.0)"
MIGRATIONS: Final = Path(__file__).with_name("migrations")


async def migrate(connection: aiosqlite.Connection, path: Path) -> None:
    """Brings the file to the newest version. Raises Unavailable for a newer or a foreign file."""
    migrations = read_migrations(MIGRATIONS)
    version = await _pragma(connection, "user_version")
    application = await _pragma(connection, "application_id")
    ((tables,),) = await connection.execute_fetchall("SELECT count(*) FROM sqlite_schema")
    if tables and application != APPLICATION_ID:
        raise Unavailable(
            "journal_foreign",
            f"{path} is an SQLite database, but not a journal of this server. Choose another data folder.",
            retryable=False,
        )
    if version > len(migrations):
        raise Unavailable(
            "journal_newer",
            f"{path} needs a newer version of this server (schema {version}, this one knows "
            f"{len(migrations)}). Start that version, or choose another data folder.",
            retryable=False,
        )
    applied = max(version, await _applied(connection))
    for number in range(applied, len(migrations)):
        required = required_version(migrations[: number + 1])
        recorded = f"UPDATE applied_migrations SET number = {number + 1};\n" if await _recorded(connection) else ""
        await connection.executescript(
            f"BEGIN IMMEDIATE;\n{migrations[number]}\n{recorded}"
            f"PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {required};\nCOMMIT;"
        )


async def _recorded(connection: aiosqlite.Connection) -> bool:
    rows = await connection.execute_fetchall("SELECT 1 FROM sqlite_schema WHERE name = 'applied_migrations'")
    return bool(list(rows))


async def _applied(connection: aiosqlite.Connection) -> int:
    if not await _recorded(connection):
        return 0
    ((number,),) = await connection.execute_fetchall("SELECT number FROM applied_migrations")
    return int(number)


async def refuse_leftovers(connection: aiosqlite.Connection, path: Path) -> None:
    """Raises Unavailable if a version before 0.3.0 left what only that version can take out: sessions in its archive,
    or notes for its backup. Deletes the leftovers of sessions that it has brought back, and the keys of their
    copies."""
    backed_up = await connection.execute_fetchall("SELECT 1 FROM sqlite_schema WHERE name = 'backup_state'")
    ((archived,),) = await connection.execute_fetchall(
        "SELECT count(*) FROM archived WHERE recalled_at IS NULL AND replaced_at IS NULL AND length(sealed) > 0"
    )
    if archived:
        raise Unavailable(
            "journal_archived",
            f"{archived} sessions of {path} lie in an archive, which this version does not have. Bring them back with"
            f" {LAST_WITH_ARCHIVE}, as docs/upgrading.md says.",
            retryable=False,
        )
    if backed_up:
        raise Unavailable(
            "journal_backed_up",
            f"{path} keeps notes for a backup that this version does not have. Start {LAST_WITH_ARCHIVE} on it once"
            " without its backup, as docs/upgrading.md says; that takes them out.",
            retryable=False,
        )
    await connection.execute_fetchall("DELETE FROM archived")


async def wipe_leftovers(connection: aiosqlite.Connection, path: Path) -> None:
    """Writes the whole file anew if rows that were in the clear are encrypted now (`persistence.at_rest.sweep`), so
    that nothing of them, or of rows deleted before, is left in the file's free space. That takes as long as copying the
    file, once, and as much room; if there is no room it is tried again at the next opening."""
    pending = await connection.execute_fetchall(
        "SELECT count(*) FROM reencryptions WHERE tenant <> '' AND plain > 0 HAVING count(*) = count(done_at)"
    )
    if not [count for (count,) in pending if count]:
        return
    log.info("journal_vacuum_started", path=str(path))
    try:
        await connection.execute_fetchall("PRAGMA temp_store = FILE")
        await connection.execute_fetchall("VACUUM")
        await connection.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
        await connection.execute_fetchall("UPDATE reencryptions SET plain = 0")
    except sqlite3.OperationalError as exc:
        log.warning("journal_vacuum_failed", cause=repr(exc))
    finally:
        await connection.execute_fetchall("PRAGMA temp_store = MEMORY")


async def check_integrity(connection: aiosqlite.Connection, path: Path, *, whole_bytes_max: int) -> None:
    """Checks the file for damage: the whole file up to `whole_bytes_max` bytes, in a larger one only the table of
    heads. Raises Unavailable.

    The whole check reads every page (about a second per GiB from the page cache), which a start should not wait for on
    a large file. A truncated file is noticed at every size.
    """
    page_count = await _pragma(connection, "page_count")
    page_size = await _pragma(connection, "page_size")
    whole = page_count * page_size <= whole_bytes_max
    findings = await connection.execute_fetchall(f"PRAGMA quick_check{'' if whole else '(heads)'}")
    cut_off = await asyncio.to_thread(_is_cut_off, path, page_count * page_size)
    if cut_off or [row[0] for row in findings] != ["ok"]:
        raise damaged(path)


def _is_cut_off(path: Path, bytes_expected: int) -> bool:
    """Returns whether the file is shorter than its header says and no write-ahead file, which would explain that, is
    beside it."""
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size > 0:
        return False
    return path.stat().st_size < bytes_expected


def damaged(path: Path) -> Unavailable:
    return Unavailable(
        "journal_damaged",
        f"The journal {path} is damaged. Nothing was changed. Restore it from a backup, or move the files "
        f"{path.name}* away to start with an empty one.",
        retryable=False,
    )


async def _pragma(connection: aiosqlite.Connection, name: str) -> int:
    ((value,),) = await connection.execute_fetchall(f"PRAGMA {name}")
    return int(value)
