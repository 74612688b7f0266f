"""A request in an actor's mailbox, and the errors that its sender gets in place of an answer.

Every accepted request is answered exactly once (I7), whatever happens to the actor that carries it.
"""

from __future__ import annotations

import asyncio

import msgspec

from sessions.actor.model_router import ModelSwitchPlan
from sessions.model.commands import Ok
from sessions.model.errors import Fenced, Internal, SessileError, Unavailable
from sessions.model.request import Request


class ActorStopped(Exception):
    """The actor takes no commands any more; senders look the session up again."""


class ModelSwitch(Exception):
    """The turn is for another model: the session goes there first (`plan`), and its sender repeats the command."""

    def __init__(self, plan: ModelSwitchPlan) -> None:
        super().__init__(plan.model)
        self.plan = plan


class Envelope(msgspec.Struct, frozen=True):
    request: Request
    answer: asyncio.Future[Ok]
    stays: str = ""  # why its turn is not to be for another model

    def reply(self, answer: Ok | BaseException) -> None:
        """Completes the sender's wait; no effect when it was answered before or gave up."""
        if self.answer.done():
            return
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


def error_for_sender(error: BaseException) -> Exception:
    """The error that the sender of a request gets when it could not be carried through."""
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
