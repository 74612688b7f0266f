"""What sweeps do about sessions that fail, are slow, or stand in the directory for nobody: the others get theirs."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from actors.hosting.recovery_gate import UNREAD
from actors.hosting.runtime import RuntimeLimits
from inference.simulated import SimulatedOptions
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.reviews import Case, ReviewId
from sessions.model.types import SessionId, SessionKey, TenantId, UnixMs
from tests.support.cluster.replicas import KEY, Place
from tests.support.cluster.sweeps import sweeps_of
from tests.support.virtual_time import advance, settled, until, virtual

OPTIONS = SimulatedOptions(answer_tokens_mean=60)
LEASE_S = 7.0


def decided(place: Place, key: SessionKey, at: int) -> ReviewId:
    """A case of the session that was decided, and that its log does not know of."""
    case = Case(
        id=ReviewId(f"rev_{key.session}"),
        key=key,
        cause="policy",
        direction="output",
        action="block",
        category="phrases",
        score=1.0,
        model="m",
        policy="1",
        user=None,
        offset=1,
        start=0,
        end=1,
        opened_at=UnixMs(1),
        state="decided",
        outcome="upheld",
        decided_at=UnixMs(at),
        decisions=1,
        told=False,
    )
    place.store.reviews[case.id] = case
    return case.id


@pytest.mark.parametrize("trouble", ["unfolded", "refused"])
def test_a_case_that_cannot_be_told_does_not_keep_others_from_being_told(trouble: str) -> None:
    @virtual
    async def run() -> None:
        async with Place(OPTIONS) as place:
            first = await place.replica("r1")
            keys = [SessionKey(TenantId("local"), SessionId(name)) for name in ("a", "b")]
            for key in keys:
                await first.do(cm.SessionCreate(id=place.name(), session=key.session))
                for _ in range(3):
                    said = cm.MessageCreate(id=place.name(), session=key.session, content="x", respond=False)
                    await first.do(said)
            first.crash()
            await advance(LEASE_S)
            bad, good = (decided(place, key, at) for at, key in enumerate(keys, 1))
            heir = await place.replica("r2")
            if trouble == "unfolded":
                del place.store._logs[keys[0]].records[2]
            else:
                heir.faults.next("grant", "refused")
            assert await sweeps_of(heir).deliver_reviews() == 1
            assert place.store.reviews[good].told and not place.store.reviews[bad].told
            assert isinstance(place.records(keys[1])[-1].event, ev.ReviewDecided)

    run()


@virtual
async def test_a_slow_recovery_keeps_no_other_sweep_from_its_work() -> None:
    async with Place(OPTIONS) as place:
        first = await place.replica("r1")
        await first.create()
        await first.say()
        first.crash()
        await advance(LEASE_S)
        heir = await place.replica("r2", limits=RuntimeLimits(recoveries_max=1, idle_s=10.0))
        await heir.runtime._gate.enter(UNREAD)
        idle = SessionKey(TenantId("local"), SessionId("idle"))
        await heir.do(cm.SessionCreate(id=place.name(), session=idle.session))
        running = asyncio.create_task(sweeps_of(heir).run())
        await advance(20.0)
        assert heir.runtime._gate.waiting == 1 and place.head().open, "the recovery waits"
        assert heir.runtime.actor(idle) is None, "and the idle leave all the same"
        heir.runtime._gate.leave()
        await until(lambda: not place.head().open)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@virtual
async def test_a_turn_that_stands_in_our_name_and_is_not_here_is_an_orphan() -> None:
    """The entry could not be given back: with a living lease it keeps everybody else away."""
    async with Place(OPTIONS) as place:
        replica, other = await place.replica("r1"), await place.replica("r2")
        await replica.create()
        answer = await replica.say()
        assert await sweeps_of(replica).recover() == 0, "it is here"
        replica.faults.next("release", "refused")
        await replica.runtime.passivate(KEY)
        await settled()
        assert place.head().open and not replica.runtime.present(KEY)
        assert await replica.directory.locate(KEY) is not None
        assert await sweeps_of(other).recover() == 0, "it is not theirs"
        assert await sweeps_of(replica).recover() == 1
        await until(lambda: bool(place.terminals(answer.response_id)))
        await replica.runtime.ownership.retry_releases()
        assert await replica.directory.locate(KEY) == replica.runtime.ownership.owner(KEY)
