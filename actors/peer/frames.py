"""Defines the frames of the peer protocol and how they are encoded.

A message on the wire is one msgpack array of frames; a frame is an array of its tag and its fields. The side that dials
(a gateway, or a replica that hands a session off) sends requests; the side that answers is a replica. Both send a
`Heartbeat` when they have nothing else to say. The protocol's number stands in the first frame of either side and
nowhere else: the dialing end proposes one, the answering end decides (`actors.cluster.versions`). Within a number,
fields are only ever added behind the others, with a default, so that an older end skips them; a frame, or a value in
one, that an older end does not know is sent only where the link's protocol has it. tests/golden/neighbours holds it.

    1   until 0.2.0
    2   hello and welcome name the range that each end speaks, and its program's version
    3   tools that the server carries out: their events, and `tool.approve`

Pure. What stands beside an event for our own eyes (`Record.private`) never travels to a gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from sessions.load_history import LoadSample
from sessions.model import errors
from sessions.model.commands import ActorCommand, Ok
from sessions.model.errors import SessileError
from sessions.model.events import Record
from sessions.model.inspection import Answer, Question
from sessions.model.types import Epoch, Principal, SessionKey
from sessions.ports import Owner
from sessions.service_totals import ServiceTotals

PEER_PROTOCOL: Final = 3  # the newest that this program speaks
PEER_PROTOCOL_OLDEST: Final = 1


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all frames."""


class RequestFrame(Frame, frozen=True):
    """A request or its answer: `id` numbers the request on its link."""

    id: int


class WatchFrame(Frame, frozen=True):
    """About one session that is read over the link: `watch` is the reader's number for it."""

    watch: int


class HandoffFrame(Frame, frozen=True):
    """Part of one hand-off: `handoff` is the source's number for it."""

    handoff: int


# -- the beginning and the end ------------------------------------------------------------------------------------


class PeerHello(Frame, frozen=True, tag=0):
    """The first frame of the dialing end: who it is, and whom it believes to have reached.

    `fingerprint` is what the directory has of the replica that is dialed, or, from a replica, its own."""

    protocol: int
    kind: Literal["gateway", "replica", "operator"]
    name: str
    replica: str
    incarnation: str
    fingerprint: str
    speaks: tuple[int, int] | None = None  # the oldest and the newest protocol; None: from before there were ranges
    version: str = ""  # of the program


class Welcome(Frame, frozen=True, tag=1):
    """The first frame of the answering end. From here on the link speaks `protocol`."""

    protocol: int
    replica: str
    incarnation: str
    fingerprint: str
    speaks: tuple[int, int] | None = None
    version: str = ""


class PeerRefusal(Frame, frozen=True, tag=2):
    """Instead of `Welcome`: why not. The link ends. `code` wrong_process: another one has this address now."""

    code: str
    message: str


class Heartbeat(Frame, frozen=True, tag=3):
    """Proof of life, when there is nothing else to say. `every_ms`: so often this end is to be heard from now on; 0: it
    does not say."""

    every_ms: int = 0


class Goodbye(Frame, frozen=True, tag=4):
    """The link ends on purpose; whoever dialed may come again."""


# -- commands -----------------------------------------------------------------------------------------------------


class Execute(RequestFrame, frozen=True, tag=10):
    """Run a command, where the session is in memory; elsewhere only with `activate`, set where it was placed
    there. `instead_of`: the owner that the sender has lost (early takeover)."""

    principal: Principal
    command: ActorCommand
    activate: bool = False
    instead_of: Owner | None = None


class TakeOver(RequestFrame, frozen=True, tag=11):
    """Activate a session so that its open turns go on. Smaller `priority` comes first."""

    key: SessionKey
    instead_of: Owner | None = None
    priority: int = 0


class Executed(RequestFrame, frozen=True, tag=12):
    """`Execute` was applied; `owner` holds the session."""

    ok: Ok
    owner: Owner | None


class Failed(RequestFrame, frozen=True, tag=13):
    """A request's error."""

    kind: str
    code: str
    message: str
    param: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None


class MovedTo(RequestFrame, frozen=True, tag=14):
    """Another replica holds the session, as far as we know; None: not we, and we do not know who."""

    owner: Owner | None


class SessionTaken(RequestFrame, frozen=True, tag=15):
    """`TakeOver` or a hand-off: the session is ours now."""

    owner: Owner


# -- reading ------------------------------------------------------------------------------------------------------


