"""An event loop for a whole cluster in one process: virtual time, and processes that can stand still or die.

Everything that is scheduled belongs to the process in whose context it was scheduled, or to the world (no process:
networks, stores, people). What belongs to a process that stands still is kept, in order, and runs when it wakes, timers
included: that is what SIGSTOP does to a real one. What belongs to a dead process is kept too and never runs; `bury`
ends it when nobody looks any more.

One run of a seed is the same in every process: nothing depends on addresses or on the hash seed (tasks hash by their
number, because asyncio keeps them in sets). There is no selector: real I/O has no place here.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import sys
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")


TICK_S = 1e-9  # a clock is never exactly where a timer was set: what rounds its time must not wait for ever
TURNS_MAX = 400_000  # a long day takes 20,000


class Deadlock(Exception):
    """Everything waits, and nothing will ever happen."""


class Process:
    """What stands still and dies as one. `context` is what its first task is made in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.standing = False
        self.dead = False
        self.still = False  # standing or dead: nothing of it runs
        self.parked: list[Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = copy_context()
        self.context.run(_PROCESS.set, self)

    def stop(self) -> None:
        self.standing = self.still = True

    def wake(self) -> None:
        """What was due meanwhile happens now, in the order in which it was due."""
        if self.dead:
            return
        self.standing = self.still = False
        parked, self.parked = self.parked, []
        loop = events.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.ready.extend(parked)

    def kill(self) -> None:
        self.dead = self.still = True

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return events.get_running_loop().create_task(work, context=self.context.copy())

    def left(self) -> list[asyncio.Task[Any]]:
        """Its tasks that have not ended."""
        return [task for task in self.tasks if not task.done()]

    def __repr__(self) -> str:
        return self.name


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def here() -> Process | None:
    """The process in whose name the present callback runs."""
    return _PROCESS.get()


class Handle:
    """What `call_soon` and `call_at` return; does for both."""

    __slots__ = ("args", "callback", "context", "gone", "process", "when")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, when: float) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.process = context.get(_PROCESS)
        self.when = when
        self.gone = False

    def cancel(self) -> None:
        self.gone = True
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.gone


class Task(asyncio.Task[T]):
    """Numbered, and known to its process."""

    def __init__(self, work: Coroutine[Any, Any, T], *, number: int, **more: Any) -> None:
        self._number = number  # first: the base class puts the task into a set
        super().__init__(work, **more)

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.AbstractEventLoop):
    """Give it `on_error` to hear of exceptions that nobody caught."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: deque[Handle] = deque()
        self.turns = 0
        self.on_error: Callable[[str, BaseException | None], None] = lambda message, error: None
        self._timers: list[tuple[float, int, Handle]] = []
        self._numbers = 0
        self._ended = False
        self._tasks: list[asyncio.Task[Any]] = []  # every task that was ever made
        self._world = Context()

    # -- what asyncio asks of a loop --------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._ended

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, context if context is not None else copy_context(), 0.0)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context if context is not None else copy_context(), when)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, handle))
        return handle

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """There are no threads: it has been done when this returns."""
        done = self.create_future()
        done.set_result(func(*args))
        return done

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, work: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        self._numbers += 1
        made: Task[T] = Task(work, number=self._numbers, loop=self, name=name or "", context=context)
        self._tasks.append(made)
        process = context.get(_PROCESS) if context is not None else _PROCESS.get()
        if process is not None:
            process.tasks.append(made)
            if len(process.tasks) > 2048:
                process.tasks = process.left()
        return made

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.on_error(str(context.get("message")), context.get("exception"))

    # -- the world --------------------------------------------------------------------------------------------------

    def in_world(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Something that no process does: it happens whoever stands still or is dead."""
        if delay_s <= 0:
            return self.call_soon(callback, *args, context=self._world)
        return self.call_at(self.now + delay_s, callback, *args, context=self._world)

    def world_context(self) -> Context:
        """For tasks that belong to no process."""
        return self._world.copy()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs `main`, which belongs to the world, to its end. Raises what it raises, or Deadlock."""
        hooks = sys.get_asyncgen_hooks()
        before = events._get_running_loop()
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finalize)
        try:
            task = self.create_task(main, context=self._world.copy())
            self._run(task)
            return task.result()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(before)

    def _finalize(self, generator: Any) -> None:
        if not self._ended:
            self.call_soon(lambda: self.create_task(generator.aclose()))

    def _run(self, main: asyncio.Task[Any]) -> None:
        ready, timers, pop = self.ready, self._timers, heapq.heappop
        while not main.done():
            if not ready:
                while timers and timers[0][2].gone:
                    pop(timers)
                if not timers:
                    raise Deadlock(f"at {self.now:.3f} s nothing is left to wait for")
                if timers[0][0] > self.now:
                    self.now = timers[0][0] + TICK_S
            now = self.now
            while timers and timers[0][0] <= now:
                ready.append(pop(timers)[2])
            self.turns += 1
            if self.turns > TURNS_MAX:
                raise Deadlock(f"at {self.now:.3f} s: {TURNS_MAX} turns of the loop, and no end")
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle.gone:
                    continue
                process = handle.process
                if process is not None and process.still:
                    process.parked.append(handle)
                    continue
                try:
                    handle.context.run(handle.callback, *handle.args)  # type: ignore[arg-type]
                except Exception as error:  # noqa: BLE001 - told to whoever watches, as asyncio does
                    self.on_error(f"in {handle.callback!r}", error)

    def bury(self) -> None:
        """Ends the tasks that are left, without running anything of the loop."""
        self._ended = True
        self.on_error = lambda message, error: None
        self.ready.clear()
        self._timers.clear()
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what their `finally` begins now is never awaited
                closed: set[int] = set()
                while left := [task for task in self._tasks if not task.done() and hash(task) not in closed]:
                    for task in left:
                        closed.add(hash(task))
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                        work = task.get_coro()
                        for _ in range(16):  # each `await` in a `finally` refuses once
                            with contextlib.suppress(BaseException):
                                work.close()
                                break
                    self.ready.clear()
        finally:
            events._set_running_loop(before)
