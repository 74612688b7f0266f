"""Reads which keys the rows of a journal's file name, without writing to it. It is used before it is known whether the
keys in the same folder belong to the journal."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from persistence.sqlite.library import sqlite3

_ENDS: Final = tuple(f"SELECT tenant, key_id FROM events ORDER BY rowid {order} LIMIT 1" for order in ("ASC", "DESC"))


def named_keys(path: Path) -> set[tuple[str, str]]:
    """Returns tenant and key id of the oldest and of the newest encrypted event. Returns nothing if the file cannot be
    read this way; opening it later says what is wrong with it."""
    if not path.is_file():
        return set()
    try:  # `immutable`: no lock, and no file beside it is made; what only the write-ahead log has is not seen
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?immutable=1", uri=True)) as connection:
            rows = [row for statement in _ENDS for row in connection.execute(statement)]
    except sqlite3.Error:
        return set()
    return {(tenant, key_id) for tenant, key_id in rows if key_id}