class Attach(WatchFrame, frozen=True, tag=20):
    """Send `watch` everything of `key` that becomes durable from now on, if the session is in memory there."""

    key: SessionKey


class Detach(WatchFrame, frozen=True, tag=21):
    """Send no more events of this session."""


class Attached(WatchFrame, frozen=True, tag=22):
    """From offset `top` + 1 on, `Events` follow."""

    owner: Owner
    epoch: Epoch
    top: int


class Absent(WatchFrame, frozen=True, tag=23):
    """The session is not in memory there; `owner` as far as known. The watch has ended."""

    owner: Owner | None


class Events(WatchFrame, frozen=True, tag=24):
    """`num_bytes` is the size of the encoded records, which the reader credits back."""

    epoch: Epoch
    num_bytes: int
    records: tuple[Record, ...]


class EncodedEvents(WatchFrame, frozen=True, tag=24):
    """`Events` as a replica sends it: the records are encoded once for all who watch."""

    epoch: Epoch
    num_bytes: int
    records: msgspec.Raw


class Behind(WatchFrame, frozen=True, tag=25):
    """Events up to `top` were left out because the reader was slow: the journal has them. `Events` follow again."""

    epoch: Epoch
    top: int


class SessionDeactivated(WatchFrame, frozen=True, tag=26):
    """The session has left that replica's memory at `top`; `owner` is the next one, if known. The watch has ended."""

    epoch: Epoch
    top: int
    owner: Owner | None


class Credit(Frame, frozen=True, tag=27):
    """The reader has taken this many bytes of events: pairs of (watch, bytes); watch 0 stands for all of them."""

    taken: tuple[tuple[int, int], ...]


# -- hand-off -------------------------------------------------------------------------------------------------------


class Reserve(HandoffFrame, frozen=True, tag=30):
    """May `key` come to you? `handoff` names this hand-off on this link until it ends; its ledger has `tokens`."""

    key: SessionKey
    tokens: int


class Reserved(HandoffFrame, frozen=True, tag=31):
    """Yes: there is room for the session."""


class KVSnapshotChunk(HandoffFrame, frozen=True, tag=32):
    """A piece of the session's KV snapshot; an empty one is its end."""

    data: bytes


class KVSnapshotCredit(HandoffFrame, frozen=True, tag=33):
    """The target has room for this many bytes more."""

    num_bytes: int


class HandoffPrefill(HandoffFrame, frozen=True, tag=34):
    """Bring KV up for a ledger: its first `keep` tokens as they were sent before, then `tokens` (packed)."""

    keep: int
    tokens: bytes


class HandoffReady(HandoffFrame, frozen=True, tag=35):
    """KV for so many leading tokens of the ledger is there: the answer to a snapshot's end and to `HandoffPrefill`."""

    tokens: int


class Sealed(HandoffFrame, frozen=True, tag=36):
    """The source has stopped at `top` and writes nothing more: claim the session instead of `owner`, and go on."""

    owner: Owner
    epoch: Epoch
    top: int


class Abort(HandoffFrame, frozen=True, tag=37):
    """The hand-off ends here (either side). From the target, with a reason."""

    reason: str


# -- operations -----------------------------------------------------------------------------------------------------


class DrainRequest(RequestFrame, frozen=True, tag=40):
    """Hand everything off and take nothing new. Answered by `DrainProgress` again and again until nothing is left."""


class Undrain(RequestFrame, frozen=True, tag=51):
    """Take sessions again, and leave here what is here. Answered by one `DrainProgress`. Since protocol 3."""


class DrainProgress(RequestFrame, frozen=True, tag=41):
    handed_off: int
    parked: int
    left: int


class ResidentSession(Frame, frozen=True):
    """A session in a replica's memory, or on its way there (`actors.maintenance.introspection`)."""

    key: SessionKey
    replica: str
    state: str
    fence: int
    epoch: str
    top: int
    open: tuple[str, ...]  # the responses that are being written
    kv_tier: str
    kv_tokens: int
    readers: int
    idle_s: float
    reason: str


class LinkedPeer(Frame, frozen=True):
    """Who has dialed a replica, and what they speak with each other."""

    kind: str
    name: str
    protocol: int
    version: str = ""  # of its program; empty: from before it was named


class Survey(RequestFrame, frozen=True, tag=42):
    """Which sessions are in memory there? Those behind `after`; an empty filter lets everything through."""

    after: SessionKey | None = None
    limit: int = 100
    tenant: str = ""
    session: str = ""
    state: str = ""


