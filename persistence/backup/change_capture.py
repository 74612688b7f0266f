"""What changed in an SQLite journal since the last segment, read as one state on a connection of its own.

`ChangeCapture.take` begins a read transaction, so that all rows of a segment are of one commit, and never waits for a
writer nor holds one up. What it returns is confirmed by `Taken.confirm` in a write of the journal's, once the segment
is stored; a process that ends in between ships the same rows again, which changes nothing.

While a whole copy is made (the base), its rows come beside the changes, a stretch at a time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from persistence.backup.row_tables import (
    API_KEYS,
    DELETE,
    ERASURES,
    EVENTS,
    EVENTS_LEFT,
    HEADS,
    PUT,
    SERVER,
    TABLES,
    USAGE,
    capture_statements,
    release_statements,
)
from persistence.backup.scope_keys import KeyScope, session_scope, user_scope
from persistence.backup.segments import Row
from persistence.sqlite.library import sqlite3
from sessions.model.types import UnixMs

CHANGES_MAX: Final = 20_000
EVENTS_MAX: Final = 20_000
EVENT_BYTES_MAX: Final = 16 * 2**20
BASE_ROWS: Final = 4_000
BASE_BYTES: Final = 2 * 2**20


class BackupState(msgspec.Struct, frozen=True):
    """The one row of `backup_state`: how far the chain is."""

    incarnation: str
    chain: str
    number: int
    """Of the last segment; 0: there is none."""
    hash: bytes
    watermark: int
    """Events of a higher `rowid` are not shipped."""
    lowest: int
    """What the highest `rowid` of events has been at its lowest since the last segment; NONE_DELETED: not looked at."""
    base_began: int
    """In which segment the whole copy began that is being made; 0: none is."""
    base_place: str
    """JSON: the table it has come to, and the key there that was the last."""
    restore_from: int
    based_at: UnixMs


_COLUMNS: Final = ", ".join(each.name for each in msgspec.structs.fields(BackupState))
_READ: Final = f"SELECT {_COLUMNS} FROM backup_state"
_WRITE: Final = (
    f"INSERT OR REPLACE INTO backup_state (one, {_COLUMNS}) VALUES (1, {', '.join('?' * len(_COLUMNS.split(', ')))})"
)
BASE_BEGIN: Final = "[0, null]"
NONE_DELETED: Final = 2**62


class Taken(msgspec.Struct):
    """What a segment is made of."""

    state: BackupState
    """As it was when this was read."""
    rows: dict[KeyScope, list[Row]]
    """Of a scope, or of a tenant where the name is ""."""
    destroyed: list[KeyScope]
    """Whose keys are to be destroyed before the segment is stored."""
    changes_to: int
    watermark: int
    base_began: int
    base_place: str
    based: bool
    """The base ends here."""
    complete: bool
    schema: int

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.rows.values()))

    def confirm(self, state: BackupState) -> Callable[[sqlite3.Connection], None]:
        """The write that remembers that the segment is stored."""

        def step(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM backup_changes WHERE seq <= ?", (self.changes_to,))
            ((lowest,),) = connection.execute("SELECT lowest FROM backup_state").fetchall()
            watermark = min(state.watermark, lowest)  # a rowid above may have come again: such rows are shipped twice
            write_state(connection, msgspec.structs.replace(state, watermark=watermark, lowest=NONE_DELETED))

        return step


def read_state(connection: sqlite3.Connection) -> BackupState | None:
    rows = connection.execute(_READ).fetchall()
    return BackupState(*rows[0]) if rows else None


def write_state(connection: sqlite3.Connection, state: BackupState) -> None:
    connection.execute(_WRITE, msgspec.structs.astuple(state))


def enable_capture(connection: sqlite3.Connection) -> BackupState | None:
    """Has changes noted from this transaction on; what is known of the chain."""
    for statement in capture_statements():
        connection.execute(statement)
    return read_state(connection)


def disable_capture(connection: sqlite3.Connection) -> None:
    """Notes nothing any more. A backup that is begun again is a new chain."""
    for statement in release_statements():
        connection.execute(statement)


class ChangeCapture:
    """A connection that only reads. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._columns: dict[int, tuple[str, ...]] = {}

    def open(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=2.0)
        connection.execute("PRAGMA query_only = ON")
        self._connection = connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def take(self) -> Taken | None:
        """None where nothing is to be shipped."""
        assert self._connection is not None
        connection = self._connection
        connection.execute("BEGIN")
        try:
            return _Reading(connection, self._columns).take()
        finally:
            connection.execute("ROLLBACK")


