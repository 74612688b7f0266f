"""What an actor does about appends that its journal refuses: too large, too many at once, nobody knows."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors.handoff.drain import BY_SIGNAL, Drain
from actors.handoff.planner import HandoffPlanner
from actors.hosting.runtime import RuntimeLimits
from inference.simulated import SimulatedOptions
from sessions.actor.actor_context import ActorLimits
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Overloaded, SessileError
from sessions.model.journal_types import Append
from sessions.model.types import SessionId, SessionKey, TenantId
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.cluster.replicas import KEY, Place, Reader, Replica
from tests.support.virtual_time import advance, outcome, passed, virtual

OPTIONS = SimulatedOptions(answer_tokens_mean=30)
OFTEN = RuntimeLimits(actor=ActorLimits(snapshot_events=16))
TIGHT_BYTES = 12_000  # for what the turns below write, and too little for a snapshot of what they have said
LONG = "where is the river " * 100


async def turn(replica: Replica, reader: Reader, text: str) -> None:
    async with asyncio.timeout(60.0):
        answer = await replica.say(text)
        assert isinstance(await reader.ended(answer.response_id), ev.ResponseCompleted)


def snapshots_tried(place: Place, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets of the snapshots that the replica hands to its journal from now on."""
    tried: list[int] = []
    append = replica.journal.append

    async def seen(write: Append) -> None:
        if write.snapshot is not None:
            tried.append(write.snapshot.offset)
        await append(write)

    monkeypatch.setattr(replica.journal, "append", seen)
    return tried


# -- too large -----------------------------------------------------------------------------------------------------


@virtual
async def test_a_session_whose_snapshot_is_too_large_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be written, handed over and deleted like any other, and is not packed again at every turn."""
    async with Place(OPTIONS) as place:
        place.store.write_bytes_max = TIGHT_BYTES
        replica = await place.replica(limits=OFTEN)
        reader = place.read(replica)
        tried = snapshots_tried(place, replica, monkeypatch)
        await replica.create()
        for _ in range(12):
            await turn(replica, reader, LONG)
        first = replica.runtime.actor(KEY)
        assert reader.records == place.records() and first is not None
        loaded = place.store.load(KEY, place.now_ms())
        assert loaded is not None and (loaded.snapshot is None or loaded.snapshot.offset < place.head().top)
        refused = [offset for offset in tried if loaded.snapshot is None or offset > loaded.snapshot.offset]
        assert replica.runtime.metrics.snapshots_left_out.total == len(refused)
        gaps = [later - before for before, later in itertools.pairwise(refused)]
        assert len(refused) >= 2 and gaps == sorted(gaps) and gaps[-1] >= 32, "each time it waits for longer"
        assert len(place.store.usage_rows) == 12
        first.leaves_soon()
        before = len(tried)
        await turn(replica, reader, "and the sea")
        assert len(tried) <= before + 1
        await replica.runtime.passivate(KEY)
        await turn(replica, reader, "and the sea")
        await replica.delete()
        assert place.head().deleted_at is not None


# -- too many at once ----------------------------------------------------------------------------------------------


def full() -> Overloaded:
    return Overloaded("journal_overloaded", "Too much waits to be stored.", retry_after_ms=250)


def overloaded(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """The replica's journal refuses appends while that is switched on."""
    on = False
    append = replica.journal.append

    async def refusing(write: Append) -> None:
        if on:
            raise full()
        await append(write)

    def switch(to: bool) -> None:
        nonlocal on
        on = to

    monkeypatch.setattr(replica.journal, "append", refusing)
    return switch


@virtual
async def test_patience_with_a_full_journal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Place(OPTIONS) as place:
        replica = await place.replica(limits=RuntimeLimits(actor=ActorLimits(journal_patience_s=1.0)))
        await replica.create()
        switch = overloaded(replica, monkeypatch)
        switch(True)
        told = await outcome(replica.say())
        assert isinstance(told, Overloaded) and told.code == "journal_overloaded" and told.retryable
        assert replica.runtime.actor(KEY) is None
        switch(False)
        assert isinstance(await replica.say(respond=False), cm.Ok)


@virtual
async def test_a_drain_parks_idle_sessions_a_few_at_a_time() -> None:
    """Each leaves a snapshot behind: thousands of them at once would fill the journal's queue."""
    async with Place(OPTIONS) as place:
        replica = await place.replica(limits=RuntimeLimits(passivations_max=16))
        names = [SessionId(f"s{n:03}") for n in range(300)]
        for name in names:
            await replica.do(cm.SessionCreate(id=place.name(), session=name))
        under_way = most = 0

        async def counted(call: str, key: SessionKey | None, effect: Callable[[], object]) -> object:
            nonlocal under_way, most
            under_way += call == "append"
            most = max(most, under_way)
            await passed(0.01)
            under_way -= call == "append"
            return effect()

        replica.journal._medium = counted
        nobody: Any = SimpleNamespace(
            change=lambda **_: None, view=None, leaving=lambda key: False, choose=lambda *_, **__: None
        )
        planner = HandoffPlanner(replica.runtime, replica.engine, nobody, nobody, nobody)
        drain = Drain(planner, place.clock)
        await drain.drain(lambda *_: None, by=BY_SIGNAL)
        assert replica.runtime.actors == [] and drain.parked == 300 and most == 16


# -- nobody knows --------------------------------------------------------------------------------------------------


def verdicts(place: Place) -> list[object]:
    return [row for row in place.store.audit_rows.get(TenantId("local"), []) if b'"verdict"' in row.body]


@pytest.mark.parametrize("fault", ["refused", "lost", "applied"])
@virtual
async def test_a_refused_message_is_written_down_once(fault: str) -> None:
    """Its append has no records, so the log's end does not tell whether it stands."""
    async with Place(OPTIONS) as place:
        replica = await place.replica(filters=KeywordFilterSet(input_phrases=["river"]))
        await replica.create()
        for number in range(1, 4):
            replica.faults.next("append", fault)  # type: ignore[arg-type]
            told = await outcome(replica.say("where is the RIVER"))
            assert isinstance(told, SessileError) and told.code in ("content_filter", "journal_unavailable")
            await advance(1.0)
            assert len(verdicts(place)) == number
        assert isinstance(await outcome(replica.say("where is the RIVER")), BadInput)
        assert len(verdicts(place)) == 4 and place.head().top == 1
