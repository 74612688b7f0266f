"""Reads a driver's migrations: `NNN.sql` in a folder, from 001 on, without a gap.

The list only grows: file n takes a database from version n - 1 to n, in one transaction, and is never changed once it
was released.
"""

from __future__ import annotations

from pathlib import Path


def read_migrations(folder: Path) -> list[str]:
    """The files' texts in their order. Blocking."""
    files = sorted(folder.glob("*.sql"))
    assert files, f"no migrations in {folder}"
    numbers = [file.name for file in files]
    assert numbers == [f"{number:03}.sql" for number in range(1, len(files) + 1)], f"a gap in {folder}: {numbers}"
    return [file.read_text("utf-8") for file in files]
