"""Waits at a start for what the process needs and what is away: the journal, the directory.

A process that starts before its database is alive and not ready: `readiness` says what it waits for, the log says it at
each attempt, with growing pauses. It waits without an end, because nobody restarts a process that is not supervised.
Only what may mend by itself is waited for; a wrong password or address ends the start with a sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from sessions.backoff import Backoff
from sessions.model.errors import Unavailable
from transport.cli.start.start_stopped import StartStopped

FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 15.0

WITHOUT_END: Final = "the start waits without an end, until it answers; Ctrl-C or SIGTERM gives up"

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Startup:
    """The start of one process. `reach` is called for one dependency after the other, then `finish`."""

    def __init__(self, stop: asyncio.Event, *, first_s: float = FIRST_S, rng: random.Random | None = None) -> None:
        """`stop` ends the waiting when it is set. `first_s` is the first pause between two attempts, in seconds; `rng`
        varies the pauses (`Backoff`)."""
        self._stop = stop
        self._first_s = first_s
        self._rng = rng
        self._reason: str | None = "starting"
        self._running: Callable[[], str | None] = lambda: None

    def readiness(self) -> str | None:
        """Returns why no traffic is wanted at the moment; None if it is wanted. The text names no address, because
        strangers may read it."""
        return self._reason or self._running()

    async def reach(self, name: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Calls `attempt` until it succeeds, and returns its result. Raises StartStopped when `stop` is set, and at
        once every error that is not a retryable Unavailable. `name` is the dependency, for the log."""
        backoff = Backoff(self._first_s, PAUSE_MAX_S, self._rng)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        waited = False
        while True:
            try:
                result = await attempt()
            except Unavailable as error:
                if not error.retryable:
                    raise
                pause_s, waited = backoff.next_s(), True
                self._reason = f"waiting for the {name}"
                log.warning(
                    "dependency_awaited",
                    name=name,
                    error=error.public_message,
                    waited_s=round(loop.time() - begun, 1),
                    next_try_s=round(pause_s, 1),
                    hint=WITHOUT_END,
                )
            else:
                self._reason = "starting"
                if waited:
                    log.info("dependency_reached", name=name, after_s=round(loop.time() - begun, 1))
                return result
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            if self._stop.is_set():
                raise StartStopped

    def finish(self, running: Callable[[], str | None]) -> None:
        """Notes that the process has started. From now on `readiness` returns what `running` returns."""
        self._reason, self._running = None, running
