"""A command is answered once, and its sender gets an error that it can act on."""

from __future__ import annotations

import asyncio

import pytest

from sessions.actor.mailbox import ActorStopped, Envelope, error_for_sender
from sessions.model import commands as cm
from sessions.model.errors import BadInput, Fenced, Unavailable
from sessions.model.request import request_of
from sessions.model.types import LOCAL_PRINCIPAL, CommandId
from tests.support.machine.machine_fixture import SESSION


def envelope() -> Envelope:
    command = cm.SessionWarm(id=CommandId("c"), session=SESSION)
    return Envelope(request_of(LOCAL_PRINCIPAL, command), asyncio.get_running_loop().create_future())


async def test_the_first_answer_counts() -> None:
    letter = envelope()
    letter.reply(cm.Ok(id=CommandId("c")))
    letter.reply(BadInput("invalid_request", "no"))
    assert (await letter.answer).id == "c"


async def test_an_error_is_raised_at_the_sender() -> None:
    letter = envelope()
    letter.reply(BadInput("invalid_request", "no"))
    with pytest.raises(BadInput):
        await letter.answer


async def test_nobody_waits_for_a_cancelled_one() -> None:
    letter = envelope()
    letter.answer.cancel()
    letter.reply(cm.Ok(id=CommandId("c")))
    assert letter.answer.cancelled()


def test_errors_for_senders() -> None:
    own = BadInput("invalid_request", "no")
    assert error_for_sender(own) is own
    assert isinstance(error_for_sender(Fenced("fenced", "x")), ActorStopped)
    assert isinstance(error_for_sender(asyncio.CancelledError()), ActorStopped)
    away = error_for_sender(Unavailable("journal_away", "x"))
    assert isinstance(away, Unavailable) and away.code == "journal_unavailable"
    bug = error_for_sender(ZeroDivisionError())
    assert getattr(bug, "retryable", False), "repeated by its id it is applied at most once"
