"""Which journal a setting names. Only makes it: `open` is the caller's, and so is `close`."""

from __future__ import annotations

from pathlib import Path

from persistence.memory import MemoryJournal
from persistence.postgres import PostgresJournal
from persistence.sqlite import SqliteJournal
from sessions.errors import BadInput
from sessions.ports import Journal


def open_journal(where: str, *, folder: Path | None) -> Journal:
    """`sqlite` (in `folder`), `memory`, or `postgresql://...`. Raises BadInput for anything else.

    `folder` belongs to one process. With PostgreSQL it holds the marker that tells a restored database from the one
    that this process wrote to; None goes without, which is right for a process that only reads.
    """
    match where.partition("://"):
        case ("sqlite", "", _) if folder is not None:
            return SqliteJournal(folder)
        case ("memory", "", _):
            return MemoryJournal()
        case ("postgresql" | "postgres", _, address) if address:
            return PostgresJournal(where, marker_folder=folder)
        case _:
            raise BadInput(
                "unknown_journal", "The journal is `sqlite`, `memory` or `postgresql://...`.", param="journal"
            )
