"""The SQL of the SQLite journal, and how its answers become structs.

Two rules shape it, both because the interpreter's lock changes hands around every step of a statement, which on a busy
event loop can take milliseconds each time:

* A write of many rows is one statement with many rows of VALUES. Such statements exist for sizes that are powers of
  two; a shorter batch is filled up with NULL rows, which match and insert nothing. `OR FAIL` because the journal rolls
  the whole transaction back on any error: it spares SQLite the copy of each page that it keeps to undo one statement.
* A read answers with one row of JSON, bodies in hexadecimal, and is decoded in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from persistence.codec import Codec, decode_record, snapshot_row
from persistence.sql.journal import command_from, head_from
from persistence.write_batch import PUSH_AGAIN, PUSH_COLUMNS, REVIEW_AGAIN, REVIEW_COLUMNS, USAGE_COLUMNS
from sessions.model.errors import Internal
from sessions.model.events import Record
from sessions.model.journal_types import CommandRecord, Due, Head, Snapshot
from sessions.model.types import NEVER, SessionId, SessionKey, TenantId

VALUES_ROWS_MAX: Final = 256
LOAD_PAGE_ROWS = 100_000

Row = tuple[Any, ...]


def chunks(rows: Sequence[Row]) -> list[tuple[int, list[Any]]]:
    """Splits rows into pairs for the statements below: a number of VALUES rows, and that many rows as flat parameters.
    Rows that fill up to that number have None in their first column, which equals nothing. Python's module looks for an
    adapter of each `bytes` and None, which takes a microsecond; of a `bytearray` or number it does not."""
    result = []
    for start in range(0, len(rows), VALUES_ROWS_MAX):
        chunk = rows[start : start + VALUES_ROWS_MAX]
        size = 1 << (len(chunk) - 1).bit_length()
        flat = [bytearray(value) if type(value) is bytes else value for row in chunk for value in row]
        flat += [None, *[0] * (len(chunk[0]) - 1)] * (size - len(chunk))
        result.append((size, flat))
    return result


def _values(columns: int, rows: int) -> str:
    row = "(" + ",".join("?" * columns) + ")"
    return ",".join([row] * rows)


@cache
def advance(rows: int, *, returning: bool = False) -> str:
    """Returns the statement of invariant I1: moves the heads whose fence and top are as the writer believes. A row is
    (tenant, session, fence, top, number of records)."""
    return (
        f"UPDATE OR FAIL heads SET top = top + v.column5 FROM (VALUES {_values(5, rows)}) v"
        " WHERE heads.tenant = v.column1 AND heads.session = v.column2"
        " AND heads.fence = v.column3 AND heads.top = v.column4" + (" RETURNING tenant, session" if returning else "")
    )


@cache
def patch_heads(rows: int) -> str:
    """Returns the statement that updates heads; a row is (tenant, session, open, user, model, key_id, about, listed,
    deleted_at, updated_at)."""
    return (
        "UPDATE OR FAIL heads SET open = v.column3, user = v.column4, model = v.column5, key_id = v.column6,"
        " about = v.column7, listed = v.column8, deleted_at = v.column9, updated_at = v.column10"
        f" FROM (VALUES {_values(10, rows)}) v WHERE heads.tenant = v.column1 AND heads.session = v.column2"
    )


def _inserter(into: str, columns: str, conflict: str = "") -> Callable[[int], str]:
    """Returns a function that makes the statement for inserting a given number of rows with these columns."""

    @cache
    def statement(rows: int) -> str:
        values = _values(columns.count(",") + 1, rows)
        return f"{into} ({columns}) SELECT * FROM (VALUES {values}) WHERE column1 IS NOT NULL {conflict}"

    return statement


_BODY_COLUMNS = 'tenant, session, "offset", key_id, body'
insert_events = _inserter("INSERT OR FAIL INTO events", _BODY_COLUMNS)
upsert_snapshots = _inserter("INSERT OR REPLACE INTO snapshots", _BODY_COLUMNS)
# An id that is older than 24 h may come again.
upsert_commands = _inserter(
    "INSERT OR REPLACE INTO commands", "tenant, session, principal, command, at, digest, answer"
)
# A response that has its usage row keeps it; one that waited has its place already.
insert_usage = _inserter("INSERT OR IGNORE INTO usage", USAGE_COLUMNS)
insert_responses = _inserter("INSERT OR IGNORE INTO responses", 'tenant, response, session, "offset"')


@cache
def upsert_pushes(rows: int) -> str:
    """Returns the statement that writes a push notice for each device of the user; a row is (tenant, session, end user,
    cause, response, offset, at, due at)."""
    return (
        f"INSERT INTO push_outbox ({PUSH_COLUMNS})"
        " SELECT v.column1, v.column2, s.id, v.column3, v.column4, v.column5, v.column6, v.column7, v.column8, 0"
        f" FROM (VALUES {_values(8, rows)}) v JOIN push_subscriptions s"
        f" ON s.tenant = v.column1 AND s.end_user = v.column3 WHERE true {PUSH_AGAIN}"
    )


upsert_reviews = _inserter("INSERT INTO reviews", REVIEW_COLUMNS, REVIEW_AGAIN)


# -- grants ---------------------------------------------------------------------------------------------------------

_HEAD = (
    "json_array(tenant, session, epoch, fence, incarnation, top, open, owner, user, model, listed,"
    " created_at, updated_at, deleted_at, key_id, hex(about))"
)


@cache
def grant_new(rows: int) -> str:
    """Returns the statement that makes heads; a row is (tenant, session, epoch, incarnation, owner, key_id, about,
    now)."""
    return (
        "INSERT OR IGNORE INTO heads (tenant, session, fence, top, epoch, incarnation, owner, key_id, about,"
        " created_at, updated_at)"
        " SELECT column1, column2, 1, 0, column3, column4, column5, column6, column7, column8, column8"
        f" FROM (VALUES {_values(8, rows)}) WHERE column1 IS NOT NULL RETURNING {_HEAD}"
    )


@cache
def grant_next(rows: int) -> str:
    """Returns the statement that grants the next fence of existing heads; a row is (tenant, session, expected fence,
    new epoch, incarnation, owner, now)."""
    return (
        "UPDATE OR FAIL heads SET fence = fence + 1, owner = v.column6, incarnation = v.column5,"
        " epoch = CASE WHEN incarnation = v.column5 THEN epoch ELSE v.column4 END,"
        " updated_at = CASE WHEN top = 0 THEN v.column7 ELSE updated_at END"
        f" FROM (VALUES {_values(7, rows)}) v WHERE heads.tenant = v.column1 AND heads.session = v.column2"
        f" AND heads.fence = v.column3 RETURNING {_HEAD}"
    )


# -- reads ----------------------------------------------------------------------------------------------------------

HEAD = f"SELECT {_HEAD} FROM heads WHERE tenant = ?1 AND session = ?2"

# The running sum of sizes costs as much as the rest of a page; a page that fits as it is does without.
_ROWS = 'FROM events WHERE tenant = ?1 AND session = ?2 AND "offset" > {after} ORDER BY "offset" LIMIT {limit}'
_PAGE = f"""
    (SELECT json_group_array(json_array("offset", key_id, hex(body))) FROM (
        SELECT "offset", key_id, body FROM events
        WHERE tenant = ?1 AND session = ?2 AND "offset" > {{after}} AND "offset" <= CASE
            WHEN (SELECT total(bytes) FROM (SELECT length(body) AS bytes {_ROWS})) <= {{bytes_max}} THEN 9e15
            ELSE (
                SELECT max("offset") FROM (
                    SELECT "offset", sum(bytes) OVER (ORDER BY "offset" ROWS UNBOUNDED PRECEDING) - bytes AS before
                    FROM (SELECT "offset", length(body) AS bytes {_ROWS}))
                WHERE before < {{bytes_max}})
            END
        ORDER BY "offset" LIMIT {{limit}}))
