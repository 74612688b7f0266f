"""How much KV a tenant holds, asked of every replica of a cluster over real links."""

from __future__ import annotations

import asyncio

from inference.kv.tenant_quota import KvHoldings
from inference.simulated import SimulatedEngine
from sessions.model.types import SessionKey, TenantId
from tests.support.cluster.real import ALICE, FAST, Story, create, real_cluster, say
from transport.ops.operator_api import ClusterOperatorApi
from transport.tasks import Tasks

TOKEN_BYTES = 1_000


class Counting(SimulatedEngine):
    """Counts what it has in its slots, as llama.cpp's engine does."""

    def __init__(self, keys: list[SessionKey]) -> None:
        super().__init__(FAST)
        self.holdings = KvHoldings(
            lambda tenant: TOKEN_BYTES * sum(self.place(key).tokens for key in keys if key.tenant == tenant)
        )


async def test_each_replica_tells_what_it_holds_and_one_that_is_gone_is_named() -> None:
    keys: list[SessionKey] = []
    async with real_cluster(0) as cluster:
        engines = {name: Counting(keys) for name in ("r1", "r2")}
        for name, engine in engines.items():
            await cluster.add_replica(name, engine)
        await cluster.add_replica("r3")
        router = await cluster.add_gateway("g")
        desk = ClusterOperatorApi(lambda: router.routes.view, cluster.security, Tasks())
        assert (await desk.kv_of(ALICE.tenant)).bytes_of == {"r1": 0, "r2": 0, "r3": None}, "r3 does not count"
        for number in range(8):
            key = await create(router, f"s{number}")
            story = Story(router, key)
            await story.ends(await say(router, key, tokens=8))
            story.close()
            keys.append(key)
        held = {name: TOKEN_BYTES * sum(engine.place(key).tokens for key in keys) for name, engine in engines.items()}
        assert sum(held.values()) > 0
        assert (await desk.kv_of(ALICE.tenant)).bytes_of == {**held, "r3": None}
        assert (await desk.kv_of(TenantId("beta"))).bytes_of == {"r1": 0, "r2": 0, "r3": None}
        await cluster.replicas["r2"].crash()
        async with asyncio.timeout(60):
            found = await desk.kv_of(ALICE.tenant)
        assert found.bytes_of == {"r1": held["r1"], "r3": None} and list(found.silent) == ["r2"] and found.silent["r2"]
