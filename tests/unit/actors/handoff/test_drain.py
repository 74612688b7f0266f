"""A drain empties a replica, in an order, and is audited before it begins."""

from __future__ import annotations

import asyncio

import pytest

from actors.handoff.drain import BY_SIGNAL, Drain, DrainLimits
from persistence.memory.audit import MemoryAudit
from persistence.memory.journal import MemoryJournal
from sessions.model.audit import INSTALLATION
from sessions.model.errors import Unavailable
from tests.support.cluster.harness import Cluster, cluster
from tests.support.cluster.steps import answering, planner_of
from tests.support.virtual_time import virtual


async def drain_of(made: Cluster, name: str, **limits: float) -> Drain:
    journal = MemoryJournal(made.store, medium=made._medium)
    await journal.open()
    return Drain(planner_of(made, name), made.clock, limits=DrainLimits(**limits), audit=MemoryAudit(journal.database))  # type: ignore[arg-type]


@virtual
async def test_an_open_answer_is_handed_off_and_what_is_idle_without_kv_is_parked() -> None:
    async with cluster(replicas=2) as made:
        key, _ = await answering(made)
        name = made.owner(key)
        drain = await drain_of(made, name)
        reports: list[tuple[int, int, int]] = []
        await drain.drain(lambda *counts: reports.append(counts), by="operator eve")
        assert reports[-1][2] == 0 and drain.handed_off >= 1
        assert made.owner(key) not in ("", name) and made.replicas[name].replica.runtime.draining
        (row,) = [each for each in made.store.audit_rows[INSTALLATION] if b"replica.draining" in each.body]
        assert b"eve" in row.body
        await drain.drain(lambda *_: None, by=BY_SIGNAL)
        assert len(made.store.audit_rows[INSTALLATION]) == 1, "draining twice is one drain"


@virtual
async def test_what_is_left_when_the_time_is_over_is_parked_with_its_answer_open() -> None:
    async with cluster(replicas=1) as made:
        key, _ = await answering(made, tokens=5_000)
        drain = await drain_of(made, "r1", drain_s=1.0)
        await drain.drain(lambda *_: None, by=BY_SIGNAL)
        head = made.store.head(key)
        assert head is not None and head.open and drain.parked == 1


@virtual
async def test_an_operators_drain_that_cannot_be_audited_does_not_begin_and_a_signals_does() -> None:
    async with cluster(replicas=1) as made:
        drain = await drain_of(made, "r1")

        async def record(*_: object) -> None:
            raise Unavailable("journal_unavailable", "away")

        drain._audit.record = record  # type: ignore[union-attr,method-assign]
        with pytest.raises(Unavailable):
            await drain.drain(lambda *_: None, by="operator eve")
        assert not made.replicas["r1"].replica.runtime.draining
        await drain.drain(lambda *_: None, by=BY_SIGNAL)
        assert made.replicas["r1"].replica.runtime.draining


async def test_a_drain_is_taken_back_and_the_replica_serves_again() -> None:
    async with cluster(replicas=2) as made:
        name = "r1"
        drain = await drain_of(made, name)
        runtime = made.replicas[name].replica.runtime
        await drain.undrain(by="operator eve")
        assert INSTALLATION not in made.store.audit_rows, "nothing was draining"
        await drain.drain(lambda *_: None, by="operator eve")
        await drain.undrain(by="operator eve")
        assert not runtime.draining
        assert [b"replica.undrained" in each.body for each in made.store.audit_rows[INSTALLATION]] == [False, True]
        await drain.drain(lambda *_: None, by=BY_SIGNAL)
        with pytest.raises(Unavailable, match="start it again"):
            await drain.undrain(by="operator eve")
        assert runtime.draining


async def test_a_caller_that_waits_for_a_drain_gets_an_error_when_it_is_taken_back() -> None:
    async with cluster(replicas=1) as made:
        drain = await drain_of(made, "r1")
        begun = asyncio.Event()

        async def never() -> None:
            begun.set()
            await asyncio.Event().wait()

        drain._empty = never  # type: ignore[method-assign]
        waiting = asyncio.create_task(drain.drain(lambda *_: None, by="operator eve"))
        await begun.wait()
        await drain.undrain(by="operator eve")
        with pytest.raises(Unavailable, match="taken back"):
            await waiting
