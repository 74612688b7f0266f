"""The network in memory: order, room, held lanes, and what a cut leaves behind."""

from __future__ import annotations

import asyncio

import pytest

from actors.peer.links import LinkDown
from actors.peer.memory import MemoryCarrier, MemoryNetwork
from tests.support.virtual_time import outcome, virtual


async def connected(network: MemoryNetwork) -> tuple[MemoryCarrier, MemoryCarrier]:
    arrived: asyncio.Future[MemoryCarrier] = asyncio.get_running_loop().create_future()

    async def accept(carrier: MemoryCarrier, source: str) -> None:
        assert source == "near"
        arrived.set_result(carrier)
        await asyncio.get_running_loop().create_future()

    network.listen("far", accept)
    return await network.dial("near", "far"), await arrived


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
