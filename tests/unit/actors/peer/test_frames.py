"""Frames: what one end packs the other unpacks, whatever it is; and what must not travel does not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.peer import frames as pf
from sessions.load_history import LoadSample
from sessions.model import commands as cm
from sessions.model import errors, inspection
from sessions.model.errors import SessileError
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


@given(st.lists(st.sampled_from(FRAMES), max_size=40))
def test_what_is_packed_is_unpacked(frames: list[pf.Frame]) -> None:
    assert pf.unpack(pf.pack([pf.encode(frame) for frame in frames])) == frames


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


@pytest.mark.parametrize(
    "kind", [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, SessileError)]
)
def test_an_error_arrives_as_what_it_was(kind: type[SessileError]) -> None:
    error = kind("some_code", "Some words.", param="p", retryable=True, retry_after_ms=7)
    (frame,) = pf.unpack(pf.pack([pf.encode(pf.failed(1, error))]))
    assert isinstance(frame, pf.Failed)
    told = pf.raised(frame)
    assert type(told) is kind and told.public() == error.public() and told.status == error.status
