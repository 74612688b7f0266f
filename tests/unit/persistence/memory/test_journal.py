"""The memory journal's own part: what lies between a caller and the store, and a store that several processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from sessions.model.errors import Fenced, OutcomeUnknown, Unavailable
from sessions.model.journal_types import Head
from sessions.model.types import Epoch, SessionKey
from tests.support.stores.stores import NOW, append, key, top_of


async def grant(journal: MemoryJournal, fence: int | None = None, epoch: str = "e") -> Head:
    return await journal.grant(key(), expected_fence=fence, owner="o", new_epoch=Epoch(epoch), now_ms=NOW)


async def opened(store: MemoryDatabase, **settings: Any) -> MemoryJournal:
    journal = MemoryJournal(store, **settings)
    await journal.open()
    return journal


async def test_a_medium_decides_when_an_effect_happens_and_what_is_heard_of_it() -> None:
    heard: list[tuple[str, SessionKey | None]] = []
    fate = "well"

    async def medium(call: str, key: SessionKey | None, effect: Callable[[], Any]) -> Any:
        heard.append((call, key))
        if fate == "never arrives":
            raise Unavailable("journal_away", "no")
        result = effect()
        if fate == "answer lost":
            raise OutcomeUnknown("journal_outcome_unknown", "?")
        return result

    journal = await opened(MemoryDatabase(), medium=medium)
    head = await grant(journal)
    fate = "never arrives"
    with pytest.raises(Unavailable):
        await append(journal, head, 0)
    fate = "well"
    assert await top_of(journal) == 0
    fate = "answer lost"
    with pytest.raises(OutcomeUnknown):
        await append(journal, head, 0)
    fate = "well"
    assert await top_of(journal) == 1
    with pytest.raises(Fenced):
        await append(journal, head, 0)
    assert heard == [("open", None), ("grant", key()), *[("append", key()), ("head", key())] * 2, ("append", key())]


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


async def test_a_cancelled_call_has_no_effect_before_its_medium_gave_it_one() -> None:
    async def never(call: str, key: SessionKey | None, effect: Callable[[], Any]) -> Any:
        await asyncio.get_running_loop().create_future()

    store = MemoryDatabase()
    healthy, stuck = await opened(store), MemoryJournal(store, medium=never)
    stuck._open = True
    head = await grant(healthy)
    task = asyncio.ensure_future(append(stuck, head, 0))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await top_of(healthy) == 0


async def test_a_journal_dies_and_its_store_lives() -> None:
    store = MemoryDatabase()
    first = await opened(store)
    await append(first, await grant(first), 0)
    await first.close()
    second = await opened(store)
    assert (await top_of(second), second.incarnation) == (1, first.incarnation)