class _Reading:
    """One state of the journal."""

    def __init__(self, connection: sqlite3.Connection, columns: dict[int, tuple[str, ...]]) -> None:
        self._connection = connection
        self._columns = columns
        self._living: dict[tuple[str, str], bool] = {}
        self._rows: dict[KeyScope, list[Row]] = defaultdict(list)
        self._destroyed: dict[KeyScope, None] = {}

    def take(self) -> Taken | None:
        state = read_state(self._connection)
        assert state is not None, "the chain was not begun"
        changes = self._connection.execute(
            "SELECT seq, tbl, a, b, c, d FROM backup_changes ORDER BY seq LIMIT ?", (CHANGES_MAX,)
        ).fetchall()
        for table, key in dict.fromkeys((row[1], row[2:]) for row in changes):
            self._changed(table, key)
        known = min(state.watermark, state.lowest)
        watermark, all_events = self._new_events(known)
        began, place, based = state.base_began, state.base_place, False
        if began and all_events and len(changes) < CHANGES_MAX:
            place, based = self._base(place)
        if not changes and watermark == known and not began:
            return None
        ((schema,),) = self._connection.execute("SELECT number FROM applied_migrations")
        return Taken(
            state=state,
            rows=dict(self._rows),
            destroyed=list(self._destroyed),
            changes_to=changes[-1][0] if changes else 0,
            watermark=watermark,
            base_began=began,
            base_place=place,
            based=based,
            complete=all_events and len(changes) < CHANGES_MAX,
            schema=schema,
        )

    # -- changes ------------------------------------------------------------------------------------------------------

    def _changed(self, table: int, noted: Sequence[Any]) -> None:
        spec = TABLES[table]
        if table == EVENTS and noted[2] is None:
            return self._events_deleted(*noted[:2])
        if table == HEADS and noted[2] is not None:
            return self._purged(*noted[:2])
        key = noted[: len(spec.key)]
        where = " AND ".join(f"{column} = ?" for column in spec.key)
        found = self._connection.execute(f"SELECT * FROM {spec.name} WHERE {where}", key).fetchall()
        if found:
            self._put(table, found[0])
        else:
            self._deleted(table, key)

    def _events_deleted(self, tenant: str, session: str) -> None:
        if not self._lives(tenant, session):
            return  # it goes with its session
        ((first, last),) = self._connection.execute(
            'SELECT min("offset"), max("offset") FROM events WHERE tenant = ? AND session = ?', (tenant, session)
        )
        # In front of the events of the same state, some of which may have come back.
        self._rows[session_scope(tenant, session)].insert(0, (EVENTS, EVENTS_LEFT, (tenant, session, first, last)))

    def _deleted(self, table: int, key: Sequence[Any]) -> None:
        spec = TABLES[table]
        if table == ERASURES:  # it is done: its row has another name by now
            self._destroyed[user_scope(key[0], key[1])] = None
        elif spec.owner == "user" and table != API_KEYS:
            self._rows[user_scope(key[0], key[1])].append((table, DELETE, key))
        elif table == API_KEYS:
            self._rows[KeyScope(SERVER, "")].append((table, DELETE, key))
        elif spec.owner == "session" and "session" in spec.key:
            if self._lives(key[0], key[1]):
                self._rows[session_scope(key[0], key[1])].append((table, DELETE, key))
        else:
            tenant = key[0] if spec.key[0] == "tenant" else SERVER
            self._rows[KeyScope(tenant, "")].append((table, DELETE, key))

    def _purged(self, tenant: str, session: str) -> None:
        """A session of that name may have begun since. Its key goes; usage outlives its session, under another one."""
        self._rows[KeyScope(tenant, "")].append((HEADS, DELETE, (tenant, session)))
        self._destroyed[session_scope(tenant, session)] = None
        for row in self._connection.execute(
            "SELECT * FROM usage WHERE tenant = ? AND session = ?", (tenant, session)
        ).fetchall():
            self._put(USAGE, row)

    def _put(self, table: int, row: Sequence[Any]) -> None:
        scope = self._scope_of(table, row)
        if scope is not None:
            self._rows[scope].append((table, PUT, row))

    def _scope_of(self, table: int, row: Sequence[Any]) -> KeyScope | None:
        """None: it goes with a session that is purged."""
        spec = TABLES[table]
        if spec.owner == "server":
            return KeyScope(SERVER, "")
        value = dict(zip(self._columns_of(table), row, strict=True))
        tenant = value["tenant"]
        if spec.owner == "session":
            if self._lives(tenant, value["session"]):
                return session_scope(tenant, value["session"])
            if table != USAGE:
                return None
            user = value["principal_user"]
            return KeyScope(tenant, "") if user is None else user_scope(tenant, user)
        if spec.owner == "user" and value["end_user"] is not None and value.get("done_at") is None:
            return user_scope(tenant, value["end_user"])
        return KeyScope(tenant, "")

    def _columns_of(self, table: int) -> tuple[str, ...]:
        if table not in self._columns:
            found = self._connection.execute(f"PRAGMA table_info({TABLES[table].name})").fetchall()
            self._columns[table] = tuple(row[1] for row in found)
        return self._columns[table]

    def _lives(self, tenant: str, session: str) -> bool:
        key = (tenant, session)
        if key not in self._living:
            found = self._connection.execute("SELECT 1 FROM heads WHERE tenant = ? AND session = ?", key).fetchall()
            self._living[key] = bool(found)
        return self._living[key]

    # -- events and the base ------------------------------------------------------------------------------------------

    def _new_events(self, watermark: int) -> tuple[int, bool]:
        """The new watermark, and whether these are all."""
        size = 0
        rows = self._connection.execute(
            'SELECT rowid, tenant, session, "offset", key_id, body FROM events WHERE rowid > ? ORDER BY rowid',
            (watermark,),
        )
        for count, (rowid, *event) in enumerate(rows):
            if count == EVENTS_MAX or size > EVENT_BYTES_MAX:
                return watermark, False
            self._put_event(event)
            watermark = rowid
            size += len(event[4])
        return watermark, True

    def _put_event(self, event: Sequence[Any]) -> None:
        tenant, session, offset, key_id, body = event
        if self._lives(tenant, session):
            self._rows[session_scope(tenant, session)].append((EVENTS, PUT, (tenant, session, offset, key_id, body)))

    def _base(self, text: str) -> tuple[str, bool]:
        """A stretch of the whole copy: the place that it came to, and whether it is done."""
        table, after = json.loads(text)
        left, size = BASE_ROWS, 0
        while table < len(TABLES) and left > 0 and size < BASE_BYTES:
            place = after
            for *place_now, row in self._stretch(table, after, left):
                place = place_now
                left -= 1
                size += sum(len(value) for value in row if isinstance(value, bytes | str))
                if table == EVENTS:
                    self._put_event(row)
                elif not (table == HEADS and row[0] == ""):
                    self._put(table, row)
                if size >= BASE_BYTES:
                    break
            else:
                if left > 0:
                    table, after = table + 1, None
                    continue
            after = place
        return json.dumps([table, after]), table == len(TABLES)

    def _stretch(self, table: int, after: Sequence[Any] | None, limit: int) -> Any:
        """Rows behind a key, each behind the values of its key."""
        spec = TABLES[table]
        if table == EVENTS:  # in the order of the file, which is the cheapest
            return (
                (row[0], row[1:])
                for row in self._connection.execute(
                    'SELECT rowid, tenant, session, "offset", key_id, body FROM events WHERE rowid > ?'
                    " ORDER BY rowid LIMIT ?",
                    (0 if after is None else after[0], limit),
                )
            )
        names = ", ".join(spec.key)
        width = len(spec.key)
        behind = f"WHERE ({names}) > ({', '.join('?' * width)})" if after is not None else ""
        rows = self._connection.execute(
            f"SELECT {names}, * FROM {spec.name} {behind} ORDER BY {names} LIMIT ?", (*(after or ()), limit)
        )
        return ((*row[:width], row[width:]) for row in rows)
