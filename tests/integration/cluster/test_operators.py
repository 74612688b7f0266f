"""Operators and gateways ask all replicas over real links: for KV that is held, figures, and about texts."""

from __future__ import annotations

import asyncio

import pytest

from actors.peer.frames import Measured
from actors.peer.links import LinkDown
from inference.kv.tenant_quota import KvHoldings
from inference.simulated import SimulatedEngine, decode
from sessions.model.errors import BadInput, Unavailable
from sessions.model.inspection import JudgedTexts, PromptMessage, PromptTokens, TextTokens, TokenIds
from sessions.model.types import SessionKey, TenantId, Tool
from sessions.service_totals import sum_of
from testbed.real_cluster import ALICE, FAST, Story, create, real_cluster, say
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


async def test_a_gateway_has_the_figures_of_all_replicas_and_names_one_that_is_away() -> None:
    async with real_cluster(2) as cluster:
        router = await cluster.add_gateway("g")
        api = ClusterOperatorApi(lambda: router.routes.view, cluster.security, Tasks())
        for number in range(8):
            key = await create(router, f"s{number}")
            story = Story(router, key)
            await story.ends(await say(router, key, tokens=8))
            story.close()
        answers = [each for each in (await api.measure()).values() if isinstance(each, Measured)]
        assert len(answers) == 2 and sum(each.sessions for each in answers) == 8
        totals = sum_of(each.totals for each in answers)
        assert sum(totals.ended.values()) == sum(totals.ttft) == 8
        one = await api.measure("r1", after=0, step_s=60)
        assert list(one) == ["r1"]
        await cluster.replicas["r2"].crash()
        async with asyncio.timeout(60):
            left = await api.measure()
        assert isinstance(left["r1"], Measured) and isinstance(left["r2"], LinkDown)


async def test_a_replica_answers_and_a_second_one_where_it_has_ended() -> None:
    async with real_cluster(2) as cluster:
        router = await cluster.add_gateway("g")
        model = SimulatedEngine(FAST).info.model
        found = await router.inspect(ALICE, model, TextTokens("the river", starts=True))
        assert isinstance(found, TokenIds) and decode(found.tokens[1:]) == "the river"
        tool = Tool(name="look", parameters={"type": "object"})
        question = PromptTokens(tools=(tool,), messages=(PromptMessage(role="user", text="the river"),))
        whole = await router.inspect(ALICE, model, question)
        assert isinstance(whole, TokenIds) and "look" in decode(whole.tokens) and whole.context_window > 0
        with pytest.raises(BadInput) as caught:
            await router.inspect(ALICE, model, JudgedTexts(("x",)))
        assert caught.value.code == "moderation_unavailable"  # as the replica has it
        await cluster.replicas["r1"].crash()
        for _ in range(4):
            assert await router.inspect(ALICE, model, TextTokens("the river", starts=True)) == found
        with pytest.raises(Unavailable):
            await router.inspect(ALICE, "another", TextTokens("x"))
