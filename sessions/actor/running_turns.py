"""The tasks that write one session's open responses, one for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from sessions.actor.weak_calls import WeakCall
from sessions.model.types import ResponseId
from sessions.turn.generation_task import ENGINE_PATIENCE_S, GenerationTask


class RunningTurns:
    """The tasks that write the open responses of one actor: stops and awaits them."""

    def __init__(self, log: Any, on_end: Callable[[], None]) -> None:
        """`on_end` is called each time that a task has ended."""
        self._log = log
        self._on_end = WeakCall(on_end)
        self._turns: dict[ResponseId, GenerationTask] = {}
        # Public, because the actor reads it for each token:
        self.running: dict[ResponseId, asyncio.Task[None]] = {}

    @property
    def is_generating(self) -> bool:
        """Whether an engine has produced a token for at least one open response."""
        return any(turn.begun for turn in self._turns.values())

    @property
    def generated(self) -> int:
        """How many tokens the runs under way have produced in all."""
        return sum(turn.generated for turn in self._turns.values())

    def tasks(self, responses: Iterable[ResponseId] | None = None) -> list[asyncio.Task[None]]:
        """Returns the running tasks of these responses; those of all if `responses` is None."""
        return [task for name in (self.running if responses is None else responses) if (task := self.running.get(name))]

    def add(self, turn: GenerationTask, task: asyncio.Task[None]) -> None:
        """Adds a turn whose `run` is the task `task`."""
        self._turns[turn.response_id] = turn
        self.running[turn.response_id] = task
        task.add_done_callback(lambda _: self._ended(turn))

    def stop(self, response_id: ResponseId) -> None:
        task = self.running.get(response_id)
        if task is not None:
            task.cancel()

    def stop_all(self) -> None:
        for response_id in list(self.running):
            self.stop(response_id)

    async def join(self) -> None:
        """Waits until the engine has let go of all runs. A run that takes too long is not waited for any more, and its
        output is dropped."""
        if self.running:
            late = (await asyncio.wait(list(self.running.values()), timeout=ENGINE_PATIENCE_S))[1]
            if late:
                self._log.error("engine_stop_timed_out", turns=len(late))

    def _ended(self, turn: GenerationTask) -> None:
        if self._turns.get(turn.response_id) is turn:
            del self._turns[turn.response_id]
            del self.running[turn.response_id]
            self._on_end()
