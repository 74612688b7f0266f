"""Rows become a journal: in their order, of their schema, of one session alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.backup.rebuilding import Rebuilding, columns_at
from persistence.backup.row_tables import DELETE, EVENTS, EVENTS_LEFT, HEADS, PUT
from persistence.backup.segments import DamagedBackup, OpenedPart
from persistence.sqlite.database import SqliteDatabase
from tests.support.stores.backups import rows
from tests.support.stores.journals import key

HEAD = ["acme", "s", 3, 0, "e", "i", "o", 0, 1, None, "m", "", b"about", 1, 1, None]


async def a_file(folder: Path) -> Path:
    database = SqliteDatabase(folder)
    await database.open()
    await database.close()
    return folder / "journal.db"


def event(offset: int, session: str = "s") -> tuple[int, int, list[object]]:
    return (EVENTS, PUT, ["acme", session, offset, "", b"body"])


async def test_rows_come_and_go_in_the_order_of_segments(tmp_path: Path) -> None:
    rebuilding = Rebuilding(await a_file(tmp_path))
    part = OpenedPart(("acme", "s/s"), [(HEADS, PUT, HEAD), *(event(offset) for offset in range(1, 6))])
    assert rebuilding.apply(14, [part]) == 6
    left = OpenedPart(("acme", "s/s"), [event(3), (EVENTS, EVENTS_LEFT, ["acme", "s", 2, 3])])
    rebuilding.apply(14, [left])
    counts = rebuilding.finish("new", lambda: "unique")
    rebuilding.close()
    assert counts == (1, 2)
    assert rows(tmp_path, 'SELECT "offset" FROM events ORDER BY 1') == [(2,), (3,)]
    ((fence, top, epoch, incarnation),) = rows(
        tmp_path, "SELECT fence, top, epoch, incarnation FROM heads WHERE session = 's'"
    )
    assert (top, epoch, incarnation) == (3, "restored-unique", "new") and fence > 2**32


async def test_what_has_no_head_is_left_out(tmp_path: Path) -> None:
    rebuilding = Rebuilding(await a_file(tmp_path))
    rebuilding.apply(14, [OpenedPart(("acme", "s/s"), [(HEADS, PUT, HEAD), event(1), event(1, "orphan")])])
    rebuilding.apply(14, [OpenedPart(("acme", ""), [(HEADS, DELETE, ["acme", "s"])])])
    assert rebuilding.finish("new", lambda: "unique") == (0, 0)
    rebuilding.close()


async def test_one_session_alone(tmp_path: Path) -> None:
    rebuilding = Rebuilding(await a_file(tmp_path), key("s"))
    other = [*HEAD[:1], "other", *HEAD[2:]]
    parts = [
        OpenedPart(("acme", "s/s"), [(HEADS, PUT, HEAD), event(1)]),
        OpenedPart(("acme", "s/other"), [(HEADS, PUT, other), event(1, "other")]),
    ]
    assert rebuilding.apply(14, parts) == 2 and rebuilding.finish("new", lambda: "unique") == (1, 1)
    rebuilding.close()


async def test_rows_of_another_version_are_refused(tmp_path: Path) -> None:
    rebuilding = Rebuilding(await a_file(tmp_path))
    for schema, row in ((14, (99, PUT, [])), (14, (HEADS, PUT, HEAD[:-1])), (99, (HEADS, PUT, HEAD))):
        with pytest.raises(DamagedBackup):
            rebuilding.apply(schema, [OpenedPart(("acme", "s/s"), [row])])
    rebuilding.close()
    assert len(columns_at(3)["usage"]) < len(columns_at(14)["usage"])
