"""The audit log is trimmed by the same sweeps that purge sessions, as long as each tenant's retention says."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from persistence.memory.audit import MemoryAudit
from sessions.governance import retention
from sessions.governance.audit_verify import verify
from sessions.governance.retention import Retention, RetentionPeriods
from sessions.model.audit import INSTALLATION, Audited
from sessions.model.types import TenantId
from tests.support.cluster.replicas import Place
from tests.support.cluster.sweeps import sweeps_of
from tests.support.virtual_time import advance, virtual

ACME, BETA, GAMMA = TenantId("acme"), TenantId("beta"), TenantId("gamma")
UNIT_S = 60.0
# Minutes, where a file has to say days and rows go by hours: the replica beside the sweeps ticks through all of them.
UNIT_DAYS = UNIT_S / 86_400
SAID = Retention(
    default=RetentionPeriods(audit_days=9 * UNIT_DAYS),
    tenants={"acme": RetentionPeriods(audit_days=3 * UNIT_DAYS), "beta": RetentionPeriods()},
)


@virtual
async def test_the_periodic_purge_trims_each_chain_as_its_retention_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "HOUR_MS", int(UNIT_S * 1000))
    async with Place() as place:
        replica = await place.replica()
        audit = MemoryAudit(replica.journal.database)
        sweeps = sweeps_of(replica, retention=SAID, sweep_s=UNIT_S / 2, purge_every_s=UNIT_S)
        chains = (INSTALLATION, ACME, BETA, GAMMA)
        for chain in chains:
            await audit.record(chain, [Audited(action="policy.loaded", at=place.now_ms()) for _ in range(3)])

        async def trimmed() -> dict[str, int]:
            found = {chain: await verify(audit, chain) for chain in chains}
            assert all(each.intact for each in found.values())
            return {chain: each.trimmed for chain, each in found.items()}

        running = asyncio.create_task(sweeps.run())
        await advance(2 * UNIT_S)
        assert set((await trimmed()).values()) == {0}, "nothing is old enough"
        await advance(3.5 * UNIT_S)
        assert await trimmed() == {INSTALLATION: 0, ACME: 3, BETA: 0, GAMMA: 0}
        await advance(6 * UNIT_S)
        assert await trimmed() == {INSTALLATION: 3, ACME: 3, BETA: 0, GAMMA: 3}
        head = await audit.head(ACME)
        assert head is not None and head.seq == 4, "one row about it, which is not trimmed for itself"
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