class Surveyed(RequestFrame, frozen=True, tag=43):
    """In order of their keys; `total` pass the filter, on all pages. `kv_bytes` is what the engine there holds of the
    tenant that was requested; None where none was, or it is not counted. `peers` are those with a link to it."""

    residents: tuple[ResidentSession, ...]
    total: int
    has_more: bool
    kv_bytes: int | None = None
    peers: tuple[LinkedPeer, ...] = ()


class Measure(RequestFrame, frozen=True, tag=49):
    """How well were readers served there, and under which load? Samples that end later than `after` (Unix seconds), in
    steps of `step_s`; none where it is 0."""

    after: int = 0
    step_s: int = 0


class Measured(RequestFrame, frozen=True, tag=50):
    """`sessions` are in memory there now."""

    sessions: int
    totals: ServiceTotals
    samples: tuple[LoadSample, ...] = ()


class Move(RequestFrame, frozen=True, tag=44):
    """Hand this session off, to the replica `to` or ("") to where placement would have it. Answered by `SessionTaken`
    with this id, or `Failed`."""

    key: SessionKey
    to: str = ""


class Holds(RequestFrame, frozen=True, tag=45):
    """Is `key` in memory there, and yours? Answered by `SessionTaken` with this id, or `MovedTo`. From a replica that
    is to take the session, because the directory has no owner for it."""

    key: SessionKey


class Deleted(RequestFrame, frozen=True, tag=46):
    """`key` is deleted: what lies there of its KV goes, if the journal confirms it. Answered only where that failed."""

    key: SessionKey


class Inspect(RequestFrame, frozen=True, tag=47):
    """A question about texts, which any replica of the model answers by `Inspected`."""

    principal: Principal
    question: Question


class Inspected(RequestFrame, frozen=True, tag=48):
    answer: Answer


AnyFrame = (
    PeerHello
    | Welcome
    | PeerRefusal
    | Heartbeat
    | Goodbye
    | Execute
    | TakeOver
    | Executed
    | Failed
    | MovedTo
    | SessionTaken
    | Attach
    | Detach
    | Attached
    | Absent
    | Events
    | Behind
    | SessionDeactivated
    | Credit
    | Reserve
    | Reserved
    | KVSnapshotChunk
    | KVSnapshotCredit
    | HandoffPrefill
    | HandoffReady
    | Sealed
    | Abort
    | DrainRequest
    | Undrain
    | DrainProgress
    | Survey
    | Surveyed
    | Move
    | Holds
    | Deleted
    | Inspect
    | Inspected
    | Measure
    | Measured
)

HandoffAnswer = Reserved | KVSnapshotCredit | HandoffReady | SessionTaken | Abort

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyFrame])


def encode(frame: Frame) -> bytes:
    """One frame, as it stands inside a message."""
    return _encoder.encode(frame)


def pack(frames: Sequence[bytes]) -> bytes:
    """A message of encoded frames."""
    count = len(frames)
    if count < 16:
        return b"".join((bytes((0x90 | count,)), *frames))
    if count < 1 << 16:
        return b"".join((b"\xdc", count.to_bytes(2, "big"), *frames))
    return b"".join((b"\xdd", count.to_bytes(4, "big"), *frames))


def unpack(message: bytes) -> list[AnyFrame]:
    """The frames of a message. Raises ValueError for anything else."""
    try:
        return _decoder.decode(message)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a peer message: {error}") from error


def encode_records(records: Sequence[Record]) -> bytes:
    """Records for `EncodedEvents`, without what stands beside them for our own eyes."""
    return _encoder.encode([r if r.private is None else Record(r.offset, r.at, r.event) for r in records])


# -- errors ---------------------------------------------------------------------------------------------------------

_KINDS: Final[dict[str, type[SessileError]]] = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SessileError)
}


def failed(id: int, error: SessileError) -> Failed:
    return Failed(
        id,
        type(error).__name__,
        error.code,
        error.public_message,
        error.param,
        error.retryable,
        error.retry_after_ms,
    )


def raised(frame: Failed) -> SessileError:
    """The error that `failed` was made of."""
    return _KINDS.get(frame.kind, SessileError)(
        frame.code,
        frame.message,
        param=frame.param,
        retryable=frame.retryable,
        retry_after_ms=frame.retry_after_ms,
    )
