"""The wire: what shares a message, when an end is dead, and when it is only we who stood still."""

from __future__ import annotations

import asyncio
from functools import partial

from actors.peer import frames as pf
from actors.peer.links import LinkDown, LinkLimits, Unreachable
from actors.peer.wire import Wire
from tests.support.cluster.memory_network import MemoryCarrier, MemoryNetwork
from tests.support.virtual_time import VirtualLoop, advance, until, virtual

LIMITS = LinkLimits()


class Ends:
    """Two wires on one connection, with what each heard."""

    def __init__(self, network: MemoryNetwork, near: Wire, far: Wire) -> None:
        self.network = network
        self.near = near
        self.far = far
        self.heard: list[pf.AnyFrame] = []
        self.batches: list[int] = []
        self.near_ends = asyncio.ensure_future(near.run(self._follow))
        self.far_ends = asyncio.ensure_future(far.run(self._deliver))

    def _follow(self, frames: list[pf.AnyFrame]) -> None:
        for frame in frames:
            if isinstance(frame, pf.Heartbeat):
                self.near.promised(frame)

    def _deliver(self, frames: list[pf.AnyFrame]) -> None:
        said = [frame for frame in frames if not isinstance(frame, pf.Heartbeat)]
        self.heard += said
        if said:
            self.batches.append(len(said))


async def connected(limits: LinkLimits = LIMITS, *, knocks_at: str = "") -> Ends:
    """`knocks_at`: `far`, or `kernel`, which answers where the far process stands still."""
    network = MemoryNetwork()
    arrived: asyncio.Future[MemoryCarrier] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def accept(carrier: MemoryCarrier, _: str) -> None:
        arrived.set_result(carrier)
        await over.wait()

    network.listen("far", accept)
    near = await network.dial("near", "far")
    network.listen("kernel", accept)
    knock = partial(network.knock, "near", knocks_at) if knocks_at else None
    return Ends(network, Wire(near, limits, knock), Wire(await arrived, limits))


def reserved(number: int) -> pf.Reserved:
    return pf.Reserved(number)


@virtual
async def test_what_is_posted_in_one_turn_shares_a_message_and_keeps_its_order() -> None:
    ends = await connected()
    for number in range(100):
        ends.near.post(reserved(number))
    await until(lambda: len(ends.heard) == 100)
    assert ends.heard == [reserved(number) for number in range(100)]
    assert ends.batches == [100]


@virtual
async def test_the_first_frame_leaves_at_once_and_a_stream_leaves_in_few_messages() -> None:
    ends = await connected()
    loop = asyncio.get_running_loop()
    await advance(0.35)  # between two beats
    began = loop.time()
    ends.near.post(reserved(0))
    await until(lambda: bool(ends.heard), step_s=0.0001)
    assert loop.time() - began <= 0.0002
    before = ends.near.messages_sent
    for number in range(1000):  # one each 0.1 ms
        ends.near.post(reserved(number))
        await advance(0.0001)
    assert ends.near.messages_sent - before <= 110


@virtual
async def test_messages_are_closed_at_their_size() -> None:
    ends = await connected()
    for number in range(8):
        ends.near.post(pf.KVSnapshotChunk(number, b"x" * 100_000))
    await until(lambda: len(ends.heard) == 8)
    assert max(ends.batches) == 3 and ends.near.queued_bytes == 0


@virtual
async def test_silence_ends_the_link_within_two_seconds() -> None:
    ends = await connected()
    await advance(10.0)
    began = asyncio.get_running_loop().time()
    ends.network.lane("far", "near").hold()
    down = await ends.near_ends
    assert down.reason == "keepalive"
    assert 1.0 <= asyncio.get_running_loop().time() - began <= 2.0


@virtual
async def test_a_host_that_is_cut_off_is_dead_within_half_a_second() -> None:
    ends = await connected(knocks_at="far")
    await advance(10.0)
    began = asyncio.get_running_loop().time()
    ends.network.lane("far", "near").hold()
    down = await ends.near_ends
    assert isinstance(down, Unreachable) and down.reason == "keepalive"
    assert 0.3 <= asyncio.get_running_loop().time() - began <= 0.55