"""

# (tenant, session, after, limit, bytes_max): a head and a stretch of its log, cut by rows and by bytes.
READ = (
    f"SELECT {_HEAD}, {_PAGE.format(after='?3', limit='?4', bytes_max='?5')}"
    " FROM heads WHERE tenant = ?1 AND session = ?2"
)

# (tenant, session, commands since, commands limit, events limit, events bytes_max)
LOAD = f"""
SELECT {_HEAD},
    {
    _PAGE.format(
        after='''coalesce((SELECT "offset" FROM snapshots WHERE tenant = ?1 AND session = ?2), 0)''',
        limit="?5",
        bytes_max="?6",
    )
},
    (SELECT json_array("offset", key_id, hex(body)) FROM snapshots WHERE tenant = ?1 AND session = ?2),
    (SELECT json_group_array(json_array(principal, command, hex(digest), hex(answer), at)) FROM (
        SELECT principal, command, digest, answer, at FROM commands
        WHERE tenant = ?1 AND session = ?2 AND at > ?3 ORDER BY at DESC, command DESC LIMIT ?4))
FROM heads WHERE tenant = ?1 AND session = ?2
"""

FIND_COMMAND = """
SELECT json_array(principal, command, hex(digest), hex(answer), at) FROM commands
WHERE tenant = ?1 AND session = ?2 AND principal = ?3 AND command = ?4
"""


# (tenant, response)
FIND_RESPONSE = 'SELECT session, "offset" FROM responses WHERE tenant = ?1 AND response = ?2'

PLACE = "SELECT updated_at, session, user FROM heads WHERE tenant = ?1 AND session = ?2"


def list_heads(tenant: TenantId, user: str | None, limit: int, behind: tuple[int, str] | None) -> tuple[str, Row]:
    """Returns the query for a page of heads, newest first. `behind` is the (updated_at, session) after which the page
    begins; None for the first page."""
    where = "tenant = ? AND listed = 1 AND deleted_at IS NULL AND top > 0"
    values: Row = (tenant,)
    if user is not None:
        where += " AND user IS NOT NULL AND user = ?"
        values += (user,)
    if behind is not None:
        updated_at, session = behind
        where += " AND updated_at <= ? AND (updated_at < ? OR session > ?)"
        values += (updated_at, updated_at, session)
    statement = (
        f"SELECT json_group_array(json(head)) FROM (SELECT {_HEAD} AS head FROM heads"
        f" WHERE {where} ORDER BY updated_at DESC, session LIMIT ?)"
    )
    return statement, (*values, limit)


# (tenant, end user or NULL, whether bytes are counted)
TALLY = """
SELECT
    (SELECT count(*) FROM heads WHERE tenant = ?1 AND listed = 1 AND deleted_at IS NULL AND top > 0
        AND (?2 IS NULL OR user IS ?2)),
    CASE WHEN ?3 THEN coalesce((SELECT sum(length(e.body)) FROM events e JOIN heads h USING (tenant, session)
        WHERE e.tenant = ?1 AND (?2 IS NULL OR h.user IS ?2)), 0) ELSE 0 END
