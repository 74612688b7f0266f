"""Joins copies of a command: one that comes while the first is being answered gets the same answer.

The session's actor answers copies of a command that was applied, whenever they come (`sessions.model.request`). This
module is for commands that are refused: while a refusal is confirmed with the journal, the session goes on, and a copy
that was looked at by itself might be applied after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sessions.model.commands import Ok
from sessions.model.request import Request
from sessions.model.types import CommandId, SessionKey


class _InflightCommand(NamedTuple):
    digest: bytes
    answer: asyncio.Future[Ok]


class InflightCommands:
    """The commands that one replica is answering now."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[SessionKey, str, CommandId], _InflightCommand] = {}

    async def join(self, request: Request) -> Ok | None:
        """Waits for a request equal to this one that is under way, and returns or raises its answer. Returns None if
        there is none, or it was cancelled and no other copy has taken its place."""
        while (first := self._under_way.get(_name(request))) is not None and first.digest == request.digest:
            await asyncio.wait((first.answer,))
            if not first.answer.cancelled():
                return first.answer.result()
        return None

    @contextmanager
    def answering(self, request: Request) -> Iterator[list[Ok]]:
        """Surrounds the execution of a request. Its copies get the answer that is appended to the yielded list, or what
        is raised inside. If another command with the same id is under way, copies are not joined: it is for the session
        to refuse one of the two."""
        name = _name(request)
        own = _InflightCommand(request.digest, asyncio.get_running_loop().create_future())
        self._under_way.setdefault(name, own)
        answers: list[Ok] = []
        try:
            yield answers
            own.answer.set_result(answers[0])
        except Exception as error:
            own.answer.set_exception(error)
            own.answer.exception()  # retrieved: there may be no copy
            raise
        finally:
            own.answer.cancel()  # does nothing if it has ended
            if self._under_way.get(name) is own:
                del self._under_way[name]
            del own  # it holds the error, whose traceback holds this frame


def _name(request: Request) -> tuple[SessionKey, str, CommandId]:
    return request.key, request.principal.id, request.command.id
