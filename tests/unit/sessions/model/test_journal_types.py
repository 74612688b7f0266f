"""Which sessions are due to be purged, and why."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.journal_types import Due
from sessions.model.types import UnixMs

DUE = Due(deleted_before=UnixMs(30), unlisted_before=UnixMs(20), idle_before=UnixMs(10), user="ana")
SESSION: dict[str, Any] = {"user": "ana", "top": 5, "listed": True, "open": False, "updated_at": 25, "deleted_at": None}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"updated_at": 9}, "idle"),
        ({"updated_at": 10}, None),
        ({"updated_at": 9, "open": True}, None),
        ({"updated_at": 19, "listed": False}, "unlisted"),
        ({"updated_at": 9, "listed": False, "open": True}, None),
        ({"deleted_at": 29}, "deleted"),
        ({"deleted_at": 29, "open": True}, "deleted"),
        ({"deleted_at": 30}, None),
        ({"deleted_at": 30, "updated_at": 9}, "idle"),
        ({"top": 0}, "empty"),
        ({"top": 0, "updated_at": 30}, None),
        ({"user": "bob", "updated_at": 0}, None),
        ({"user": None, "updated_at": 0}, None),
    ],
)
def test_a_session_is_due_for_the_first_reason_that_holds(fields: dict[str, Any], reason: str | None) -> None:
    assert DUE.reason(**{**SESSION, **fields}) == reason


def test_without_a_user_every_users_sessions_are_meant() -> None:
    due = Due(deleted_before=UnixMs(30))
    assert due.reason(**{**SESSION, "user": "bob", "deleted_at": 1}) == "deleted"
    assert due.reason(**{**SESSION, "updated_at": 0}) is None, "idle ones stay"