"""

# (tenant, user, session, limit): whatever is stored of a user, in key order.
HEADS_OF_USER = (
    f"SELECT json_group_array(json(head)) FROM (SELECT {_HEAD} AS head FROM heads"
    " WHERE tenant = ?1 AND session > ?3 AND user = ?2 ORDER BY session LIMIT ?4)"
)

# (limit, tenant, session): the store's own row is never open.
OPEN_HEADS = (
    f"SELECT json_group_array(json(head)) FROM (SELECT {_HEAD} AS head FROM heads"
    " WHERE open = 1 AND (tenant, session) > (?2, ?3) ORDER BY tenant, session LIMIT ?1)"
)

# What may be due, each arm by an index; `Due.reason` decides.
_DUE: Final = (
    "deleted_at IS NOT NULL AND deleted_at < ?1",
    "top = 0 AND updated_at < ?1 AND tenant <> ''",
    "listed = 0 AND deleted_at IS NULL AND updated_at < ?3 AND open = 0",
    "listed = 0 AND deleted_at IS NOT NULL AND updated_at < ?3 AND open = 0",
)
# Listed sessions stand in an index of their tenant's, which is read for one tenant after the other: an index of all
# by their time would be written with every event.
_TENANTS: Final = """
WITH RECURSIVE tenants (name) AS (
    SELECT min(tenant) FROM heads WHERE tenant > ''
    UNION ALL
    SELECT (SELECT min(tenant) FROM heads WHERE tenant > name) FROM tenants WHERE name IS NOT NULL
)
"""
_IDLE: Final = (
    "updated_at < ?4 AND open = 0 AND top > 0 AND deleted_at IS NOT NULL",
    "updated_at < ?4 AND open = 0 AND top > 0 AND deleted_at IS NULL AND listed = 0",
    "updated_at < ?4 AND open = 0 AND top > 0 AND deleted_at IS NULL AND listed = 1 AND tenant ",
)


def purgeable(due: Due, limit: int) -> tuple[str, Row]:
    idle = due.idle_before > NEVER
    arms = list(_DUE)
    if idle:
        arms += _IDLE
        arms[-1] += "IN (SELECT name FROM tenants)" if due.tenant is None else "= ?5"
    union = " UNION ALL ".join(f"SELECT tenant, session, user FROM heads WHERE {arm}" for arm in arms)
    # (deleted before, limit, unlisted before, idle before, tenant or NULL, other tenants as JSON, user or NULL)
    statement = (
        f"{_TENANTS if idle and due.tenant is None else ''}SELECT DISTINCT tenant, session FROM ({union})"
        " WHERE (?4 IS NOT NULL) AND (?5 IS NULL OR tenant = ?5) AND (?7 IS NULL OR user IS ?7)"
        " AND tenant NOT IN (SELECT value FROM json_each(?6)) LIMIT ?2"
    )
    others = msgspec.json.encode(due.besides).decode()
    times = (due.deleted_before, limit, due.unlisted_before, due.idle_before)
    return statement, (*times, due.tenant, others, due.user)


# (tenant, session)
STANDING: Final = "SELECT top, listed, open, updated_at, deleted_at, user FROM heads WHERE tenant = ?1 AND session = ?2"

# (tenant, session, now): nobody goes on with a session whose log is being taken away.
PURGE_BEGUN: Final = (
    "UPDATE heads SET fence = fence + 1, deleted_at = ?3 WHERE tenant = ?1 AND session = ?2 AND deleted_at IS NULL"
)

# (tenant, session, limit)
PURGE_EVENTS = """
DELETE FROM events WHERE tenant = ?1 AND session = ?2 AND "offset" IN (
    SELECT "offset" FROM events WHERE tenant = ?1 AND session = ?2 ORDER BY "offset" LIMIT ?3)
