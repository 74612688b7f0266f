"""Lets pieces of work on the event loop take turns, so that one at a time runs before the loop looks around again.

The loop runs everything that is ready before it looks at timers and sockets: when a hundred requests come at once, each
of which takes a millisecond to parse, nothing else happens for a tenth of a second, and all hundred parsed bodies are
in memory together. With turns the loop comes round after each:

    ready at once        a1 a2 a3 b1
    without turns        a1 a2 a3 b1 | timers, sockets | ...
    with turns           a1 | timers, sockets | b1 | timers, sockets | a2 | ...

Callers with work that waits are served in rotation, so that a hundred requests of one do not come before another's
single one. Work that asks for a turn while it has one goes on at once. A turn ends when the loop comes round; nobody
gives it back.

Does not know what the work is, or how long it takes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable


class LoopTurns:
    """The turns of all callers on one event loop."""

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()  # the next caller's comes first
        self._holder: asyncio.Task[object] | None = None
        self._taken = False  # whether somebody has had this round's turn

    @property
    def num_waiting(self) -> int:
        """How many pieces of work wait for their turn."""
        return sum(map(len, self._lines.values()))

    async def turn(self, caller: Hashable) -> None:
        """Waits until this task may run a piece of work for `caller`."""
        task = asyncio.current_task()
        if self._holder is task:
            return
        if not self._taken:
            self._taken = True
            asyncio.get_running_loop().call_soon(self._advance)
        else:
            waiting = asyncio.get_running_loop().create_future()
            self._lines.setdefault(caller, deque()).append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                self._leave(caller, waiting)
                raise
        self._holder = task

    def _advance(self) -> None:
        """Ends the turn, and begins the next one."""
        self._holder = None
        while self._lines:
            caller, line = self._lines.popitem(last=False)
            waiting = line.popleft()
            if line:
                self._lines[caller] = line
            if not waiting.done():  # else its task is cancelled and has not run since
                waiting.set_result(None)
                waiting.get_loop().call_soon(self._advance)  # behind the task that was woken
                return
        self._taken = False

    def _leave(self, caller: Hashable, waiting: asyncio.Future[None]) -> None:
        line = self._lines.get(caller)
        if line is not None and waiting in line:
            line.remove(waiting)
            if not line:
                del self._lines[caller]
