"""Translates failures of PostgreSQL: whether the statement happened, and whether the caller may repeat it.

A statement is a transaction. If the server answered with an error of its own, the transaction was rolled back and
nothing happened. If the answer is missing, because the connection broke or time ran out, it may have happened.
"""

from __future__ import annotations

from typing import Final

import asyncpg

from sessions.model.errors import OutcomeUnknown, Unavailable

NO_ANSWER: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # the server is shutting down, or cut us off
    asyncpg.InternalClientError,
)
"""Errors after which a connection is unusable, and its last statement may or may not have taken effect."""

NOT_SENT: Final = (asyncpg.InterfaceError,)
"""Errors of the driver itself, which sent nothing: the connection was closed before."""

FAILURES: Final = (*NO_ANSWER, *NOT_SENT, asyncpg.PostgresError)

ONE_WRITE_IS_BAD: Final = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.CardinalityViolationError,
    asyncpg.ProgramLimitExceededError,
)
"""Errors that one bad write of a batch causes, whatever the state of the server."""


def unavailable(exc: BaseException) -> Unavailable:
    """Returns the error for a statement that was not sent."""
    error = Unavailable("journal_away", "The server's database is away.", retry_after_ms=1000)
    error.__cause__ = exc
    return error


def translate(exc: BaseException) -> Unavailable:
    """Returns the error for the caller of a statement that was sent."""
    error: Unavailable
    if isinstance(exc, asyncpg.QueryCanceledError | asyncpg.CannotConnectNowError):
        error = Unavailable("journal_slow", "The server's database is too slow.", retry_after_ms=1000)
    elif isinstance(exc, NO_ANSWER):
        error = OutcomeUnknown("journal_outcome_unknown", "The server's database did not answer.")
    elif isinstance(exc, asyncpg.DiskFullError):
        error = Unavailable("journal_disk_full", "The disk of the server's database is full.", retry_after_ms=5000)
    elif isinstance(exc, asyncpg.ReadOnlySQLTransactionError):
        error = Unavailable("journal_read_only", "The server's database takes no writes.", retry_after_ms=1000)
    elif isinstance(exc, NOT_SENT):
        error = Unavailable("journal_away", "The server's database is away.", retry_after_ms=1000)
    else:
        error = Unavailable("journal_unavailable", "The server's database failed.", retry_after_ms=1000)
    error.__cause__ = exc
    return error
