"""Makes a journal of a backup, as it was at a time; or brings one session back into the journal that there is.

A whole restore goes into a folder that has no journal: rows of the last whole copy and of every segment behind it, in
their order, each after its hash and its seal; then every record is read once as a server would read it. The journal
appears in its folder at the end, whole or not at all. It is another incarnation: no fence of before is good, and
readers get a reset (`journal_restored`). What was destroyed stays so: parts without a key are left out and counted.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.tenant_keys import TenantKeys
from persistence.at_rest.wrapping import KeyWrapper
from persistence.backup.chain_reader import ChainReader, ReadSegment, Stretch
from persistence.backup.rebuilding import Rebuilding
from persistence.backup.record_check import check_records, load_keys
from persistence.backup.scope_keys import BackupKeys, session_scope
from persistence.backup.segments import DamagedBackup, OpenedPart, open_part, part_bytes
from persistence.data_dir import FolderLock, Marker
from persistence.key_database import KeyDatabase, SqliteKeyDatabase
from persistence.objects.object_store import ObjectStore
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.library import sqlite3
from persistence.validation import FENCES_PER_INCARNATION
from persistence.write_batch import JobWrite
from sessions.model.errors import BadInput, Unavailable
from sessions.model.journal_types import restored_epoch
from sessions.model.types import SessionKey, UnixMs

log = structlog.get_logger(__name__)

PART_FOLDER: Final = "restore.part"
_TABLES_OF_SESSION: Final = ("events", "commands", "responses", "reviews", "shares", "snapshots", "archived", "heads")


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore has done; JSON for scripts."""

    chain: str
    taken_at: UnixMs
    segments: int
    bytes: int
    rows: int
    sessions: int
    records: int
    destroyed: int
    """Parts whose keys were destroyed: purged sessions, erased users."""
    unreadable: int
    problems: tuple[str, ...]


class RestoreServices(msgspec.Struct, frozen=True, kw_only=True):
    objects: ObjectStore
    wrapper: KeyWrapper
    """What wraps the tenants' keys; it is in no backup."""
    now_ms: Callable[[], UnixMs]
    new_id: Callable[[], str]


async def restore_journal(services: RestoreServices, folder: Path, *, at: UnixMs | None) -> RestoreReport:
    """Raises BadInput, Unavailable; then there is no journal in the folder. A `keys.db` that is there already stays:
    what it says is destroyed is so."""
    if (folder / "journal.db").exists():
        raise BadInput(
            "journal_exists",
            f"{folder} has a journal already. Restore into another folder with --data, look at it, and put it in the"
            " old one's place.",
            param="data",
        )
    lock = FolderLock(folder)
    lock.take()
    work = folder / PART_FOLDER
    try:
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
        keys = SqliteKeyDatabase(folder / "keys.db")
        await keys.open()
        try:
            report, incarnation = await _restore(services, keys, work, at=at, only=None)
        finally:
            await keys.close()
        (work / "journal.db").replace(folder / "journal.db")
        _write_marker(folder, incarnation)
        return report
    finally:
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
        lock.release()


async def restore_session(
    services: RestoreServices, database: SqliteDatabase, keys: KeyDatabase, key: SessionKey, *, at: UnixMs | None
) -> RestoreReport:
    """Puts one session as it was into an open journal, in the place of what there is of it. Raises BadInput where the
    backup does not have it, Unavailable."""
    work = database.path.with_name(PART_FOLDER)
    try:
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
        report, _ = await _restore(services, keys, work, at=at, only=key)
        if not report.sessions:
            raise BadInput(
                "session_not_in_backup",
                "The backup has no such session at that time, or its key is destroyed.",
                param="session",
            )
        rows = await asyncio.to_thread(_rows_of, work / "journal.db", key)
        unique, now = services.new_id(), services.now_ms()
        await database.submit(JobWrite(key, lambda connection: _put_session(connection, key, rows, unique, now)))
        return report
    finally:
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)


