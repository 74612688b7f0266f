"""The rendered chart, run as it says: pods in namespaces of their own, with a real Valkey and PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.chaos.load import load
from tests.support.kubernetes.deployed import GATEWAY, POOL, deployed, is_possible, timeline

pytestmark = [pytest.mark.containers, pytest.mark.timeout(280)]


@pytest.fixture(autouse=True)
def possible() -> None:
    why = is_possible()
    if why:
        pytest.fail(why)


LLAMA = {"engine": "llama", "slots": 4, "modelVolume": "models", "kv": {"diskMb": 512, "memoryMb": 256}}


async def test_one_gateway_and_one_replica_talk_and_end_in_order() -> None:
    values = {"gateway": {"replicas": 1}, "pools": {"main": {"replicas": 1}}}
    async with deployed(values, devices=1) as cluster:
        kubernetes = cluster.kubernetes
        async with load(cluster, sessions=1, tokens=20) as running:
            assert await running.finish() == []
        (gateway,), (replica,) = kubernetes.of(GATEWAY), kubernetes.of(POOL)
        kubernetes.scale(GATEWAY, 0)
        kubernetes.scale(POOL, 0)
        await kubernetes.until(lambda: gateway.gone and replica.gone)
        assert (gateway.exits, replica.exits) == ([0], [0]), timeline(kubernetes.machine)
        assert gateway.restarts == replica.restarts == 0


async def test_a_rolling_update_is_not_seen_by_those_who_talk() -> None:
    async with deployed({"pools": {"main": {"replicas": 2}}}) as cluster, load(cluster, sessions=4) as running:
        before = set(cluster.kubernetes.pods.values())
        env = {"extraEnv": [{"name": "ROLLED", "value": "1"}]}
        await cluster.upgrade({"gateway": env, "pools": {"main": env}})
        await cluster.kubernetes.settles(240.0)
        await running.grows(5)
        assert await running.finish() == []
        assert all(pod.gone and pod.exits == [0] for pod in before), timeline(cluster.kubernetes.machine)
        assert not any(frame.body["type"] == "error" for each in running.devices for frame in each.frames)


async def test_a_real_model_answers_and_goes_on_where_its_replica_was_cut_off(model_path: Path) -> None:
    pool = LLAMA | {"model": f"/models/{model_path.name}", "replicas": 2, "settings": {}}
    values = {"gateway": {"replicas": 1}, "pools": {"main": pool}}
    async with deployed(values, devices=1, claims={"models": model_path.parent}) as cluster:
        kubernetes = cluster.kubernetes
        async with load(cluster, sessions=1, tokens=100) as running:
            (session,) = running.sessions
            name = await cluster.owner(session)
            kubernetes.machine.network.cut(name)
            await running.grows(40)
            assert await cluster.owner(session) != name
            kubernetes.machine.network.heal(name)
            await running.grows(40)
            assert await running.finish() == [], timeline(kubernetes.machine)


async def test_a_drained_node_ends_one_pod_of_a_kind_at_a_time() -> None:
    """All are on one node: the budgets refuse until what was evicted is ready elsewhere."""
    async with deployed({"pools": {"main": {"replicas": 2}}}, nodes=("n1",)) as cluster:
        kubernetes = cluster.kubernetes
        before = kubernetes.on("n1")
        kubernetes.nodes.append("n2")
        assert await kubernetes.drain("n1") > 0
        await kubernetes.settles()
        assert not kubernetes.on("n1") and len(kubernetes.on("n2")) == len(before) == 4
        assert all(pod.exits == [0] for pod in before), timeline(kubernetes.machine)
