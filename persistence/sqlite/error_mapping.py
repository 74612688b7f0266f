"""Translates failures of SQLite: whether the write happened, whether the caller may repeat it, and what an operator
must do.

The public messages name no paths; the cause, with SQLite's own words, is in `__cause__` and so in the log.
"""

from __future__ import annotations

from typing import Final

from persistence.sqlite.library import sqlite3
from sessions.model.errors import OutcomeUnknown, Unavailable


class StoreOvertaken(Exception):
    """Raised if the store's own row is not as this process left it: another process has opened the file."""


class CommitFailed(Exception):
    """Raised if SQLite refused the commit itself; the cause says how."""


class RollbackFailed(Exception):
    """Raised if a failed transaction could not be rolled back: the connection is of no use any more."""


FAILURES: Final = (sqlite3.Error, OSError, StoreOvertaken, CommitFailed, RollbackFailed)

ONE_WRITE_IS_BAD: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    OverflowError,
)
"""Errors that a single write of a batch causes, whatever the state of the disk."""


def primary_code(exc: BaseException | None) -> int:
    """Returns SQLite's primary result code; 0 if the error has none."""
    code: int = getattr(exc, "sqlite_errorcode", 0) or 0
    return code & 0xFF


def is_damage(exc: BaseException | None) -> bool:
    return primary_code(exc) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def translate(exc: BaseException) -> Unavailable:
    """Returns the error for a caller. If it is not retryable, this journal will never write again.

    It is OutcomeUnknown only if SQLite failed between writing the commit and knowing it on the disk (what was written
    could come back if the machine stopped now), or if the commit is done and its marker could not be written. A full
    disk is neither: the commit did not fit.
    """
    cause = exc.__cause__ if isinstance(exc, CommitFailed | RollbackFailed) else exc
    error: Unavailable
    if isinstance(exc, StoreOvertaken):
        error = Unavailable("journal_taken", "Another process has opened the server's store.", retryable=False)
    elif is_damage(cause):
        error = Unavailable("journal_damaged", "The server's store is damaged. It stopped writing.", retryable=False)
    elif isinstance(exc, RollbackFailed):
        error = Unavailable("journal_broken", "The server's store failed. It must be restarted.", retryable=False)
    elif primary_code(cause) == sqlite3.SQLITE_FULL:
        error = Unavailable(
            "journal_disk_full",
            "The server's disk is full. Nothing was stored; it goes on by itself when there is space again.",
            retry_after_ms=5000,
        )
    elif primary_code(cause) == sqlite3.SQLITE_READONLY:
        error = Unavailable(
            "journal_read_only",
            "The server's store cannot be written: its folder or disk is read-only.",
            retry_after_ms=5000,
        )
    elif isinstance(exc, CommitFailed | OSError):
        error = OutcomeUnknown("journal_outcome_unknown", "The server's disk failed while it stored this.")
    else:
        error = Unavailable("journal_unavailable", "The server's store failed.", retry_after_ms=1000)
    error.__cause__ = cause
    return error
