"""Defines the frames of the peer protocol and how they are encoded.

A message on the wire is one msgpack array of frames; a frame is an array of its tag and its fields. The side that dials
(a gateway, or a replica that hands a session off) sends requests; the side that answers is a replica. Both send a
`Heartbeat` when they have nothing else to say. The protocol's number stands in the first frame of either side and
nowhere else: the dialing end proposes one, the answering end decides (`actors.cluster.versions`). Within a number,
fields are only ever added behind the others, with a default, so that an older end skips them; a frame or a value that
older ends do not know is sent only on links whose protocol has it. The recordings in tests/golden/neighbours check
this.

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
    """Base of a request and its answers: `id` is the number of the request on its link."""

    id: int


class WatchFrame(Frame, frozen=True):
    """Base of frames about one watched session: `watch` is the reader's number for it."""

    watch: int


class HandoffFrame(Frame, frozen=True):
    """Base of the frames of one hand-off: `handoff` is the source's number for it."""

    handoff: int


# -- the beginning and the end ------------------------------------------------------------------------------------


class PeerHello(Frame, frozen=True, tag=0):
    """The first frame of the dialing end: who it is, and which process it believes to have reached.

    `fingerprint` is a replica's own; otherwise the one that the directory has of the dialed replica.
    """

    protocol: int
    kind: Literal["gateway", "replica", "operator"]
    name: str
    replica: str
    incarnation: str
    fingerprint: str
    speaks: tuple[int, int] | None = None  # the oldest and the newest protocol; None: its program is older than ranges
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
    """The answer in place of `Welcome`, with the reason; the link ends. The `code` wrong_process means that another
    process has this address."""

    code: str
    message: str


class Heartbeat(Frame, frozen=True, tag=3):
    """A sign of life when there is nothing else to send. `every_ms` is how often this end will send something from now
    on, in milliseconds; 0 if it does not say."""

    every_ms: int = 0


class Goodbye(Frame, frozen=True, tag=4):
    """The link ends on purpose; the dialing end may dial again."""


# -- commands -----------------------------------------------------------------------------------------------------


class Execute(RequestFrame, frozen=True, tag=10):
    """Runs a command. A session that is not in memory there is activated only with `activate`, which is set if the
    session was placed there. `instead_of` is the owner that the sender has lost (early takeover)."""

    principal: Principal
    command: ActorCommand
    activate: bool = False
    instead_of: Owner | None = None


class TakeOver(RequestFrame, frozen=True, tag=11):
    """Activates a session so that its open turns go on. `instead_of` is its lost owner. Requests with smaller
    `priority` come first."""

    key: SessionKey
    instead_of: Owner | None = None
    priority: int = 0


class Executed(RequestFrame, frozen=True, tag=12):
    """The answer to `Execute`: the command was applied. `owner` holds the session now; None if the session has left
    memory again."""

    ok: Ok
    owner: Owner | None


class Failed(RequestFrame, frozen=True, tag=13):
    """The answer to a request that failed: its error."""

    kind: str
    code: str
    message: str
    param: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None


class MovedTo(RequestFrame, frozen=True, tag=14):
    """The answer to a request whose session is not at the answering replica. `owner` holds it; None if the answering
    replica does not know its owner."""

    owner: Owner | None


class SessionTaken(RequestFrame, frozen=True, tag=15):
    """The answer to `TakeOver`, `Holds` and `Move`, and the end of a hand-off: `owner` is the session's owner now."""

    owner: Owner


# -- reading ------------------------------------------------------------------------------------------------------


class Attach(WatchFrame, frozen=True, tag=20):
    """Begins a watch: events of `key` that become durable from now on are sent. Answered by `Attached`, or by `Absent`
    if the session is not in memory there."""

    key: SessionKey


class Detach(WatchFrame, frozen=True, tag=21):
    """Ends a watch: no more events of its session are sent."""


class Attached(WatchFrame, frozen=True, tag=22):
    """The watch has begun: `Events` follow from offset `top` + 1 on."""

    owner: Owner
    epoch: Epoch
    top: int


class Absent(WatchFrame, frozen=True, tag=23):
    """The session is not in memory there, so the watch has ended. `owner` is where it is; None if not known."""

    owner: Owner | None


class Events(WatchFrame, frozen=True, tag=24):
    """Records that have become durable. `num_bytes` is their encoded size, which the reader sends back in `Credit` once
    it has taken them."""

    epoch: Epoch
    num_bytes: int
    records: tuple[Record, ...]


class EncodedEvents(WatchFrame, frozen=True, tag=24):
    """The frame `Events` as a replica sends it: the records are encoded once for all watches."""

    epoch: Epoch
    num_bytes: int
    records: msgspec.Raw


class Behind(WatchFrame, frozen=True, tag=25):
    """Events up to `top` were left out because the reader was slow; the journal has them. From here on `Events` are
    sent again."""

    epoch: Epoch
    top: int


class SessionDeactivated(WatchFrame, frozen=True, tag=26):
    """The session has left that replica's memory, so the watch has ended. `top` is its newest offset; `owner` is its
    next owner, None if not known."""

    epoch: Epoch
    top: int
    owner: Owner | None


class Credit(Frame, frozen=True, tag=27):
    """The reader has taken events: pairs of a watch and the number of bytes taken. The watch 0 stands for all watches
    together."""

    taken: tuple[tuple[int, int], ...]


# -- hand-off -------------------------------------------------------------------------------------------------------


class Reserve(HandoffFrame, frozen=True, tag=30):
    """Asks whether `key` may come to the target. `handoff` numbers this hand-off on this link; `tokens` is the length
    of the session's longest ledger."""

    key: SessionKey
    tokens: int


