"""Which tables a backup has, how a change of a row is noticed, and whose key seals it.

Triggers note the keys of rows that changed in `backup_changes`, in the transaction that changes them, so that nothing
is missed whoever writes and whenever it stops. Two kinds are noticed without one, because they are the many: new events
by their place in the file (`rowid` above `backup_state.watermark`), and a head's top, which is the last of its events.

A row goes with its session, where it has one: then the key of that session seals it, and purging the session makes it
unreadable in every backup. What names an end user goes with that user. The rest (audit log, usage of purged sessions,
keys) goes with the tenant. `commands` and `responses` that are deleted are not noted: they go with their session, or
are older than a day.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Owner = Literal["session", "user", "tenant", "server"]

PUT: Final = 0
DELETE: Final = 1
EVENTS_LEFT: Final = 2
"""Of a session: (tenant, session, the first and the last offset that are left, or NULL)."""

SERVER: Final = "\x7fbackup"
"""In a tenant's place for rows of no tenant; no name has a control character."""


class TableSpec(NamedTuple):
    name: str
    key: tuple[str, ...]
    owner: Owner
    updates: str = ""
    """Whose change is noticed: `OF ...`; "": every one."""
    deletes: bool = True


EVENTS: Final = 0
HEADS: Final = 1
USAGE: Final = 5
API_KEYS: Final = 11
ERASURES: Final = 12

_HEAD_UPDATES: Final = (
    "OF fence, epoch, incarnation, owner, open, listed, user, model, key_id, about, created_at, updated_at, deleted_at"
)

# Stored by their places here: the list only grows.
TABLES: Final = (
    TableSpec("events", ("tenant", "session", '"offset"'), "session"),
    TableSpec("heads", ("tenant", "session"), "session", _HEAD_UPDATES),
    TableSpec("commands", ("tenant", "session", "principal", "command"), "session", deletes=False),
    TableSpec("snapshots", ("tenant", "session"), "session"),
    TableSpec("responses", ("tenant", "response"), "session", deletes=False),
    TableSpec("usage", ("seq",), "session", deletes=False),
    TableSpec("reviews", ("tenant", "id"), "session"),
    TableSpec("audit", ("tenant", "seq"), "tenant"),
    TableSpec("audit_heads", ("tenant",), "tenant"),
    TableSpec("audit_floors", ("tenant",), "tenant"),
    TableSpec("audit_secret", ("one",), "server"),
    TableSpec("api_keys", ("id",), "user"),
    TableSpec("erasures", ("tenant", "end_user", "asked_at"), "user"),
    TableSpec("revocations", ("issuer", "kind", "name"), "server"),
    TableSpec("shares", ("tenant", "session", "id"), "session"),
    TableSpec("memories", ("tenant", "end_user", "id"), "user"),
    TableSpec("archived", ("tenant", "session", "object"), "session", deletes=False),
    TableSpec("push_subscriptions", ("tenant", "end_user", "id"), "user"),
    TableSpec("files", ("tenant", "end_user", "id"), "user"),
    TableSpec("file_blobs", ("tenant", "end_user", "id"), "user"),
    TableSpec("file_chunks", ("tenant", "end_user", "blob", "place"), "user"),
    TableSpec("tool_records", ("tenant", "kind", "name"), "tenant"),
)
_STATE: Final = """
CREATE TABLE IF NOT EXISTS backup_state (
    one          INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    incarnation  TEXT    NOT NULL,
    chain        TEXT    NOT NULL,
    number       INTEGER NOT NULL,
    hash         BLOB    NOT NULL,
    watermark    INTEGER NOT NULL,
    lowest       INTEGER NOT NULL,
    base_began   INTEGER NOT NULL,
    base_place   TEXT    NOT NULL,
    restore_from INTEGER NOT NULL,
    based_at     INTEGER NOT NULL
) STRICT
"""
_CHANGES: Final = """
CREATE TABLE IF NOT EXISTS backup_changes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    tbl INTEGER NOT NULL,
    a ANY NOT NULL, b ANY, c ANY, d ANY
) STRICT
"""
# After deletions a rowid may come again: `lowest` is what the highest one has been since the last segment.
_LOWERED: Final = """
CREATE TRIGGER IF NOT EXISTS backup_events_lowered AFTER DELETE ON events
WHEN (SELECT coalesce(max(rowid), 0) FROM events) < (SELECT lowest FROM backup_state)
BEGIN UPDATE backup_state SET lowest = (SELECT coalesce(max(rowid), 0) FROM events); END
"""


def _note(table: int, alias: str) -> str:
    key = TABLES[table].key
    values = ", ".join(f"{alias}.{column}" for column in key)
    return f"INSERT INTO backup_changes (tbl, {', '.join('abcd'[: len(key)])}) VALUES ({table}, {values});"


def _triggers(table: int) -> list[str]:
    spec = TABLES[table]
    made = []
    when = "WHEN {}.tenant <> '' " if spec.name == "heads" else ""
    if spec.name != "events":
        made.append(("insert", "INSERT", "NEW", _note(table, "NEW")))
        both = f"{_note(table, 'OLD')} {_note(table, 'NEW')}" if spec.name == "erasures" else _note(table, "NEW")
        made.append(("update", f"UPDATE {spec.updates}".strip(), "NEW", both))
    else:
        made.append(("update", "UPDATE", "NEW", _note(table, "NEW")))
    if spec.name == "events":
        note = f"INSERT INTO backup_changes (tbl, a, b) VALUES ({table}, OLD.tenant, OLD.session);"
        made.append(("delete", "DELETE", "OLD", note))
    elif spec.name == "heads":  # marked, for it may be there again
        note = f"INSERT INTO backup_changes (tbl, a, b, c) VALUES ({table}, OLD.tenant, OLD.session, 1);"
        made.append(("delete", "DELETE", "OLD", note))
    elif spec.deletes:
        made.append(("delete", "DELETE", "OLD", _note(table, "OLD")))
    return [
        f"CREATE TRIGGER IF NOT EXISTS backup_{spec.name}_{what} AFTER {event} ON {spec.name} "
        f"{when.format(alias)}BEGIN {note} END"
        for what, event, alias, note in made
    ]


def capture_statements() -> list[str]:
    """What has to be in the journal's file, so that no change is missed."""
    statements = [_STATE, _CHANGES, _LOWERED]
    for table in range(len(TABLES)):
        statements += _triggers(table)
    return statements


def release_statements() -> list[str]:
    """What takes that away again."""
    names = ["backup_events_lowered"]
    names += [f"backup_{spec.name}_{what}" for spec in TABLES for what in ("insert", "update", "delete")]
    return [
        *(f"DROP TRIGGER IF EXISTS {name}" for name in names),
        "DROP TABLE IF EXISTS backup_changes",
        "DROP TABLE IF EXISTS backup_state",
    ]
