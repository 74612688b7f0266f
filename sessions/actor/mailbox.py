"""An actor's mailbox, the requests in it, and the errors that senders get if their request is not carried out.

Every accepted request is answered exactly once (I7), whatever happens to the actor that has it.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from sessions.actor.model_router import ModelSwitchPlan
from sessions.model import commands as cm
from sessions.model.commands import Ok
from sessions.model.errors import Fenced, Internal, Overloaded, SessileError, Unavailable
from sessions.model.request import Request

CONTROL: Final = cm.ResponseCancel | cm.ResponseSteer | cm.SessionWarm


class ActorStopped(Exception):
    """Raised when the actor takes no commands any more; senders then look the session up again."""


class ModelSwitch(Exception):
    """Raised if a turn is for another model: the session is moved there first, by `plan`, and then the command is sent
    again."""

    def __init__(self, plan: ModelSwitchPlan) -> None:
        super().__init__(plan.model)
        self.plan = plan


class Envelope(msgspec.Struct, frozen=True):
    request: Request
    answer: asyncio.Future[Ok]
    keep_model: str = ""  # why its turn must stay with this model

    def reply(self, answer: Ok | BaseException) -> None:
        """Gives the sender its answer or error. Does nothing if it has one already, or does not wait any more."""
        if self.answer.done():
            return
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class Mailbox:
    """The requests that wait for one actor. Those of the control lane (cancel, steer, warm) come before those of the
    data lane."""

    def __init__(self, capacity: int) -> None:
        """`capacity` is the number of requests that each lane holds."""
        self._capacity = capacity
        # Lists, although the front is taken: they are short, and each empty deque takes 600 bytes.
        self.control: list[Envelope] = []
        self.data: list[Envelope] = []

    def __len__(self) -> int:
        return len(self.control) + len(self.data)

    def put(self, envelope: Envelope) -> None:
        """Adds a request to its lane. Raises Overloaded when the lane is full."""
        lane = self.control if isinstance(envelope.request.command, CONTROL) else self.data
        if len(lane) >= self._capacity:
            raise mailbox_full_error()
        lane.append(envelope)

    def answer_all(self, error: Exception) -> None:
        """Answers every waiting request with an error and empties both lanes."""
        for envelope in (*self.control, *self.data):
            envelope.reply(error)
        self.control.clear()
        self.data.clear()


def mailbox_full_error() -> Overloaded:
    return Overloaded("mailbox_full", "Too many commands wait in this session.", retry_after_ms=500)


def error_for_sender(error: BaseException) -> Exception:
    """Returns the error that a request's sender gets if `error` prevented the request."""
    if isinstance(error, Fenced | asyncio.CancelledError):
        return ActorStopped()
    if isinstance(error, ModelSwitch):
        return error
    if isinstance(error, Unavailable):
        return journal_unavailable_error()
    if isinstance(error, SessileError):
        return error
    return Internal("internal_error", "This session failed on our side. Repeat the command by its id.", retryable=True)


def journal_unavailable_error() -> Unavailable:
    return Unavailable(
        "journal_unavailable",
        "The journal does not answer; nothing was lost. Repeat the command by its id.",
        retry_after_ms=1_000,
    )
