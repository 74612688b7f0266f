"""KV of sessions that are gone: what a sweep looks at, what it lets go of, and what it leaves alone."""

from __future__ import annotations

import pytest

from actors.maintenance.kv_cleanup import PAGE, KVCleanup
from sessions.model import commands as cm
from sessions.model.errors import Unavailable
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.cluster.replicas import KEY, Place, Replica
from tests.support.virtual_time import virtual


def kv_cleanup_of(replica: Replica) -> KVCleanup:
    return KVCleanup(replica.runtime, replica.journal, replica.engine)


async def answered(place: Place, replica: Replica) -> None:
    """A session that the replica holds KV of, and that has left its memory."""
    await replica.create()
    reader = place.read(replica)
    await reader.ended((await replica.say()).response_id)
    await replica.runtime.passivate(KEY)


@virtual
async def test_a_session_in_memory_is_not_asked_about() -> None:
    async with Place() as place:
        replica = await place.replica()
        await answered(place, replica)
        await replica.do(cm.SessionUpdate(id=place.name(), session=KEY.session, metadata={"is": "awake"}))
        replica.faults.calls.clear()
        assert await kv_cleanup_of(replica).sweep() == 0 and not replica.faults.calls


@virtual
async def test_many_are_looked_at_page_by_page_and_a_journal_that_is_away_costs_a_page() -> None:
    async with Place() as place:
        replica = await place.replica()
        keys = [SessionKey(TenantId("local"), SessionId(f"gone{number}")) for number in range(2 * PAGE + 5)]
        for key in keys:  # as after a purge: the journal knows none of them
            await replica.engine.warm(key, [1, 2, 3])
        sweeps = kv_cleanup_of(replica)
        replica.faults.away("head")
        with pytest.raises(Unavailable):
            await sweeps.sweep()
        replica.faults.back()
        assert len(replica.engine.held_sessions()) == len(keys), "without the journal's word nothing goes"
        assert [await sweeps.sweep() for _ in range(4)] == [PAGE, 5, PAGE, 0]
        assert not replica.engine.held_sessions()
