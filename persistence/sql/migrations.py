"""Reads a driver's migrations: `NNN.sql` in a folder, from 001 on, without a gap.

The list only grows: file n takes a database from version n - 1 to n, in one transaction, and is never changed once it
was released. A database goes by two numbers: how far it was migrated, and the version that a program has to know at
least to use it. A migration that programs of an earlier version do not notice says so in its first line,

    -- compatible with 14

and leaves the second number where it was, so that both releases use the database side by side, and the older one can be
started again. One that takes something away says nothing and comes a release after the last program that uses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_COMPATIBLE: Final = re.compile(r"-- compatible with (\d+)\n")


def read_migrations(folder: Path) -> list[str]:
    """Returns the texts of the migration files, in order. Blocking."""
    files = sorted(folder.glob("*.sql"))
    assert files, f"no migrations in {folder}"
    numbers = [file.name for file in files]
    assert numbers == [f"{number:03}.sql" for number in range(1, len(files) + 1)], f"a gap in {folder}: {numbers}"
    return [file.read_text("utf-8") for file in files]


def required_version(migrations: Sequence[str]) -> int:
    """Returns the version that a program must know to use a database on which all these migrations ran."""
    required = 0
    for number, text in enumerate(migrations, 1):
        compatible = _COMPATIBLE.match(text)
        required = max(required, int(compatible[1]) if compatible else number)
    return required
