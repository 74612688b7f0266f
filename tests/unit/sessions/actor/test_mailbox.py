"""A request in a mailbox is answered once, with an error that its sender can act on."""

from __future__ import annotations

import asyncio

import pytest

from sessions.actor.mailbox import ActorStopped, Envelope, error_for_sender
from sessions.model import commands as cm
from sessions.model.errors import Fenced, Internal, NotFound, OutcomeUnknown
from sessions.model.request import request_of
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, SessionId


def envelope() -> Envelope:
    command = cm.SessionDelete(id=CommandId("c"), session=SessionId("s"))
    return Envelope(request_of(LOCAL_PRINCIPAL, command), asyncio.get_running_loop().create_future())


async def test_the_first_reply_counts_and_a_sender_that_gave_up_gets_none() -> None:
    answered, given_up = envelope(), envelope()
    answered.reply(cm.Ok(id=CommandId("c")))
    answered.reply(NotFound("session_not_found", "late"))
    assert (await answered.answer).id == "c"
    given_up.answer.cancel()
    given_up.reply(cm.Ok(id=CommandId("c")))
    assert given_up.answer.cancelled()


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (Fenced("fenced", "another owner"), ActorStopped, None),
        (asyncio.CancelledError(), ActorStopped, None),
        (OutcomeUnknown("outcome_unknown", "?"), None, "journal_unavailable"),
        (NotFound("item_not_found", "?"), NotFound, "item_not_found"),
        (KeyError("a bug"), Internal, "internal_error"),
    ],
)
def test_senders_get_errors_that_they_can_act_on(
    error: BaseException, kind: type[Exception] | None, code: str | None
) -> None:
    answer = error_for_sender(error)
    assert kind is None or isinstance(answer, kind)
    assert getattr(answer, "code", None) == code
