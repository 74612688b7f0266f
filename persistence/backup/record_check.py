"""Looks at a journal record by record: that every log is whole, and that every body opens and can be read.

Blocking, on a connection that only reads; keys are loaded before, so that it never waits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from persistence.codec import HEAD_ROW, Codec, KeyDestroyed, KeyNotLoaded, decode_head_body, decode_record
from persistence.sqlite.library import sqlite3
from sessions.model.errors import Internal
from sessions.model.types import SessionId, SessionKey, TenantId

PROBLEMS_MAX: Final = 1000
_HEADS: Final = "SELECT tenant, session, top, key_id, about FROM heads WHERE tenant <> '' ORDER BY tenant, session"
_EVENTS: Final = 'SELECT tenant, session, "offset", key_id, body FROM events ORDER BY tenant, session, "offset"'
_ARCHIVED: Final = (
    "SELECT tenant, session, top FROM archived WHERE recalled_at IS NULL AND replaced_at IS NULL AND length(sealed) > 0"
)
_KEYS: Final = "SELECT tenant, key_id FROM events UNION SELECT tenant, key_id FROM heads WHERE tenant <> ''"


class RecordCheck(msgspec.Struct, frozen=True, kw_only=True):
    sessions: int
    records: int
    unreadable: int
    """Records under keys that were destroyed on purpose."""
    problems: tuple[str, ...]


async def load_keys(path: Path, codec: Codec) -> None:
    """Brings every key that a journal names into memory, as far as it can be had."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        named = connection.execute(_KEYS).fetchall()
    finally:
        connection.close()
    for tenant, key_id in named:
        if not key_id:
            continue
        try:
            await codec.load(TenantId(tenant), key_id)
        except Internal:  # destroyed, or not ours: its rows say so
            continue


def check_records(path: Path, codec: Codec) -> RecordCheck:
    """Keys were loaded by `load_keys`. What lies in the archive is not looked at."""
    connection = sqlite3.connect(path, isolation_level=None)
    problems: list[str] = []
    sessions = records = unreadable = 0
    try:
        connection.execute("PRAGMA query_only = ON")
        tops: dict[tuple[str, str], int] = {}
        for tenant, session, top, key_id, about in connection.execute(_HEADS):
            sessions += 1
            tops[tenant, session] = top
            key = SessionKey(TenantId(tenant), SessionId(session))
            try:
                decode_head_body(codec.decode(key, HEAD_ROW, key_id, about))
            except (KeyDestroyed, KeyNotLoaded):
                unreadable += 1
            except Internal as error:
                problems.append(f"{tenant}/{session}: its head: {error}")
        seen: dict[tuple[str, str], int] = {}
        elsewhere = {(tenant, session): top for tenant, session, top in connection.execute(_ARCHIVED)}
        for tenant, session, offset, key_id, body in connection.execute(_EVENTS):
            place = (tenant, session)
            records += 1
            if offset != seen.get(place, 0) + 1 and (place in seen or offset != elsewhere.get(place, 0) + 1):
                problems.append(f"{tenant}/{session}: a hole before offset {offset}")
            seen[place] = offset
            key = SessionKey(TenantId(tenant), SessionId(session))
            try:
                decode_record(offset, codec.decode(key, offset, key_id, body))
            except (KeyDestroyed, KeyNotLoaded):
                unreadable += 1
            except Internal as error:
                problems.append(f"{tenant}/{session}: offset {offset}: {error}")
            if len(problems) >= PROBLEMS_MAX:
                break
        for place, top in tops.items():
            last = max(seen.get(place, 0), elsewhere.get(place, 0))
            if last != top:
                problems.append(f"{place[0]}/{place[1]}: its log ends at {last} instead of {top}")
    finally:
        connection.close()
    return RecordCheck(
        sessions=sessions, records=records, unreadable=unreadable, problems=tuple(problems[:PROBLEMS_MAX])
    )
