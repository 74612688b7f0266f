"""Lets pieces of work on the event loop take turns, so that the loop looks around again after a little of it.

The loop runs everything that is ready before it looks at timers and sockets: when a hundred requests come at once, each
of which takes a millisecond to parse, nothing else happens for a tenth of a second, and all hundred parsed bodies are
in memory together. With turns the loop comes round in between:

    ready at once        a1 a2 a3 b1, all of them large
    without turns        a1 a2 a3 b1 | timers, sockets | ...
    with turns           a1 | timers, sockets | b1 | timers, sockets | a2 | ...

A piece weighs as many bytes as it is about, `PIECE_BYTES` at least. A round has room for `ROUND_BYTES`, or for one
piece that is larger. Callers whose work waits are served in rotation, so that a hundred requests of one do not come
before another's single one. Work that asks for a turn while it has one goes on at once, and weighs all the same. A turn
ends when the loop comes round; nobody gives it back.

Does not know what the work is, or how long it takes: bytes stand for that, so that it is the same on every machine.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final, NamedTuple

ROUND_BYTES: Final = 64 * 1024
PIECE_BYTES: Final = 16 * 1024


class _Waiting(NamedTuple):
    """A piece of work that waits for its turn."""

    woken: asyncio.Future[None]
    weight: int


class LoopTurns:
    """The turns of all callers on one event loop."""

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, deque[_Waiting]] = OrderedDict()  # the next caller's comes first
        self._holders = set[asyncio.Task[object] | None]()  # tasks that have their turn in this round
        self._left = ROUND_BYTES  # in this round
        self._scheduled = False  # whether `_advance` comes

    @property
    def num_waiting(self) -> int:
        """How many pieces of work wait for their turn."""
        return sum(map(len, self._lines.values()))

    async def turn(self, caller: Hashable, size: int = 0) -> None:
        """Waits until this task may run a piece of work about `size` bytes for `caller`."""
        task, weight = asyncio.current_task(), max(size, PIECE_BYTES)
        if task in self._holders or (self._left > 0 and not self._lines):
            self._left -= weight
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._advance)
        else:
            waiting = _Waiting(asyncio.get_running_loop().create_future(), weight)
            self._lines.setdefault(caller, deque()).append(waiting)
            try:
                await waiting.woken
            except asyncio.CancelledError:
                self._leave(caller, waiting)
                raise
        self._holders.add(task)

    def _advance(self) -> None:
        """Ends the turns of this round, and begins those of the next one."""
        self._holders.clear()
        self._left = ROUND_BYTES
        woken = None
        while self._lines and self._left > 0:
            caller, line = self._lines.popitem(last=False)
            waiting = line.popleft()
            if line:
                self._lines[caller] = line
            if not waiting.woken.done():  # else its task is cancelled and has not run since
                woken = waiting.woken
                woken.set_result(None)
                self._left -= waiting.weight
        self._scheduled = woken is not None
        if woken is not None:
            woken.get_loop().call_soon(self._advance)  # behind the tasks that were woken

    def _leave(self, caller: Hashable, waiting: _Waiting) -> None:
        line = self._lines.get(caller)
        if line is not None and waiting in line:
            line.remove(waiting)
            if not line:
                del self._lines[caller]
