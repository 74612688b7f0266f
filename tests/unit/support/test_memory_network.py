"""The network in memory: order, room, held lanes, and what a cut leaves behind."""

from __future__ import annotations

import asyncio

import pytest

from actors.peer.links import LinkDown
from tests.support.cluster.memory_network import MemoryCarrier, MemoryNetwork
from tests.support.virtual_time import advance, outcome, virtual


async def connected(network: MemoryNetwork) -> tuple[MemoryCarrier, MemoryCarrier]:
    arrived: asyncio.Future[MemoryCarrier] = asyncio.get_running_loop().create_future()

    async def accept(carrier: MemoryCarrier, source: str) -> None:
        assert source == "near"
        arrived.set_result(carrier)
        await asyncio.get_running_loop().create_future()

    network.listen("far", accept)
    return await network.dial("near", "far"), await arrived


@virtual
async def test_messages_keep_their_order_whatever_the_delay() -> None:
    network = MemoryNetwork()
    near, far = await connected(network)
    delays = iter((0.5, 0.0, 0.1))
    network.lane("near", "far").delay_s = lambda: next(delays)
    for text in (b"1", b"2", b"3"):
        await near.send(text)
    assert [await far.receive() for _ in range(3)] == [b"1", b"2", b"3"]
    assert asyncio.get_running_loop().time() >= 0.5
    await network.close()


@virtual
async def test_a_sender_waits_for_room() -> None:
    network = MemoryNetwork(room_bytes=10)
    near, far = await connected(network)
    await near.send(b"x" * 30)
    waiting = asyncio.create_task(near.send(b"y" * 8))
    await advance(1.0)
    assert not waiting.done()
    await far.receive()
    await waiting
    await network.close()


@virtual
async def test_a_held_lane_lets_nothing_through_and_loses_nothing() -> None:
    network = MemoryNetwork()
    near, far = await connected(network)
    network.lane("near", "far").hold()
    await near.send(b"late")
    receiving = asyncio.create_task(far.receive())
    await advance(5.0)
    assert not receiving.done()
    network.lane("near", "far").release()
    assert await receiving == b"late"
    await network.close()


@virtual
async def test_a_cut_ends_both_ends_and_what_had_arrived_is_still_received() -> None:
    network = MemoryNetwork()
    near, far = await connected(network)
    await near.send(b"in time")
    network.cut("far")
    assert await far.receive() == b"in time"
    for work in (near.send(b"x"), near.receive(), far.receive()):
        down = await outcome(work)
        assert isinstance(down, LinkDown) and down.reason == "reset"
    for task in network.unlisten("far"):
        task.cancel()
    with pytest.raises(LinkDown) as refused:
        await network.dial("near", "far")
    assert refused.value.reason == "refused"
    await network.close()
