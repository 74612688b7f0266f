"""What was deleted goes from the store in time, and with it its key, whatever fails on the way."""

from __future__ import annotations

import asyncio

import pytest

from inference.simulated import SimulatedOptions
from persistence.keys import MemoryKeyStore
from sessions.governance.retention import Retention, RetentionPeriods
from sessions.model import commands as cm
from sessions.model.errors import Unavailable
from sessions.model.types import (
    SCOPES,
    Principal,
    SessionId,
    SessionKey,
    TenantId,
)
from tests.support.cluster.replicas import KEY, Fault, Place, Replica
from tests.support.cluster.sweeps import sweeps_of
from tests.support.virtual_time import advance, outcome, settled, virtual

OPTIONS = SimulatedOptions(answer_tokens_mean=60)


async def done() -> None:
    return


@virtual
async def test_a_key_whose_destruction_failed_is_destroyed_at_the_next_purge() -> None:
    class Sticky(MemoryKeyStore):
        fails = 1

        async def destroy(self, key: SessionKey) -> None:
            if self.fails:
                self.fails -= 1
                raise Unavailable("keys_unavailable", "The key store is away.")
            await super().destroy(key)

    async with Place(OPTIONS) as place:
        replica = await place.replica()
        await replica.create()
        await replica.delete()
        keys = Sticky()
        data_key = await keys.current(KEY)
        sweeps = sweeps_of(replica, keys, deleted_days=100 / 86_400)
        await advance(101.0)
        assert await sweeps.purge() == 0
        assert place.store.head(KEY) is not None, "its rows say that there is a key to destroy"
        assert await sweeps.purge() == 1
        assert await keys.find(KEY, data_key.id) is None and place.store.head(KEY) is None


DELETED = [SessionKey(TenantId(tenant), SessionId("s1")) for tenant in ("acme", "beta")]


async def two_deleted(place: Place, replica: Replica, keys: MemoryKeyStore) -> None:
    """A session of each of two tenants, both deleted long ago, and their keys."""
    for key in DELETED:
        who = Principal(tenant=key.tenant, key_id="k", role="service", scopes=SCOPES)
        await replica.do(cm.SessionCreate(id=place.name(), session=key.session), who)
        await replica.do(cm.SessionDelete(id=place.name(), session=key.session), who)
        await keys.current(key)
    await advance(10.0)


@pytest.mark.parametrize("fault", ["refused", "lost", "applied"])
@pytest.mark.parametrize("number", [0, 1])
@virtual
async def test_no_key_outlives_the_rows_of_its_session(number: int, fault: Fault) -> None:
    """The journal fails at a purge, of the first tenant or of the second, and the replica is started anew."""
    async with Place(OPTIONS) as place:
        replica = await place.replica()
        keys = MemoryKeyStore()
        await two_deleted(place, replica, keys)
        kept = RetentionPeriods(deleted_days=0.0)
        retention = Retention(default=kept, tenants={"acme": kept})
        replica.faults.next("purge", *[done] * number, fault)
        assert isinstance(await outcome(sweeps_of(replica, keys, retention=retention).purge()), Unavailable)
        left = [key for key in DELETED if place.store.head(key) is None and key in keys._keys]
        assert left == [], "nobody would ever look for these keys again"
        await sweeps_of(replica, keys, retention=retention).purge()
        assert not any(place.store.head(key) for key in DELETED) and not keys._keys


@virtual
async def test_a_purge_that_is_cut_short_behind_a_key_goes_on_at_the_next() -> None:
    async with Place(OPTIONS) as place:
        replica = await place.replica()
        keys = MemoryKeyStore()
        await two_deleted(place, replica, keys)
        stuck: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        replica.faults.next("purge", lambda: stuck)
        purging = asyncio.create_task(sweeps_of(replica, keys, deleted_days=0.0).purge())
        await settled()
        assert not keys._keys and all(place.store.head(key) for key in DELETED), "between the keys and the rows"
        purging.cancel()
        await asyncio.wait([purging])
        assert await sweeps_of(replica, keys, deleted_days=0.0).purge() == 2
        assert not any(place.store.head(key) for key in DELETED)
        purged = [b'"session.purged"' in row.body for rows in place.store.audit_rows.values() for row in rows]
        assert sum(purged) == 2, "each is written down once"
