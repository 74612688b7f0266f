"""Group commit: batches, order, bounds, cancellation, pacing, the end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from persistence.group_commit import GroupCommit, GroupLimits, Write
from sessions.model.errors import OutcomeUnknown, Overloaded, Unavailable
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.virtual_time import virtual


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


async def test_what_comes_during_a_commit_is_the_next_batch_and_a_session_is_in_it_once() -> None:
    store = Store()
    group = a_group(store)
    tasks = await behind_the_gate(store, group, *(a_write(s) for s in ("b", "a", "b", "c", "b", "a")))
    assert store.gate is not None
    store.gate.set()
    await asyncio.gather(*tasks)
    assert store.batches == [["first"], ["a", "b", "c"], ["a", "b"], ["b"]]
    await group.stop()


async def test_a_batch_is_bounded_in_writes_rows_and_bytes() -> None:
    store = Store()
    group = a_group(store, batch_writes_max=3, batch_rows_max=10, batch_bytes_max=100)
    tasks = await behind_the_gate(
        store,
        group,
        *(a_write(s) for s in "abcd"),
        *(a_write(s, rows=5) for s in "efg"),
        *(a_write(s, size=60) for s in "hi"),
        a_write("j", rows=99, size=9999),  # too much for any batch: alone in its own
        a_write("k"),
    )
    assert store.gate is not None
    store.gate.set()
    await asyncio.gather(*tasks)
    assert store.batches[1:] == [["a", "b", "c"], ["d", "e"], ["f", "g"], ["h"], ["i"], ["j"], ["k"]]
    await group.stop()


@pytest.mark.parametrize("limits", [{"pending_writes_max": 2}, {"pending_bytes_max": 20}])
async def test_a_full_queue_refuses_and_takes_again_when_it_has_room(limits: dict[str, int]) -> None:
    store = Store()
    group = a_group(store, **limits)
    tasks = await behind_the_gate(store, group, a_write("a", size=10), a_write("b", size=10))
    with pytest.raises(Overloaded):
        await group.submit(a_write("c", size=1))
    assert store.gate is not None
    store.gate.set()
    await asyncio.gather(*tasks)
    await group.submit(a_write("c", size=10))
    await group.stop()


async def test_a_write_that_is_cancelled_in_the_queue_is_taken_back() -> None:
    store = Store()
    group = a_group(store, pending_bytes_max=10)
    tasks = await behind_the_gate(store, group, a_write("a", size=5), a_write("b", size=5))
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert store.gate is not None
    store.gate.set()
    await asyncio.gather(tasks[0], tasks[2])
    assert store.batches == [["first"], ["b"]]
    await group.submit(a_write("c", size=10))  # and its bytes count no more
    await group.stop()


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


async def test_a_bug_in_the_store_answers_its_batch_and_the_next_one_runs() -> None:
    fails = [True]

    async def commit(writes: Sequence[Write]) -> list[object]:
        if fails.pop():
            raise KeyError("bug")
        return [None] * len(writes)

    fails.insert(0, False)
    group = GroupCommit(commit, GroupLimits(pace_s=0.0))
    group.start()
    with pytest.raises(OutcomeUnknown) as caught:
        await group.submit(a_write("a"))
    assert isinstance(caught.value.__cause__, KeyError)
    assert await group.submit(a_write("a")) is None
    await group.stop()


@virtual
async def test_under_load_batches_keep_their_distance_and_a_small_one_does_not() -> None:
    loop = asyncio.get_running_loop()
    began_s: list[float] = []

    async def commit(writes: Sequence[Write]) -> list[object]:
        began_s.append(loop.time())
        return [None] * len(writes)

    group = GroupCommit(commit, GroupLimits(pace_s=0.05, pace_from_writes=4))
    group.start()
    for width in (4, 4, 1, 1):
        await asyncio.gather(*submit(group, *(a_write(str(n)) for n in range(width))))
    gaps_s = [b - a for a, b in itertools.pairwise(began_s)]
    assert gaps_s == pytest.approx([0.05, 0.05, 0.0])
    await group.stop()


@virtual
async def test_batches_of_many_keep_a_longer_distance() -> None:
    loop = asyncio.get_running_loop()
    began_s: list[float] = []

    async def commit(writes: Sequence[Write]) -> list[object]:
        began_s.append(loop.time())
        return [None] * len(writes)

    limits = GroupLimits(pace_s=0.01, pace_from_writes=4, crowded_pace=5.0, crowded_from_writes=8)
    group = GroupCommit(commit, limits)
    group.start()
    for width in (8, 7, 1):
        await asyncio.gather(*submit(group, *(a_write(str(n)) for n in range(width))))
    gaps_s = [b - a for a, b in itertools.pairwise(began_s)]
    assert gaps_s == pytest.approx([0.05, 0.01])
    await group.stop()


@virtual
async def test_after_a_batch_of_several_the_first_of_the_next_waits_for_its_neighbours() -> None:
    store = Store()
    group = a_group(store, gather_s=0.02)
    loop = asyncio.get_running_loop()
    await asyncio.gather(*submit(group, a_write("a")))
    await asyncio.gather(*submit(group, a_write("a"), a_write("b")))
    began = loop.time()
    first = submit(group, a_write("c"))
    for _ in range(3):  # it arrives by itself
        await asyncio.sleep(0)
    await asyncio.gather(*first, *submit(group, a_write("d")))
    assert store.batches == [["a"], ["a", "b"], ["c", "d"]] and loop.time() - began == pytest.approx(0.02)
    await asyncio.gather(*submit(group, a_write("e")))
    began = loop.time()
    await asyncio.gather(*submit(group, a_write("f")))
    assert loop.time() == began, "one alone waits for nobody"
    await group.stop()


@virtual
async def test_what_somebody_waits_for_does_not_wait_for_neighbours() -> None:
    """Several rows begin or end an answer."""
    store, began = Store(), asyncio.get_running_loop().time()
    group = a_group(store, gather_s=60.0)
    await asyncio.gather(*submit(group, a_write("a", rows=3), a_write("b", rows=3)))
    await asyncio.gather(*submit(group, a_write("c", rows=3)))
    assert store.batches == [["a", "b"], ["c"]] and asyncio.get_running_loop().time() == began
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


async def test_when_the_event_loop_is_torn_down_nobody_waits_for_ever() -> None:
    store = Store()
    group = a_group(store)
    tasks = await behind_the_gate(store, group, a_write("a"))
    writer = next(task for task in asyncio.all_tasks() if task.get_name() == "journal-writer")
    writer.cancel()
    await group.stop()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], Unavailable)
    assert isinstance(results[0], OutcomeUnknown)
