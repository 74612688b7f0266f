"""What a failure of PostgreSQL means: nothing happened, or nobody knows."""

from __future__ import annotations

import asyncpg
import pytest

from persistence.postgres.error_mapping import FAILURES, translate, unavailable
from sessions.model.errors import OutcomeUnknown, Unavailable


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (asyncpg.QueryCanceledError(), "journal_slow"),
        (asyncpg.CannotConnectNowError(), "journal_slow"),
        (asyncpg.DiskFullError(), "journal_disk_full"),
        (asyncpg.ReadOnlySQLTransactionError(), "journal_read_only"),
        (asyncpg.InterfaceError("closed"), "journal_away"),
        (asyncpg.UndefinedTableError(), "journal_unavailable"),
    ],
)
def test_an_answer_of_the_server_means_that_nothing_happened(failure: Exception, code: str) -> None:
    error = translate(failure)
    assert type(error) is Unavailable and error.code == code and error.retryable
    assert error.__cause__ is failure and isinstance(failure, FAILURES)


@pytest.mark.parametrize(
    "failure",
    [TimeoutError(), ConnectionResetError(), asyncpg.ConnectionDoesNotExistError(), asyncpg.AdminShutdownError()],
)
def test_without_an_answer_nobody_knows(failure: Exception) -> None:
    error = translate(failure)
    assert isinstance(error, OutcomeUnknown) and error.__cause__ is failure
    assert type(unavailable(failure)) is Unavailable, "unless it was never sent"
