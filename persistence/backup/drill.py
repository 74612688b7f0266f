"""Restores a backup into a scratch folder and compares it record by record with the journal that it was made of.

A verification says that the objects are those that were written; this says that a journal comes of them, and that it is
the right one. The journal is only read, in short steps, while its server goes on: what changed there since the backup's
moment (sessions deleted, archived, texts retracted, bodies under a newer key) is counted and is no fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.tenant_keys import TenantKeys
from persistence.backup.record_check import PROBLEMS_MAX, load_keys
from persistence.backup.restore import RestoreReport, RestoreServices, restore_journal
from persistence.codec import KeyDestroyed, KeyNotLoaded, decode_record
from persistence.key_database import SqliteKeyDatabase
from persistence.sqlite.library import sqlite3
from sessions.model.errors import Internal
from sessions.model.events import ContentRetracted, Record
from sessions.model.types import SessionId, SessionKey, TenantId, UnixMs

APPEND_MS_MAX: Final = 10_000
"""A record says when its append began; one that began so long before the backup's moment was committed by then."""
_PAGE: Final = 1000
_HEADS: Final = "SELECT tenant, session, top FROM heads WHERE tenant <> '' ORDER BY tenant, session"
_HEAD: Final = "SELECT created_at, deleted_at FROM heads WHERE tenant = ? AND session = ?"
_LIVE_HEADS: Final = (
    "SELECT tenant, session FROM heads"
    " WHERE tenant <> '' AND (tenant, session) > (?, ?) AND deleted_at IS NULL AND created_at < ?"
    " ORDER BY tenant, session LIMIT ?"
)
_EVENTS: Final = (
    'SELECT "offset", key_id, body FROM events WHERE tenant = ? AND session = ? AND "offset" > ?'
    ' ORDER BY "offset" LIMIT ?'
)

Stored = tuple[str, bytes]


class DrillReport(msgspec.Struct, kw_only=True):
    """What was restored and compared, and what is wrong; JSON for scripts."""

    taken_at: UnixMs
    """The backup's moment: what is verified is the state of then."""
    seconds: float
    restored: RestoreReport
    compared: int = 0
    """Records that are the same in both."""
    changed_since: int = 0
    """Records that the journal has no longer, or otherwise, for a reason that stands in it."""
    findings: list[str] = []


async def drill_restore(services: RestoreServices, scratch: Path, live: Path | None) -> DrillReport:
    """`scratch`: an empty folder. `live`: the journal's file; None where it is not on this machine, then the restored
    journal is only read. Raises BadInput, Unavailable."""
    clock = asyncio.get_running_loop()
    began_at = clock.time()
    restored = await restore_journal(services, scratch, at=None)
    report = DrillReport(taken_at=restored.taken_at, seconds=0, restored=restored, findings=list(restored.problems))
    if live is not None:
        keys = SqliteKeyDatabase(scratch / "keys.db")
        await keys.open()
        try:
            codec = SealingCodec(TenantKeys(keys, services.wrapper, now_ms=services.now_ms), writes=False)
            await load_keys(scratch / "journal.db", codec)
            await asyncio.to_thread(compare_journals, scratch / "journal.db", live, codec, report)
        finally:
            await keys.close()
    report.seconds = clock.time() - began_at
    return report


def compare_journals(restored: Path, live: Path, codec: SealingCodec, report: DrillReport) -> None:
    """Adds to the report what differs. Blocking; keys were loaded by `load_keys`."""
    with contextlib.closing(_read_only(restored)) as one, contextlib.closing(_read_only(live)) as other:
        _Comparison(one, other, codec, report).run()


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


