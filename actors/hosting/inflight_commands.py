"""Joins copies of a command: one that comes while the first is being answered gets the same answer.

The session's actor answers copies of a command that was applied, whenever they come (`sessions.model.request`). This
module is for commands that are refused: while a refusal is confirmed with the journal, the session goes on, and a copy
that was looked at by itself might be applied after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from sessions.model.commands import Ok
from sessions.model.request import Request
from sessions.model.types import CommandId, SessionKey


class _InflightCommand(NamedTuple):
    digest: bytes
    answer: asyncio.Future[Ok]


class InflightCommands:
    def __init__(self) -> None:
        self._under_way: dict[tuple[SessionKey, str, CommandId], _InflightCommand] = {}

    async def execute_once(self, request: Request, execute: Callable[[], Awaitable[Ok]]) -> Ok:
        """Returns or raises what `execute` does; for a request equal to one that is under way, what that one's
        `execute` does. If that one is cancelled, the copy runs its own."""
        name = (request.key, request.principal.id, request.command.id)
        while (first := self._under_way.get(name)) is not None and first.digest == request.digest:
            await asyncio.wait((first.answer,))
            if not first.answer.cancelled():
                return first.answer.result()
        if first is not None:  # another command under the same id: for the session to refuse
            return await execute()
        own = self._under_way[name] = _InflightCommand(request.digest, asyncio.get_running_loop().create_future())
        try:
            answer = await execute()
        except Exception as error:
            own.answer.set_exception(error)
            own.answer.exception()  # retrieved: there may be no copy
            raise
        except BaseException:
            own.answer.cancel()
            raise
        else:
            own.answer.set_result(answer)
            return answer
        finally:
            del self._under_way[name]
            del own  # holds the error, whose traceback holds this frame