"""

# (before, limit)
PURGE_COMMANDS = """
DELETE FROM commands WHERE (tenant, session, principal, command) IN (
    SELECT tenant, session, principal, command FROM commands WHERE at < ?1 ORDER BY at LIMIT ?2)
"""


# -- rows to structs ------------------------------------------------------------------------------------------------

_HeadRow = tuple[
    str, str, str, int, str, int, int, str, str | None, str, int, int, int, int | None, str, str
]  # fmt: skip
_BodyRow = tuple[int, str, str]
_CommandRow = tuple[str, str, str, str, int]

_decode_head = msgspec.json.Decoder(_HeadRow).decode
_decode_heads = msgspec.json.Decoder(list[_HeadRow]).decode
_decode_body = msgspec.json.Decoder(_BodyRow).decode
_decode_bodies = msgspec.json.Decoder(list[_BodyRow]).decode
_decode_command = msgspec.json.Decoder(_CommandRow).decode
_decode_commands = msgspec.json.Decoder(list[_CommandRow]).decode


def head_of(codec: Codec, row: Row) -> Head:
    return _head(codec, _decode_head(row[0]))


def key_of(row: Row) -> SessionKey:
    tenant, session, *_ = _decode_head(row[0])
    return SessionKey(TenantId(tenant), SessionId(session))


def heads_of(codec: Codec, rows: Sequence[Row]) -> list[Head]:
    return [_head(codec, columns) for (text,) in rows for columns in _decode_heads(text)]


def _head(codec: Codec, columns: _HeadRow) -> Head:
    return head_from(codec, columns, bytes.fromhex(columns[-1]))


def records_of(codec: Codec, key: SessionKey, row: Row, *, after: int) -> tuple[Record, ...]:
    """Returns a page's records. Raises Internal unless they begin right behind the offset `after` and have no gap."""
    decode = codec.decode
    from_hex = bytes.fromhex
    bodies = _decode_bodies(row[1])
    records = tuple(
        [decode_record(offset, decode(key, offset, key_id, from_hex(body))) for offset, key_id, body in bodies]
    )
    if records and (records[0].offset != after + 1 or records[-1].offset != after + len(records)):
        raise Internal("journal_hole", "The stored log of this session has a hole.")
    return records


def snapshot_of(codec: Codec, key: SessionKey, row: Row) -> Snapshot | None:
    if row[2] is None:
        return None
    offset, key_id, body = _decode_body(row[2])
    return Snapshot(offset, codec.decode(key, snapshot_row(offset), key_id, bytes.fromhex(body)))


def command_of(codec: Codec, key: SessionKey, row: Row) -> CommandRecord:
    return _command(codec, key, _decode_command(row[0]))


def commands_of(codec: Codec, key: SessionKey, row: Row) -> list[CommandRecord]:
    return [_command(codec, key, columns) for columns in _decode_commands(row[3])]


def _command(codec: Codec, key: SessionKey, columns: _CommandRow) -> CommandRecord:
    principal, command, digest, answer, at = columns
    return command_from(codec, key, (principal, command, bytes.fromhex(digest), bytes.fromhex(answer), at))