class _Comparison:
    def __init__(
        self, restored: sqlite3.Connection, live: sqlite3.Connection, codec: SealingCodec, report: DrillReport
    ) -> None:
        self._restored, self._live, self._codec, self._report = restored, live, codec, report

    def run(self) -> None:
        there = set()
        for tenant, session, top in self._restored.execute(_HEADS):
            key = SessionKey(TenantId(tenant), SessionId(session))
            there.add(key)
            self._session(key, top)
        place, since = ("", ""), self._report.taken_at - APPEND_MS_MAX
        while page := self._live.execute(_LIVE_HEADS, (*place, since, _PAGE)).fetchall():
            place = page[-1]
            for tenant, session in page:
                if SessionKey(TenantId(tenant), SessionId(session)) not in there:
                    self._find(f"{tenant}/{session}: the backup does not have it")

    def _find(self, finding: str) -> None:
        if len(self._report.findings) < PROBLEMS_MAX:
            self._report.findings.append(finding)

    def _session(self, key: SessionKey, top: int) -> None:
        head = self._live.execute(_HEAD, key).fetchone()
        gone = head is None or head[1] is not None or self._is_archived(key)
        live = self._rows(self._live, key, 0)
        ahead = next(live, None)
        for offset, stored in self._rows(self._restored, key, 0):
            while ahead is not None and ahead[0] < offset:
                if not gone:
                    self._find(f"{key.tenant}/{key.session}: offset {ahead[0]} is not in the backup")
                ahead = next(live, None)
            if ahead is None or ahead[0] > offset:
                self._report.changed_since += 1
            else:
                self._record(key, offset, stored, ahead[1], top)
                ahead = next(live, None)
        if ahead is not None and not gone:
            self._tail(key, ahead)

    def _record(self, key: SessionKey, offset: int, restored: Stored, live: Stored, top: int) -> None:
        if restored == live:
            self._report.compared += 1
            return
        try:
            then, now = self._decoded(key, offset, restored), self._decoded(key, offset, live)
        except (KeyDestroyed, KeyNotLoaded):  # destroyed, or a key that was made since
            self._report.changed_since += 1
            return
        except Internal as error:
            self._find(f"{key.tenant}/{key.session}: offset {offset}: {error}")
            return
        if then == now:
            self._report.compared += 1
        elif self._is_retracted_since(key, top):
            self._report.changed_since += 1
        else:
            self._find(f"{key.tenant}/{key.session}: offset {offset} is another record in the backup")

    def _tail(self, key: SessionKey, first: tuple[int, Stored]) -> None:
        """What the journal has behind the end of the backup has to be younger than it."""
        try:
            record = self._decoded(key, *first)
        except (KeyDestroyed, KeyNotLoaded):
            return
        except Internal as error:
            self._find(f"{key.tenant}/{key.session}: offset {first[0]} of the journal: {error}")
            return
        if record.at < self._report.taken_at - APPEND_MS_MAX:
            self._find(f"{key.tenant}/{key.session}: offset {first[0]} and what follows is not in the backup")

    def _is_archived(self, key: SessionKey) -> bool:
        statement = "SELECT 1 FROM archived WHERE tenant = ? AND session = ?"
        return any(each.execute(statement, key).fetchone() for each in (self._live, self._restored))

    def _is_retracted_since(self, key: SessionKey, top: int) -> bool:
        """A text is scrubbed where it stands by a retraction, which is in the log itself."""
        for offset, stored in self._rows(self._live, key, top):
            try:
                if isinstance(self._decoded(key, offset, stored).event, ContentRetracted):
                    return True
            except (KeyDestroyed, KeyNotLoaded):
                return True
            except Internal as error:
                self._find(f"{key.tenant}/{key.session}: offset {offset} of the journal: {error}")
        return False

    def _decoded(self, key: SessionKey, offset: int, stored: Stored) -> Record:
        return decode_record(offset, self._codec.decode(key, offset, *stored))

    @staticmethod
    def _rows(connection: sqlite3.Connection, key: SessionKey, after: int) -> Iterator[tuple[int, Stored]]:
        """Page by page, each a read transaction of its own: a long one keeps the server's WAL from ending."""
        while page := connection.execute(_EVENTS, (*key, after, _PAGE)).fetchall():
            for offset, key_id, body in page:
                yield offset, (key_id, body)
            after = page[-1][0]


def write_metrics(path: Path, report: DrillReport, now_ms: UnixMs) -> None:
    """What alerts look at, as a file for the textfile collector of Prometheus' node exporter. Blocking."""
    values: dict[str, Any] = {
        "sessile_backup_verified_timestamp_seconds": now_ms / 1000,
        "sessile_backup_verified_state_timestamp_seconds": report.taken_at / 1000,
        "sessile_backup_verified_records": report.restored.records,
        "sessile_backup_verified_findings": len(report.findings),
        "sessile_backup_verify_duration_seconds": report.seconds,
    }
    part = path.with_name(f"{path.name}.part")  # the collector reads *.prom alone
    part.write_text("".join(f"# TYPE {name} gauge\n{name} {value!r}\n" for name, value in values.items()))
    os.replace(part, path)
