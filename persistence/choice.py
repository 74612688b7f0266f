"""Which journal a setting names. Only makes it: `open` is the caller's, and so is `close`."""

from __future__ import annotations

from pathlib import Path

from persistence.memory import MemoryJournal
from persistence.sqlite import SqliteJournal
from sessions.errors import BadInput
from sessions.ports import Journal


def open_journal(where: str, *, folder: Path) -> Journal:
    """`sqlite` (in `folder`), or `memory`. Raises BadInput for anything else."""
    match where.partition("://"):
        case ("sqlite", "", _):
            return SqliteJournal(folder)
        case ("memory", "", _):
            return MemoryJournal()
        case _:
            raise BadInput("unknown_journal", "The journal is `sqlite` or `memory`.", param="journal")
