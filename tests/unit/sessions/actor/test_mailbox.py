"""A command is answered once, and its sender gets an error that it can act on."""

from __future__ import annotations

import asyncio

from sessions.actor.mailbox import ActorStopped, error_for_sender
from sessions.model.errors import BadInput, Fenced, Unavailable


def test_errors_for_senders() -> None:
    own = BadInput("invalid_request", "no")
    assert error_for_sender(own) is own
    assert isinstance(error_for_sender(Fenced("fenced", "x")), ActorStopped)
    assert isinstance(error_for_sender(asyncio.CancelledError()), ActorStopped)
    away = error_for_sender(Unavailable("journal_away", "x"))
    assert isinstance(away, Unavailable) and away.code == "journal_unavailable"
    bug = error_for_sender(ZeroDivisionError())
    assert getattr(bug, "retryable", False), "repeated by its id it is applied at most once"
