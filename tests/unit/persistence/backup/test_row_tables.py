"""Every table of the journal is in a backup, or is none that a restore needs."""

from __future__ import annotations

from pathlib import Path

from persistence.backup.row_tables import TABLES, capture_statements, release_statements
from persistence.sql.migrations import read_migrations
from persistence.sqlite.library import sqlite3
from persistence.sqlite.schema import MIGRATIONS

NOT_SHIPPED = {
    "reencryptions",  # a sweep begins anew
    "push_outbox",  # a restored server tells nobody of what was there long ago
    "sqlite_sequence",
    "applied_migrations",  # the restored file's own
}


def test_every_table_is_shipped_and_what_is_noted_goes_again(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    for text in read_migrations(MIGRATIONS):
        connection.executescript(text)
    before = set(connection.execute("SELECT name, type FROM sqlite_schema"))
    tables = {name for name, kind in before if kind == "table"}
    assert tables - NOT_SHIPPED == {spec.name for spec in TABLES}
    for _ in range(2):
        for statement in capture_statements():
            connection.execute(statement)
    assert len(set(connection.execute("SELECT name, type FROM sqlite_schema"))) > len(before) + len(TABLES)
    for statement in release_statements():
        connection.execute(statement)
    assert set(connection.execute("SELECT name, type FROM sqlite_schema")) == before
    connection.close()
