"""One answer for a command that is sent twice: a copy that comes while the first is being answered gets its answer.

The log answers copies of what was applied, whenever they come. This is for what is refused: while a refusal waits for
the journal's word, the session goes on, and a copy that is looked at by itself might be applied after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _InflightCommand(NamedTuple, Generic[T]):
    command: object
    answer: asyncio.Future[T]


class InflightCommands(Generic[T]):
    def __init__(self) -> None:
        self._under_way: dict[Hashable, _InflightCommand[T]] = {}

    async def execute_once(self, name: Hashable, command: object, answer: Callable[[], Awaitable[T]]) -> T:
        """What `answer` returns or raises, or what it did for an equal command of this name that is under way. A copy
        whose first is cancelled goes on by itself."""
        while (first := self._under_way.get(name)) is not None and first.command == command:
            await asyncio.wait((first.answer,))
            if not first.answer.cancelled():
                return first.answer.result()
        if first is not None:  # another command under the same name: for the session to refuse
            return await answer()
        mine = self._under_way[name] = _InflightCommand(command, asyncio.get_running_loop().create_future())
        try:
            answered = await answer()
        except Exception as error:
            mine.answer.set_exception(error)
            mine.answer.exception()  # looked at: there may be no copy
            raise
        except BaseException:
            mine.answer.cancel()
            raise
        else:
            mine.answer.set_result(answered)
            return answered
        finally:
            del self._under_way[name]
            del mine  # holds the error, whose traceback holds this frame
