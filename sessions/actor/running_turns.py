"""The tasks that write one session's open responses, one for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from sessions.actor.actor_context import ActorContext
from sessions.actor.weak_calls import weakly
from sessions.model.types import ResponseId
from sessions.turn.attempts import GenerationRun
from sessions.turn.generation_task import GenerationTask
from sessions.turn.ledger import Ledger
from sessions.turn.output_accumulator import Inbox

ENGINE_PATIENCE_S: Final = 5.0


class RunningTurns:
    """The tasks that write the open responses of one actor: starts, stops and awaits them."""

    def __init__(self, ledger: Ledger, context: ActorContext, log: Any, on_end: Callable[[], None]) -> None:
        """`on_end` is called each time that a task has ended."""
        self._ledger = ledger
        self._context = context
        self._log = log
        self._on_end = weakly(on_end)
        self._turns: dict[ResponseId, GenerationTask] = {}
        self.running: dict[ResponseId, asyncio.Task[None]] = {}  # read for each token

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

    def start(self, run: GenerationRun, behind: ResponseId | None, inbox: Inbox) -> None:
        """Starts to write a response into `inbox`. `behind` is the response whose text it goes on from, None if there
        is none; the run begins only once the engine has let go of that one, whose KV it then finds."""
        context = self._context
        turn = GenerationTask(
            run,
            self._ledger,
            engine=context.engine,
            schemas=context.schemas,
            filters=context.filters,
            inbox=inbox,
            limits=context.limits.turn,
            metrics=context.metrics,
        )
        self._turns[turn.response_id] = turn
        ending = None if behind is None else self.running.get(behind)
        task = self.running[turn.response_id] = context.spawn(turn.run() if ending is None else _behind(ending, turn))
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


async def _behind(ending: asyncio.Task[None], turn: GenerationTask) -> None:
    await asyncio.wait((ending,), timeout=ENGINE_PATIENCE_S)
    await turn.run()
