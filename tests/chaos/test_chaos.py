"""Real processes under real load: killed, stopped, cut off from each other; and no reader can tell.

What each test holds against the journal is everything that two devices on two gateways were sent (`verdict`). The long
runs, with real answers and figures, are `bench/cluster/kill.py` and `bench/soak/run.py`.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from testbed.chaos.cluster import SIMULATED, ChaosCluster, Member, chaos_cluster
from testbed.chaos.load import load
from testbed.chaos.proxy import GOOD, Flow, Proxy

pytestmark = [pytest.mark.chaos, pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

SLEEP_S = 10.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[ChaosCluster]:
    async with chaos_cluster(*SIMULATED, proxied=True) as made:
        yield made


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def whole(cluster: ChaosCluster) -> AsyncIterator[None]:
    """After each test everything heals; what it killed is started again."""
    yield
    for member in list(cluster.members.values()):
        for proxy in member.proxies:
            proxy.heal()
        if member.process is None:
            await cluster.start(member.name)


async def test_kill_dash_nine_of_the_owner_in_mid_answer(cluster: ChaosCluster) -> None:
    async with load(cluster, sessions=4) as running:
        victim = await cluster.owner(running.sessions[0])
        await victim.kill()
        await running.grows(20)
        assert "failover" in running.moves()
        assert await running.finish() == []


async def test_a_gateway_killed_under_load(cluster: ChaosCluster) -> None:
    async with load(cluster, sessions=4) as running:
        await cluster.members["g1"].kill()
        await running.grows(20)
        assert running.device.connections >= 2
        assert await running.finish() == []


@pytest.mark.slow
async def test_an_owner_that_sleeps_is_replaced_and_wakes_to_nothing(cluster: ChaosCluster) -> None:
    async with load(cluster, sessions=3, tokens=520) as running:
        sleeper = await cluster.owner(running.sessions[0])
        stopped_at = time.monotonic()
        sleeper.signal(signal.SIGSTOP)
        try:
            await running.grows(20)
            await asyncio.sleep(SLEEP_S - (time.monotonic() - stopped_at))
        finally:
            sleeper.signal(signal.SIGCONT)
        assert await running.finish() == []
        assert '"ownership_questioned"' in cluster.said(sleeper.name)


PEER_CUTS = {
    "delayed": (Flow(delay_s=0.2, jitter_s=0.2), Flow(delay_s=0.2, jitter_s=0.2)),
    "swallowed": (Flow(hole=True), Flow(hole=True)),
    "deaf": (Flow(hole=True), GOOD),
    "dumb": (GOOD, Flow(hole=True)),
    "stalled": (Flow(stalled=True), Flow(stalled=True)),
    "read slowly": (GOOD, Flow(rate_bytes_s=4_000)),
    "cut at random": (GOOD, Flow(cut_within_bytes=20_000)),
}


@pytest.mark.parametrize("cut", PEER_CUTS)
async def test_cuts_between_gateways_and_an_owner(cluster: ChaosCluster, cut: str) -> None:
    async with load(cluster, sessions=3) as running:
        victim = await cluster.owner(running.sessions[0])
        assert victim.peers is not None
        up, down = PEER_CUTS[cut]
        victim.peers.set(up=up, down=down)
        await running.grows(10)
        victim.peers.heal()
        if up.hole or down.hole:
            victim.peers.reset()  # what was swallowed is not sent again: such a connection is of no more use
        await running.grows(5)
        assert await running.finish() == []


@pytest.mark.parametrize("side", ["client", "target"])
async def test_half_open_connections_between_gateways_and_an_owner(cluster: ChaosCluster, side: str) -> None:
    async with load(cluster, sessions=3) as running:
        victim = await cluster.owner(running.sessions[0])
        assert victim.peers is not None
        victim.peers.half_open(side)  # type: ignore[arg-type]
        await running.grows(10)
        assert await running.finish() == []


def journal_of(member: Member) -> Proxy:
    assert member.journal is not None
    return member.journal


def directory_of(member: Member) -> Proxy:
    assert member.directory is not None
    return member.directory


@pytest.mark.parametrize("cut", ["reset", "stalled", "refused"])
async def test_cuts_between_an_owner_and_the_journal(cluster: ChaosCluster, cut: str) -> None:
    async with load(cluster, sessions=3) as running:
        proxy = journal_of(await cluster.owner(running.sessions[0]))
        await hurt(proxy, cut)
        await running.grows(10)
        assert await running.finish() == []


@pytest.mark.parametrize("cut", ["stalled", "refused"])
async def test_cuts_between_an_owner_and_the_directory(cluster: ChaosCluster, cut: str) -> None:
    async with load(cluster, sessions=3) as running:
        proxy = directory_of(await cluster.owner(running.sessions[0]))
        await hurt(proxy, cut)
        await running.grows(20)
        assert await running.finish() == []


async def hurt(proxy: Proxy, how: str, seconds: float = 1.5) -> None:
    """A fault that passes."""
    match how:
        case "reset":
            proxy.reset()
        case "stalled":
            proxy.set(up=Flow(stalled=True), down=Flow(stalled=True))
        case "refused":
            await proxy.refuse()
            proxy.reset()
    await asyncio.sleep(seconds)
    proxy.heal()
    await proxy.start()


@pytest.mark.parametrize("outage", ["emptied", "killed and restarted"])
async def test_valkey_lost_under_load(cluster: ChaosCluster, outage: str) -> None:
    async with load(cluster, sessions=4) as running:
        if outage == "emptied":
            with cluster.valkey.client() as client:
                client.flushall()
            await running.grows(20)
        else:
            cluster.valkey.kill()
            await running.grows(20)
            cluster.valkey.start()
        later = await running.device.create()
        response = await running.device.say(later, "And this?", tokens=5)
        await running.device.ends(later, response)
        assert await running.finish() == []
        assert running.moves() == []


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_postgresql_restarted_under_load(cluster: ChaosCluster, how: str) -> None:
    async with load(cluster, sessions=4) as running:
        if how == "stopped":
            await asyncio.to_thread(cluster.postgres.stop)
        else:
            await asyncio.to_thread(cluster.postgres.kill)
        await asyncio.to_thread(cluster.postgres.start)
        await running.grows(20)
        assert await running.finish() == []


async def test_postgresql_restored_from_an_older_backup_under_load(cluster: ChaosCluster) -> None:
    async with load(cluster, sessions=4, tokens=60) as running:
        resting = await running.device.create()
        await running.device.ends(resting, await running.device.say(resting, "This is kept.", tokens=5))
        await asyncio.to_thread(cluster.postgres.stop)
        await asyncio.to_thread(cluster.postgres.backup)
        await asyncio.to_thread(cluster.postgres.start)
        await running.device.ends(resting, await running.device.say(resting, "This is lost.", tokens=5))
        await running.grows(20)
        running.restored = True
        await asyncio.to_thread(cluster.postgres.stop)
        await asyncio.to_thread(cluster.postgres.restore)
        await asyncio.to_thread(cluster.postgres.start)
        for each in running.devices:
            for session in running.sessions:
                cursor = each.cursors[session]
                await each.until(lambda c=cursor: c.resets > 0, 30.0)  # type: ignore[misc]
        rests = running.device.cursors[resting]
        await running.device.until(lambda: rests.resets > 0, 30.0)  # although nobody says anything in it
        running.sessions.append(resting)
        assert await running.finish() == []
