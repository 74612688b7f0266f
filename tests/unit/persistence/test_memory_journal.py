"""The memory journal's own part: what lies between a caller and the store, and a store that several processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from sessions.model.errors import Fenced
from sessions.model.journal_types import Head
from sessions.model.types import Epoch, SessionKey
from tests.support.stores.stores import NOW, append, key, top_of


async def grant(journal: MemoryJournal, fence: int | None = None, epoch: str = "e") -> Head:
    return await journal.grant(key(), expected_fence=fence, owner="o", new_epoch=Epoch(epoch), now_ms=NOW)


async def opened(store: MemoryDatabase, **settings: Any) -> MemoryJournal:
    journal = MemoryJournal(store, **settings)
    await journal.open()
    return journal


async def test_a_slow_effect_is_fenced_by_what_happened_meanwhile() -> None:
    """A paused owner: its append arrives after another one was granted the session."""
    store = MemoryDatabase()
    released = asyncio.Event()

    async def slow(call: str, key: SessionKey | None, effect: Callable[[], Any]) -> Any:
        if call == "append":
            await released.wait()
        return effect()

    sleeper, other = await opened(store, medium=slow), await opened(store)
    head = await grant(sleeper)
    late = asyncio.ensure_future(append(sleeper, head, 0))
    new = await grant(other, fence=1)
    released.set()
    with pytest.raises(Fenced):
        await late
    await append(other, new, 0)
    assert await top_of(sleeper) == 1
