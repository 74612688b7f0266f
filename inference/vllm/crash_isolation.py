"""Isolates sessions that ran when vLLM died: they run again one at a time, until each has emitted something.

One of them may be what vLLM died of. Alone, it takes only those with it that have emitted something since, whose
sessions have come further by that, and whoever came for the first time; and its own session, which gets nowhere, is
given up after a few deaths (`quarantined`). Knows of this vLLM alone: what another replica takes over begins there at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable

from sessions.model.types import SessionKey


class CrashIsolation:
    def __init__(self) -> None:
        self._suspects: set[SessionKey] = set()
        self._alone = asyncio.Lock()

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._suspects

    def suspect(self, keys: Iterable[SessionKey]) -> None:
        self._suspects.update(keys)

    def forget(self, key: SessionKey) -> None:
        """Drops a deleted session."""
        self._suspects.discard(key)

    @contextlib.asynccontextmanager
    async def of(self, key: SessionKey) -> AsyncIterator[Callable[[], None]]:
        """Surrounds a run of a session. A suspect (a session that ran when vLLM died) waits until no other suspect
        runs. The caller calls the yielded function when the run has emitted something; a suspect whose run ends without
        that stays one."""
        held = key in self._suspects
        if held:
            await self._alone.acquire()

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self._alone.release()

        def passed() -> None:
            if held:
                self._suspects.discard(key)
                release()

        try:
            yield passed
        finally:
            release()
