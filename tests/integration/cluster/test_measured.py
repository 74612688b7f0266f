"""How well a cluster's readers are served, read from every replica over real links."""

from __future__ import annotations

import asyncio

from actors.peer.frames import Measured
from actors.peer.links import LinkDown
from sessions.service_totals import sum_of
from tests.support.cluster.real import Story, create, real_cluster, say
from transport.ops.operator_api import ClusterOperatorApi
from transport.tasks import Tasks


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
