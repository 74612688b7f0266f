"""Joins copies of a command: one that comes while the first is being answered gets the same answer.

The session's actor answers copies of a command that was applied, whenever they come (`sessions.model.request`). This
module is for commands that are refused: while a refusal is confirmed with the journal, the session goes on, and a copy
that was looked at by itself might be applied after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
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

    async def find(self, request: Request) -> Ok | None:
        """Returns or raises the answer of a request equal to this one that is under way. Returns None at once if there
        is none, and later if that one is cancelled."""
        while (first := self._under_way.get(_name(request))) is not None and first.digest == request.digest:
            await asyncio.wait((first.answer,))
            if not first.answer.cancelled():
                return first.answer.result()
        return None

    @contextmanager
    def answering(self, request: Request) -> Iterator[Callable[[Ok], Ok]]:
        """Surrounds the execution of a request, whose copies get what is passed to the yielded function, or what is
        raised inside. If another command with the same id is under way, copies are not joined: it is for the session to
        refuse one of the two."""
        name, future = _name(request), asyncio.get_running_loop().create_future()
        own = [_InflightCommand(request.digest, future)]
        self._under_way.setdefault(name, own[0])

        def answered(ok: Ok) -> Ok:
            own[0].answer.set_result(ok)
            return ok

        try:
            yield answered
        except Exception as error:
            future.set_exception(error)
            future.exception()  # retrieved: there may be no copy
            raise
        finally:
            future.cancel()  # does nothing if there is an answer
            if self._under_way[name] is own[0]:
                del self._under_way[name]
            own.clear()  # it holds the error, whose traceback holds this frame
            del future


def _name(request: Request) -> tuple[SessionKey, str, CommandId]:
    return request.key, request.principal.id, request.command.id
