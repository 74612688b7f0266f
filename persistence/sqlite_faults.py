"""What an SQLite error means for the one who wrote: did it happen, may it come again, what is to be done.

The public messages name no paths; the cause, with SQLite's own words, travels as `__cause__` into the log.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from sessions.errors import OutcomeUnknown, Unavailable

FULL: Final = sqlite3.SQLITE_FULL
DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

ONE_WRITE_IS_BAD: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    OverflowError,
)
"""Errors that a single write of a batch causes, whatever the state of the disk."""


def primary_code(exc: Exception) -> int:
    """SQLite's primary result code, 0 where there is none."""
    code: int = getattr(exc, "sqlite_errorcode", 0) or 0
    return code & 0xFF


def translate(exc: Exception, *, at_commit: bool) -> Unavailable:
    """The error for a caller, after the transaction was rolled back.

    OutcomeUnknown only where SQLite failed between writing the commit and knowing it on the disk: what was written
    could come back if the machine stopped now. A full disk is not that: the commit did not fit.
    """
    code = primary_code(exc)
    error: Unavailable
    if code == FULL:
        error = Unavailable(
            "journal_disk_full",
            "The server's disk is full. Nothing was stored; it goes on by itself when there is space again.",
            retry_after_ms=5000,
        )
    elif code in DAMAGED:
        error = Unavailable(
            "journal_damaged", "The server's store is damaged; it has stopped writing.", retryable=False
        )
    elif code == sqlite3.SQLITE_READONLY:
        error = Unavailable(
            "journal_read_only",
            "The server's store cannot be written: its folder or disk is read-only.",
            retry_after_ms=5000,
        )
    elif at_commit:
        error = OutcomeUnknown("journal_outcome_unknown", "The server's disk failed while it stored this.")
    else:
        error = Unavailable(
            "journal_unavailable", "The server's store failed. Nothing was stored.", retry_after_ms=1000
        )
    error.__cause__ = exc
    return error
