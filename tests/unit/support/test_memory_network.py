"""The network in memory: order, room, held lanes, and what a cut leaves behind."""

from __future__ import annotations

import asyncio

from tests.support.cluster.memory_network import MemoryCarrier, MemoryNetwork
from tests.support.virtual_time import advance, virtual


async def connected(network: MemoryNetwork) -> tuple[MemoryCarrier, MemoryCarrier]:
    arrived: asyncio.Future[MemoryCarrier] = asyncio.get_running_loop().create_future()

    async def accept(carrier: MemoryCarrier, source: str) -> None:
        assert source == "near"
        arrived.set_result(carrier)
        await asyncio.get_running_loop().create_future()

    network.listen("far", accept)
    return await network.dial("near", "far"), await arrived


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
