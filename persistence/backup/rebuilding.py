"""Puts the rows of segments into an SQLite file that is made anew, and makes a journal of it that servers go on with.

Blocking; one thread. What the journal's own code would do in a year is done here in seconds, so the file is written
without syncs and is worth nothing until `finish` has returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from persistence.backup.row_tables import DELETE, EVENTS, EVENTS_LEFT, HEADS, PUT, TABLES
from persistence.backup.segments import DamagedBackup, OpenedPart
from persistence.sql.migrations import read_migrations
from persistence.sqlite.library import sqlite3
from persistence.sqlite.schema import MIGRATIONS
from persistence.validation import FENCES_PER_INCARNATION
from sessions.model.journal_types import restored_epoch
from sessions.model.types import SessionKey

_OF_SESSION: Final = ("events", "commands", "responses", "reviews", "shares", "snapshots", "archived")
_AUDIT_TRIGGERS: Final = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'audit'"
_TOPS: Final = """
UPDATE heads SET top = max(
    top,
    coalesce((SELECT max("offset") FROM events e WHERE e.tenant = heads.tenant AND e.session = heads.session), 0),
    coalesce((SELECT max(a.top) FROM archived a WHERE a.tenant = heads.tenant AND a.session = heads.session
        AND a.replaced_at IS NULL), 0))
WHERE tenant <> ''
"""


class Counts(NamedTuple):
    sessions: int
    events: int


def columns_at(version: int) -> dict[str, tuple[str, ...]]:
    """The columns of every table at a version of the schema. Raises DamagedBackup for one that is newer than this."""
    migrations = read_migrations(MIGRATIONS)
    if version > len(migrations):
        raise DamagedBackup(f"it was written by a newer version of this server (schema {version})")
    with sqlite3.connect(":memory:") as connection:
        for text in migrations[:version]:
            connection.executescript(text)
        found = {
            spec.name: tuple(row[1] for row in connection.execute(f"PRAGMA table_info({spec.name})")) for spec in TABLES
        }
    connection.close()
    return found


class Rebuilding:
    """On a journal's file that `SqliteDatabase` has made and closed again."""

    def __init__(self, path: Path, only: SessionKey | None = None) -> None:
        """`only`: nothing of any other session."""
        self._connection = connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._only = None if only is None else tuple(only)
        self._columns: dict[int, dict[str, tuple[str, ...]]] = {}
        for pragma in ("journal_mode = MEMORY", "synchronous = OFF", "cache_size = -262144", "temp_store = MEMORY"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        self._triggers = connection.execute(_AUDIT_TRIGGERS).fetchall()
        for name, _ in self._triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM audit_secret")
        connection.execute("BEGIN")

    def apply(self, schema: int, parts: Iterable[OpenedPart]) -> int:
        """The rows of one segment; how many. Raises DamagedBackup."""
        puts: dict[int, list[Sequence[Any]]] = defaultdict(list)
        count = 0
        for part in parts:
            if self._only is not None and part.subject != (self._only[0], f"s/{self._only[1]}"):
                continue
            count += len(part.rows)
            for table, what, values in part.rows:
                if not 0 <= table < len(TABLES):
                    raise DamagedBackup(f"it has rows of table {table}, which this version does not know")
                if what == PUT:
                    puts[table].append(values)
                elif what == EVENTS_LEFT:
                    self._events_left(*values)
                elif what == DELETE:
                    self._delete(table, values)
        for table, rows in puts.items():
            self._put(schema, table, rows)
        return count

    def finish(self, incarnation: str, new_id: Callable[[], str]) -> Counts:
        """What stands there is a journal now: every fence is another, and every session begins a new epoch."""
        connection = self._connection
        for table in _OF_SESSION:
            connection.execute(
                f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM heads h"
                f" WHERE h.tenant = {table}.tenant AND h.session = {table}.session)"
            )
        connection.execute(_TOPS)
        for tenant, session in connection.execute("SELECT tenant, session FROM heads WHERE tenant <> ''").fetchall():
            connection.execute(
                "UPDATE heads SET fence = fence + ?, epoch = ?, incarnation = ?, owner = ''"
                " WHERE tenant = ? AND session = ?",
                (FENCES_PER_INCARNATION, restored_epoch(new_id()), incarnation, tenant, session),
            )
        for _, text in self._triggers:
            connection.execute(text)
        connection.execute("UPDATE heads SET incarnation = ? WHERE tenant = ''", (incarnation,))
        ((sessions,),) = connection.execute("SELECT count(*) FROM heads WHERE tenant <> ''")
        ((events,),) = connection.execute("SELECT count(*) FROM events")
        connection.execute("COMMIT")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return Counts(sessions, events)

    def close(self) -> None:
        self._connection.close()

    def _put(self, schema: int, table: int, rows: Sequence[Sequence[Any]]) -> None:
        if table == EVENTS:
            columns: tuple[str, ...] = ("tenant", "session", '"offset"', "key_id", "body")
        else:
            if schema not in self._columns:
                self._columns[schema] = columns_at(schema)
            columns = tuple(f'"{name}"' for name in self._columns[schema][TABLES[table].name])
        if any(len(row) != len(columns) for row in rows):
            raise DamagedBackup(f"it has rows of {TABLES[table].name} with another number of columns")
        self._connection.executemany(
            f"INSERT OR REPLACE INTO {TABLES[table].name} ({', '.join(columns)}) VALUES"
            f" ({', '.join('?' * len(columns))})",
            rows,
        )

    def _events_left(self, tenant: str, session: str, first: int | None, last: int | None) -> None:
        self._connection.execute(
            'DELETE FROM events WHERE tenant = ? AND session = ? AND (? IS NULL OR "offset" NOT BETWEEN ? AND ?)',
            (tenant, session, first, first, last),
        )

    def _delete(self, table: int, key: Sequence[Any]) -> None:
        spec = TABLES[table]
        if table == HEADS:
            for name in _OF_SESSION:
                self._connection.execute(f"DELETE FROM {name} WHERE tenant = ? AND session = ?", key)
        where = " AND ".join(f"{column} = ?" for column in spec.key)
        self._connection.execute(f"DELETE FROM {spec.name} WHERE {where}", key)
