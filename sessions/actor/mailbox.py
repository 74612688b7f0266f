"""A command on its way through an actor, and its sender's error where it could not be carried through.

Every accepted letter is answered exactly once (I7), whatever happens to the actor that carries it.
"""

from __future__ import annotations

import asyncio

import msgspec

from sessions.model import commands as cm
from sessions.model.errors import Fenced, Internal, SessileError, Unavailable
from sessions.model.types import Principal


class ActorStopped(Exception):
    """The actor takes no commands any more; whoever sent one looks the session up again."""


class Envelope(msgspec.Struct, frozen=True):
    principal: Principal
    command: cm.ActorCommand
    answer: asyncio.Future[cm.Ok]

    def reply(self, answer: cm.Ok | BaseException) -> None:
        """Answers, unless that has happened, or nobody waits any more."""
        if self.answer.done():
            return
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


def error_for_sender(error: BaseException) -> Exception:
    """The error for a command's sender when it could not be carried through."""
    if isinstance(error, Fenced | asyncio.CancelledError):
        return ActorStopped()
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
