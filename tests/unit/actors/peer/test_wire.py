"""Frames and messages on a wire, its beats, and when its silence means something."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.peer import frames as pf
from actors.peer.links import LinkDown, LinkLimits, Unreachable
from actors.peer.silence import SilenceDetector, SilenceFinding
from actors.peer.wire import Wire
from sessions.load_history import LoadSample
from sessions.model import commands as cm
from sessions.model import inspection
from sessions.model.events import OutputTextDelta, Private, Record
from sessions.model.types import (
    ActivationId,
    CommandId,
    Epoch,
    ItemId,
    Principal,
    ReplicaId,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
)
from sessions.ports import Owner
from sessions.service_totals import ServiceTotals
from tests.support.cluster.memory_network import MemoryCarrier, MemoryNetwork
from tests.support.virtual_time import VirtualLoop, advance, until, virtual

QUESTION = inspection.PromptMessage(role="user", text="hi")
KEY = SessionKey(TenantId("acme"), SessionId("one"))
OWNER = Owner(ReplicaId("r1"), "i1", ActivationId("a1"))
ALICE = Principal(tenant=TenantId("acme"), key_id="alice", user="u")


def delta(offset: int, private: Private | None = None) -> Record:
    event = OutputTextDelta(
        response_id=ResponseId("r"),
        sequence_number=offset,
        item_id=ItemId("i"),
        output_index=0,
        content_index=0,
        delta="word",
    )
    return Record(offset, UnixMs(1), event, private)


FRAMES = [
    pf.PeerHello(1, "gateway", "g1", "r1", "i1", "f"),
    pf.PeerHello(2, "gateway", "g1", "r1", "i1", "f", (1, 2), "0.3.0"),
    pf.Welcome(1, "r1", "i1", "f"),
    pf.Welcome(2, "r1", "i1", "f", (1, 2), "0.3.0"),
    pf.PeerRefusal("protocol", "no"),
    pf.Heartbeat(),
    pf.Goodbye(),
    pf.Execute(1, ALICE, cm.MessageCreate(id=CommandId("c"), session=KEY.session, content="hi", parent_id=None), True),
    pf.Execute(2, ALICE, cm.SessionCreate(id=CommandId("c")), False, OWNER),
    pf.TakeOver(3, KEY, OWNER, 1),
    pf.Executed(4, cm.Ok(id=CommandId("c"), offset=3), OWNER),
    pf.Executed(4, cm.Ok(id=CommandId("c"), noop=True), None),
    pf.MovedTo(5, None),
    pf.Holds(5, KEY, 3),
    pf.Deleted(5, KEY),
    pf.SessionTaken(6, OWNER),
    pf.Attach(7, KEY),
    pf.Detach(7),
    pf.Attached(7, OWNER, Epoch("e"), 9),
    pf.Absent(7, OWNER),
    pf.Events(7, Epoch("e"), 12, (delta(1), delta(2))),
    pf.Behind(7, Epoch("e"), 9),
    pf.SessionDeactivated(7, Epoch("e"), 9, None),
    pf.Credit(((0, 5), (7, 5))),
    pf.Reserve(8, KEY, 100),
    pf.Reserved(8),
    pf.KVSnapshotChunk(8, b"\0\1"),
    pf.KVSnapshotCredit(8, 2),
    pf.HandoffPrefill(8, 3, b"\1\0\0\0"),
    pf.HandoffReady(8, 4),
    pf.Sealed(8, OWNER, Epoch("e"), 9),
    pf.Abort(8, "no"),
    pf.DrainRequest(9),
    pf.Undrain(9),
    pf.DrainProgress(9, 1, 2, 3),
    pf.Survey(10, KEY, 50, state="idle"),
    pf.Move(11, KEY, "r2"),
    pf.Surveyed(10, (pf.ResidentSession(KEY, "r1", "idle", 1, "e", 3, (), "device", 9, 1, 0.5, "new"),), 2, True),
    pf.Surveyed(11, (), 0, False, 1 << 40, (pf.LinkedPeer("gateway", "g1", 2, "0.3.0"),)),
    pf.Inspect(12, ALICE, inspection.TextTokens("hi", starts=True)),
    pf.Inspect(12, ALICE, inspection.PromptTokens(instructions="x", messages=(QUESTION,))),
    pf.Inspect(12, ALICE, inspection.JudgedTexts(("a", "b"))),
    pf.Inspected(12, inspection.TokenIds((1, 2), 512)),
    pf.Inspected(12, inspection.Judgements((inspection.Judgement({"keyword": 1.0}),), ("keywords",))),
    pf.Measure(13, 1_000_000_000, 60),
    pf.Measured(13, 4, ServiceTotals(ttft=(0, 2), met=3.0, ended={"stop": 4.0})),
    pf.Measured(
        13, 4, ServiceTotals(), (LoadSample(9, 9.5, (1,), 2.0, 3.0, 1.0, 0.0, 0.0, 1, 2, 4, 5, {"host": 7.5}),)
    ),
]


def test_every_kind_of_frame_is_listed_here() -> None:
    assert {type(frame) for frame in FRAMES} | {pf.Failed} == set(pf.AnyFrame.__args__)


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_a_message_of_any_number_of_frames(count: int) -> None:
    assert len(pf.unpack(pf.pack([pf.encode(pf.Heartbeat())] * count))) == count


@given(st.binary(max_size=60))
def test_anything_else_is_a_value_error(message: bytes) -> None:
    try:
        frames = pf.unpack(message)
    except ValueError:
        return
    assert all(isinstance(frame, pf.Frame) for frame in frames)


def test_what_is_for_our_own_eyes_does_not_travel() -> None:
    data = pf.encode_records([delta(1, Private(tokens=b"secret", fingerprint="f")), delta(2)])
    assert b"secret" not in data
    frame = pf.EncodedEvents(1, Epoch("e"), len(data), msgspec.Raw(data))
    (told,) = pf.unpack(pf.pack([pf.encode(frame)]))
    assert told == pf.Events(1, Epoch("e"), len(data), (delta(1), delta(2)))


LIMITS = LinkLimits()
QUICK = LIMITS.quick_beat_s


def measured(after_s: float = 0.001) -> SilenceDetector:
    """Returns an end that beats quickly, after the first knock was answered."""
    silence = SilenceDetector(LIMITS, knocks=True)
    silence.promised(QUICK)
    assert silence.beat(QUICK, heard=True) is SilenceFinding.KNOCK and silence.measuring
    silence.answered(after_s)
    assert not silence.measuring
    return silence


def findings(silence: SilenceDetector, beats: int, *, pace_s: float = QUICK) -> list[SilenceFinding]:
    return [silence.beat(pace_s, heard=False) for _ in range(beats)]


def test_a_host_that_is_lost_while_its_process_stands_still_is_noticed() -> None:
    silence = measured()
    assert findings(silence, 2)[-1] is SilenceFinding.KNOCK
    silence.answered(0.001)
    assert findings(silence, 4) == [
        SilenceFinding.ALIVE,
        SilenceFinding.KNOCK,
        SilenceFinding.ALIVE,
        SilenceFinding.UNREACHABLE,
    ]


def test_a_word_withdraws_the_knock() -> None:
    silence = measured()
    findings(silence, 2)
    assert silence.beat(QUICK, heard=True) is SilenceFinding.WITHDRAW
    assert findings(silence, 2) == [SilenceFinding.ALIVE, SilenceFinding.KNOCK]


def test_answers_that_take_long_are_given_longer() -> None:
    silence = measured(0.15)
    assert findings(silence, 7) == [SilenceFinding.ALIVE, SilenceFinding.KNOCK, *[SilenceFinding.ALIVE] * 5][:7]
    assert silence.beat(QUICK, heard=False) is SilenceFinding.UNREACHABLE
    slow = measured(1.0)  # so long that beats are the faster way
    assert SilenceFinding.UNREACHABLE not in findings(slow, 14)
    assert slow.beat(QUICK, heard=False) is SilenceFinding.SILENT


def test_a_host_that_never_answered_is_not_judged_by_that() -> None:
    silence = SilenceDetector(LIMITS, knocks=True)
    silence.promised(QUICK)
    assert silence.beat(QUICK, heard=True) is SilenceFinding.KNOCK
    waiting = [silence.beat(QUICK, heard=True) for _ in range(15)]
    assert waiting[-1] is SilenceFinding.WITHDRAW
    assert set(findings(silence, 14)) == {SilenceFinding.ALIVE}
    assert silence.beat(QUICK, heard=False) is SilenceFinding.SILENT


def test_a_refusal_while_it_is_heard_says_that_knocks_are_of_no_use() -> None:
    silence = SilenceDetector(LIMITS, knocks=True)
    silence.promised(QUICK)
    assert silence.beat(QUICK, heard=True) is SilenceFinding.KNOCK
    silence.unanswerable()
    assert set(findings(silence, 14)) == {SilenceFinding.ALIVE}


@pytest.mark.parametrize("every_s", [0.0, LIMITS.beat_s])
def test_an_end_that_does_not_beat_quickly_is_not_knocked(every_s: float) -> None:
    """One of an older version, or of a link without anything to lose."""
    silence = measured()
    silence.promised(every_s)
    assert set(findings(silence, 14)) == {SilenceFinding.ALIVE}


def test_without_a_way_to_knock_beats_alone_count() -> None:
    silence = SilenceDetector(LIMITS, knocks=False)
    silence.promised(QUICK)
    assert {silence.beat(QUICK, heard=True), *findings(silence, 14)} == {SilenceFinding.ALIVE}
    assert silence.beat(QUICK, heard=False) is SilenceFinding.SILENT


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
    ends.near.post(pf.Reserved(1))
    await advance(0.1)
    ends.network.lane("near", "far").hold()
    began = asyncio.get_running_loop().time()
    for _ in range(40):
        ends.near.post(pf.KVSnapshotChunk(1, b"x" * 200_000))
    await ends.near.close()
    assert asyncio.get_running_loop().time() - began <= LIMITS.beat_s + 0.01
    assert (await ends.near_ends).reason == "closed"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "not a peer message"),
        (pf.pack([pf.encode(pf.Welcome(1, "r", "i", "f"))]), "a frame out of place: Welcome"),
    ],
    ids=["no message", "out of place"],
)
@virtual
async def test_what_has_no_place_here_ends_the_link(message: bytes, why: str) -> None:
    network = MemoryNetwork()
    ended: asyncio.Future[LinkDown] = asyncio.get_running_loop().create_future()

    def deliver(frames: list[pf.AnyFrame]) -> None:
        raise ValueError("Welcome")

    async def accept(carrier: MemoryCarrier, _: str) -> None:
        ended.set_result(await Wire(carrier, LIMITS).run(deliver))

    network.listen("far", accept)
    carrier = await network.dial("near", "far")
    await carrier.send(message)
    down = await ended
    assert down.reason == "closed" and why in down.detail
