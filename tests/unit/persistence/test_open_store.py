"""Which journal a setting names."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence import open_journal
from persistence.memory.journal import MemoryJournal
from persistence.postgres.journal import PostgresJournal
from persistence.sqlite.journal import SqliteJournal
from sessions.model.errors import BadInput


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("sqlite", SqliteJournal),
        ("memory", MemoryJournal),
        ("postgresql://u:p@db:5432/x", PostgresJournal),
        ("postgres:///x?host=/run", PostgresJournal),
    ],
)
def test_a_setting_names_a_journal(tmp_path: Path, where: str, kind: type) -> None:
    assert isinstance(open_journal(where, folder=tmp_path), kind)


@pytest.mark.parametrize("where", ["", "sqlite://x", "postgresql", "postgresql://", "mysql://db"])
def test_anything_else_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_journal(where, folder=tmp_path)
    assert caught.value.param == "journal"


def test_sqlite_needs_its_folder() -> None:
    with pytest.raises(BadInput):
        open_journal("sqlite", folder=None)
