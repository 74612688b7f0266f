"""Group commit: batches, order, bounds, cancellation, pacing, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from persistence.group_commit import GroupCommit, GroupLimits, Write
from sessions.model.errors import Unavailable
from sessions.model.types import SessionId, SessionKey, TenantId


def a_write(session: str, *, rows: int = 1, size: int = 1) -> Write:
    return Write(SessionKey(TenantId("t"), SessionId(session)), rows=rows, size=size)


class Store:
    """Takes batches one after another; each waits for `gate` where one is set."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.results: dict[str, Any] = {}

    async def commit(self, writes: Sequence[Write]) -> list[object]:
        self.batches.append([write.key.session for write in writes])
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        return [self.results.get(write.key.session) for write in writes]


def a_group(store: Store, **limits: Any) -> GroupCommit:
    group = GroupCommit(store.commit, GroupLimits(**{"pace_s": 0.0, **limits}))
    group.start()
    return group


def submit(group: GroupCommit, *writes: Write) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(group.submit(write)) for write in writes]


async def behind_the_gate(store: Store, group: GroupCommit, *writes: Write) -> list[asyncio.Future[Any]]:
    """Puts writes into the queue while a first batch is being committed; the caller opens the gate."""
    store.gate = asyncio.Event()
    tasks = submit(group, a_write("first"))
    await store.entered.wait()
    tasks += submit(group, *writes)
    await asyncio.sleep(0)
    return tasks


async def test_a_write_that_is_cancelled_during_its_commit_hurts_nobody() -> None:
    store = Store()
    group = a_group(store)
    tasks = await behind_the_gate(store, group, a_write("a"))
    tasks[0].cancel()
    assert store.gate is not None
    store.gate.set()
    assert await tasks[1] is None
    assert tasks[0].cancelled()
    await group.stop()


async def test_stop_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    store = Store()
    group = a_group(store)
    tasks = await behind_the_gate(store, group, a_write("a"), a_write("a"))
    stopping = asyncio.ensure_future(group.stop())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await group.submit(a_write("b"))
    assert store.gate is not None
    store.gate.set()
    await stopping
    assert all(task.done() and task.exception() is None for task in tasks)
    assert store.batches == [["first"], ["a"], ["a"]]
    await group.stop()
