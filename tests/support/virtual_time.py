"""An asyncio loop on virtual time: waiting costs nothing, and every run of a test is the same run.

When nothing is ready the clock jumps to the next timer. A program that waits for something which no timer and no
callback will ever bring is told so (`Deadlock`) instead of hanging. Tasks hash by their number, because asyncio keeps
them in sets and a set of addresses has another order in every process.

    @virtual                        async test functions, fixtures as usual
    run(main())                     like asyncio.run
    await settled()                 until all that can happen without time passing has happened
    await advance(1.5)              until so much later, and then settled

Real file descriptors are polled and never waited for, so real I/O has no place under this loop.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Deadlock(Exception):
    """Everything waits, and nothing will ever happen."""


class _Clock(selectors.DefaultSelector):
    """A selector whose waiting moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.quiet: list[asyncio.Future[None]] = []  # wait until nothing is ready

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.quiet:
            waiters, self.quiet = self.quiet, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        elif timeout is None:
            raise Deadlock(f"at {self.now:.3f} s: no timer, no callback, nothing to wait for")
        else:
            self.now += timeout
        return []


class _Task(asyncio.Task[T]):
    def __init__(self, work: Coroutine[Any, Any, T], *, number: int, **more: Any) -> None:
        self._number = number  # first: the base class puts the task into a set
        super().__init__(work, **more)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _Clock()
        self._tasks_made = 0
        super().__init__(self.clock)
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]  # the stub knows no subclass of Task

    def time(self) -> float:
        return self.clock.now

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **more: Any) -> _Task[T]:
        self._tasks_made += 1
        return _Task(work, loop=loop, number=self._tasks_made, **more)


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on virtual time. Tasks that are left over are cancelled, and so is whatever they began."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        while left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left))
            for task in left:
                if not task.cancelled():
                    task.exception()  # a test that failed has said so; what failed after it is not news
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Makes a plain test of an async one: it runs in virtual time."""

    @functools.wraps(test)
    def plain(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return plain


async def settled() -> None:
    """Returns once nothing more happens at the present moment."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    waiter: asyncio.Future[None] = loop.create_future()
    loop.clock.quiet.append(waiter)
    await waiter


async def advance(seconds: float) -> None:
    """Lets so much time pass, with everything that happens in it."""
    await passed(seconds)
    await settled()


async def passed(seconds: float) -> None:
    """Returns so much later; what else is to happen at that moment may come before or after."""
    due = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(seconds, due.set)
    try:
        await due.wait()
    finally:
        timer.cancel()


async def until(condition: Callable[[], bool], *, step_s: float = 0.001, limit_s: float = 600.0) -> None:
    """Waits for a condition, looking at it every `step_s`. Raises TimeoutError after `limit_s` of virtual time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not condition():
        if loop.time() >= deadline:
            raise TimeoutError(f"never true in {limit_s} s of virtual time")
        await advance(step_s)


async def outcome(work: Awaitable[T]) -> T | Exception:
    """What `work` returns or raises, as a value."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - the caller looks at it
        return error