class Reserved(HandoffFrame, frozen=True, tag=31):
    """The target has room for the session."""


class KVSnapshotChunk(HandoffFrame, frozen=True, tag=32):
    """A piece of the session's KV snapshot; an empty piece ends it."""

    data: bytes


class KVSnapshotCredit(HandoffFrame, frozen=True, tag=33):
    """The target has room for `num_bytes` more of the KV snapshot."""

    num_bytes: int


class HandoffPrefill(HandoffFrame, frozen=True, tag=34):
    """Asks the target to compute KV of a ledger: its first `keep` tokens are those of the ledger sent before, and
    `tokens` are the rest (packed token ids)."""

    keep: int
    tokens: bytes


class HandoffReady(HandoffFrame, frozen=True, tag=35):
    """The target has KV for this many leading tokens of the ledger. It is the answer to a snapshot's end and to
    `HandoffPrefill`."""

    tokens: int


class Sealed(HandoffFrame, frozen=True, tag=36):
    """The source has stopped and appends no more: `top` is the session's newest offset. The target is to claim the
    session in place of `owner`."""

    owner: Owner
    epoch: Epoch
    top: int


class Abort(HandoffFrame, frozen=True, tag=37):
    """Ends the hand-off, from either side; from the target with a reason."""

    reason: str


# -- operations -----------------------------------------------------------------------------------------------------


class DrainRequest(RequestFrame, frozen=True, tag=40):
    """Asks the replica to hand everything off and take nothing new. Answered by several `DrainProgress`, the last when
    nothing is left."""


class Undrain(RequestFrame, frozen=True, tag=51):
    """Asks the replica to take sessions again and to keep those it has. Answered by one `DrainProgress`. It exists
    since protocol 3."""


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
    open: tuple[str, ...]  # ids of the open responses
    kv_tier: str
    kv_tokens: int
    readers: int
    idle_s: float
    reason: str


class LinkedPeer(Frame, frozen=True):
    """A process that has dialed a replica, and the protocol of their link."""

    kind: str
    name: str
    protocol: int
    version: str = ""  # of its program; "": it does not tell


class Survey(RequestFrame, frozen=True, tag=42):
    """Asks a replica for the sessions in its memory, in order of keys, beginning behind `after`. An empty `tenant`,
    `session` or `state` matches every one."""

    after: SessionKey | None = None
    limit: int = 100
    tenant: str = ""
    session: str = ""
    state: str = ""


class Surveyed(RequestFrame, frozen=True, tag=43):
    """The answer to `Survey`, in order of keys. `total` is how many sessions pass the filter on all pages. `kv_bytes`
    is the size of the requested tenant's KV; None if no tenant was requested, or its KV is not counted. `peers` are the
    processes that have a link to the replica."""

    residents: tuple[ResidentSession, ...]
    total: int
    has_more: bool
    kv_bytes: int | None = None
    peers: tuple[LinkedPeer, ...] = ()


class Measure(RequestFrame, frozen=True, tag=49):
    """Asks how well readers were served there, and under which load: samples that end later than `after` (Unix
    seconds), in steps of `step_s` seconds. No samples are sent if `step_s` is 0."""

    after: int = 0
    step_s: int = 0


class Measured(RequestFrame, frozen=True, tag=50):
    """The answer to `Measure`. `sessions` is how many are in memory there now."""

    sessions: int
    totals: ServiceTotals
    samples: tuple[LoadSample, ...] = ()


class Move(RequestFrame, frozen=True, tag=44):
    """Asks to hand a session off to the replica `to`, or where placement chooses if `to` is "". Answered by
    `SessionTaken` with this id, or `Failed`."""

    key: SessionKey
    to: str = ""


class Holds(RequestFrame, frozen=True, tag=45):
    """Asks whether `key` is in memory there, and owned. Answered by `SessionTaken` with this id, or `MovedTo`.

    It is sent by a replica that is to take the session because the directory has no owner for it, and by one that owns
    the session while the directory names another owner. `fence` is the newest that the sender knows of; a replica whose
    own is older asks the journal before it answers.
    """

    key: SessionKey
    fence: int = 0


class Deleted(RequestFrame, frozen=True, tag=46):
    """Tells that `key` is deleted: the replica releases its KV of it if the journal confirms that. Answered only if
    that fails."""

    key: SessionKey


class Inspect(RequestFrame, frozen=True, tag=47):
    """A question about texts, which every replica of the model can answer with `Inspected`."""

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
    """Encodes one frame, in the form that it has inside a message."""
    return _encoder.encode(frame)


def pack(frames: Sequence[bytes]) -> bytes:
    """Returns a message made of encoded frames."""
    count = len(frames)
    if count < 16:
        return b"".join((bytes((0x90 | count,)), *frames))
    if count < 1 << 16:
        return b"".join((b"\xdc", count.to_bytes(2, "big"), *frames))
    return b"".join((b"\xdd", count.to_bytes(4, "big"), *frames))


def unpack(message: bytes) -> list[AnyFrame]:
    """Returns the frames of a message. Raises ValueError if it is not one."""
    try:
        return _decoder.decode(message)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a peer message: {error}") from error


def encode_records(records: Sequence[Record]) -> bytes:
    """Encodes records for `EncodedEvents`, without their private parts."""
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
    """Returns the error from which `failed` made this frame."""
    return _KINDS.get(frame.kind, SessileError)(
        frame.code,
        frame.message,
        param=frame.param,
        retryable=frame.retryable,
        retry_after_ms=frame.retry_after_ms,
    )