@virtual
async def test_a_process_that_stands_still_is_not_a_host_that_is_cut_off() -> None:
    ends = await connected(knocks_at="kernel")
    await advance(10.0)
    ends.network.lane("far", "near").hold()
    await advance(1.2)
    ends.network.lane("far", "near").release()
    await advance(5.0)
    assert ends.near.down is None


@virtual
async def test_a_silent_end_whose_host_refuses_connections_has_ended() -> None:
    ends = await connected(knocks_at="kernel")
    await advance(10.0)
    ends.network.lane("far", "near").hold()
    ends.network.unlisten("kernel")
    began = asyncio.get_running_loop().time()
    assert isinstance(await ends.near_ends, Unreachable)
    assert asyncio.get_running_loop().time() - began <= 0.35


@virtual
async def test_a_link_without_anything_to_lose_beats_seldom_and_is_not_knocked() -> None:
    ends = await connected(knocks_at="far")
    await advance(LIMITS.attentive_s + 5.0)
    before = ends.far.messages_sent
    await advance(10.0)
    assert ends.far.messages_sent - before <= 10.0 / LIMITS.beat_s + 1
    ends.network.lane("far", "near").hold()
    await advance(1.0)
    assert ends.near.down is None
    down = await ends.near_ends
    assert not isinstance(down, Unreachable)


@virtual
async def test_beats_are_quick_again_after_a_word() -> None:
    ends = await connected(knocks_at="far")
    await advance(LIMITS.attentive_s + 5.0)
    ends.near.post(reserved(1))
    await advance(1.0)
    ends.network.lane("far", "near").hold()
    began = asyncio.get_running_loop().time()
    assert isinstance(await ends.near_ends, Unreachable)
    assert asyncio.get_running_loop().time() - began <= 0.55


@virtual
async def test_a_process_that_stood_still_itself_does_not_take_the_other_for_dead() -> None:
    ends = await connected()
    await advance(5.0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.clock.now += 30.0  # nobody ran meanwhile
    await advance(5.0)
    assert ends.near.down is None and ends.far.down is None


@virtual
async def test_closing_a_link_whose_other_end_is_stuck_does_not_wait_for_it() -> None:
    ends = await connected()
    ends.near.post(reserved(1))
    await advance(0.1)
    ends.network.lane("near", "far").hold()
    began = asyncio.get_running_loop().time()
    for _ in range(40):
        ends.near.post(pf.KVSnapshotChunk(1, b"x" * 200_000))
    await ends.near.close()
    assert asyncio.get_running_loop().time() - began <= LIMITS.beat_s + 0.01
    assert (await ends.near_ends).reason == "closed"


@virtual
async def test_what_is_no_message_ends_the_link() -> None:
    network = MemoryNetwork()
    ended: asyncio.Future[LinkDown] = asyncio.get_running_loop().create_future()

    async def accept(carrier: MemoryCarrier, _: str) -> None:
        ended.set_result(await Wire(carrier, LIMITS).run(lambda frames: None))

    network.listen("far", accept)
    carrier = await network.dial("near", "far")
    await carrier.send(b"GET / HTTP/1.1\r\n")
    down = await ended
    assert down.reason == "closed" and "not a peer message" in down.detail


@virtual
async def test_a_frame_out_of_place_ends_the_link() -> None:
    network = MemoryNetwork()
    ended: asyncio.Future[LinkDown] = asyncio.get_running_loop().create_future()

    def deliver(frames: list[pf.AnyFrame]) -> None:
        raise ValueError("Welcome")

    async def accept(carrier: MemoryCarrier, _: str) -> None:
        ended.set_result(await Wire(carrier, LIMITS).run(deliver))

    network.listen("far", accept)
    carrier = await network.dial("near", "far")
    await carrier.send(pf.pack([pf.encode(pf.Welcome(1, "r", "i", "f"))]))
    assert "a frame out of place: Welcome" in (await ended).detail
