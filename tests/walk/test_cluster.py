"""A small cluster of real processes on a real Valkey and PostgreSQL: its owner and a gateway killed in mid-answer."""

from __future__ import annotations

import pytest

from tests.support.chaos.cluster import SIMULATED, chaos_cluster
from tests.support.chaos.load import load


@pytest.mark.cluster
async def test_answers_outlive_a_replica_and_a_gateway() -> None:
    async with chaos_cluster(*SIMULATED, proxied=False) as cluster, load(cluster, sessions=2) as running:
        owner = await cluster.owner(running.sessions[0])
        await owner.kill()
        await running.grows(10)
        assert "failover" in running.moves()
        await cluster.members["g1"].kill()
        await running.grows(10)
        assert running.device.connections >= 2
        assert await running.finish() == []