async def _restore(
    services: RestoreServices, keys: KeyDatabase, work: Path, *, at: UnixMs | None, only: SessionKey | None
) -> tuple[RestoreReport, str]:
    tenants = TenantKeys(keys, services.wrapper, now_ms=services.now_ms)
    backup_keys = BackupKeys(services.objects, keys, tenants)
    incarnation = services.new_id()
    try:
        await backup_keys.load()
        await backup_keys.import_pages()
        key_ids = None if only is None else await backup_keys.key_ids(session_scope(*only))
        reader = ChainReader(services.objects)
        stretch = await reader.stretch(at)
        log.info("restore_started", chain=stretch.chain, segments=stretch.last - stretch.first + 1)
        codec = SealingCodec(tenants, writes=False)
        empty = SqliteDatabase(work, codec=codec)
        await empty.open()
        await empty.close()
        rebuilding = Rebuilding(work / "journal.db", only)
        try:
            rows, size, destroyed = await _apply(reader, stretch, backup_keys, rebuilding, key_ids)
            await asyncio.to_thread(rebuilding.finish, incarnation, services.new_id)
        finally:
            rebuilding.close()
    except DamagedBackup as damaged:
        raise Unavailable(
            "backup_damaged",
            f"The backup is damaged. {damaged}. Nothing was restored; another time with --at may need other objects.",
            retryable=False,
        ) from damaged
    await load_keys(work / "journal.db", codec)
    check = await asyncio.to_thread(check_records, work / "journal.db", codec)
    report = RestoreReport(
        chain=stretch.chain,
        taken_at=stretch.taken_at,
        segments=stretch.last - stretch.first + 1,
        bytes=size,
        rows=rows,
        sessions=check.sessions,
        records=check.records,
        destroyed=destroyed,
        unreadable=check.unreadable,
        problems=check.problems,
    )
    return report, incarnation


async def _apply(
    reader: ChainReader, stretch: Stretch, keys: BackupKeys, rebuilding: Rebuilding, key_ids: set[str] | None
) -> tuple[int, int, int]:
    """(rows, bytes, parts without a key). `key_ids`: the keys of the only parts that are looked at."""
    rows = size = destroyed = 0
    async for segment in reader.segments(stretch):
        size += len(segment.data)
        places = []
        for index, part in enumerate(segment.header.parts):
            if key_ids is not None and (part.tenant or part.key_id not in key_ids):
                continue
            cipher = await keys.cipher(part.tenant, part.key_id, part.page)
            if cipher is None:
                destroyed += 1
            else:
                places.append((index, cipher))
        if places:
            rows += await asyncio.to_thread(_apply_segment, segment, places, rebuilding)
    return rows, size, destroyed


def _apply_segment(segment: ReadSegment, places: Sequence[tuple[int, Any]], rebuilding: Rebuilding) -> int:
    try:
        stored = part_bytes(segment.data, segment.header, segment.begin)
        parts: list[OpenedPart] = [open_part(segment.header, index, stored[index], cipher) for index, cipher in places]
        return rebuilding.apply(segment.header.schema, parts)
    except DamagedBackup as damaged:
        raise DamagedBackup(f"{segment.name}: {damaged}") from damaged


def _write_marker(folder: Path, incarnation: str) -> None:
    """The restored journal begins as an incarnation of its own, and goes on as it."""
    marker = Marker(folder / "journal.marker")
    marker.open()
    marker.write(incarnation, 0)
    marker.close()


def _rows_of(path: Path, key: SessionKey) -> dict[str, tuple[list[str], list[tuple[Any, ...]]]]:
    """(columns, rows) of a session by table. Blocking."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        found = {}
        for table in _TABLES_OF_SESSION:
            cursor = connection.execute(f"SELECT * FROM {table} WHERE tenant = ? AND session = ?", key)
            found[table] = ([column[0] for column in cursor.description], cursor.fetchall())
        return found
    finally:
        connection.close()


def _put_session(
    connection: sqlite3.Connection,
    key: SessionKey,
    rows: dict[str, tuple[list[str], list[tuple[Any, ...]]]],
    unique: str,
    now: UnixMs,
) -> None:
    ((fence,),) = connection.execute(
        "SELECT coalesce(max(fence), 0) FROM heads WHERE tenant = ? AND session = ?", key
    ).fetchall()
    ((incarnation,),) = connection.execute(
        "SELECT incarnation FROM heads WHERE tenant = '' AND session = ''"
    ).fetchall()
    for table, (columns, values) in rows.items():
        if table == "archived":  # its object goes when no backup leads to it any more
            connection.execute("UPDATE archived SET replaced_at = ? WHERE tenant = ? AND session = ?", (now, *key))
        elif table != "heads":  # that would be noted as a purge, whose keys are destroyed
            connection.execute(f"DELETE FROM {table} WHERE tenant = ? AND session = ?", key)
        names, marks = ", ".join(f'"{name}"' for name in columns), ", ".join("?" * len(columns))
        connection.executemany(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", values)
    connection.execute(
        "UPDATE heads SET fence = max(fence, ?) + ?, epoch = ?, incarnation = ?, deleted_at = NULL"
        " WHERE tenant = ? AND session = ?",
        (fence, FENCES_PER_INCARNATION, restored_epoch(unique), incarnation, *key),
    )
