"""Migrations are files with numbers, and none is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.postgres import schema as postgres_schema
from persistence.sql.migrations import read_migrations, required_version
from persistence.sqlite import schema as sqlite_schema
from tests.support.neighbours.previous import SCHEMA


def test_both_databases_have_the_same_versions_without_a_gap() -> None:
    """Whoever adds a table to one adds it to the other, under the same number."""
    assert len(read_migrations(sqlite_schema.MIGRATIONS)) == len(read_migrations(postgres_schema.MIGRATIONS)) >= 9


@pytest.mark.parametrize(
    "names", [[], ["002.sql"], ["001.sql", "003.sql"], ["001.sql", "2.sql"], ["001.sql", "01.sql"]]
)
def test_a_gap_or_another_name_is_noticed(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(AssertionError):
        read_migrations(tmp_path)


def test_they_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (2, 10, 1, *range(3, 10)):
        (tmp_path / f"{number:03}.sql").write_text(str(number))
    assert read_migrations(tmp_path) == [str(number) for number in range(1, 11)]


def test_a_compatible_migration_does_not_raise_what_a_program_has_to_know() -> None:
    assert required_version([]) == 0
    assert required_version(["SELECT 1", "SELECT 2"]) == 2
    assert required_version(["SELECT 1", "-- compatible with 1\nSELECT 2", "-- compatible with 1\nSELECT 3"]) == 1
    assert required_version(["SELECT 1", "-- compatible with 1\nSELECT 2", "DROP TABLE x"]) == 3
    assert required_version(["SELECT 1", "SELECT 2 -- compatible with 1\n"]) == 2, "in the first line alone"


def test_each_release_leaves_the_database_to_the_one_before() -> None:
    """14 is what the release before knows (tests/support/neighbours/previous.py)."""
    for folder in (sqlite_schema.MIGRATIONS, postgres_schema.MIGRATIONS):
        assert required_version(read_migrations(folder)) <= SCHEMA
