"""The dialing end of a peer link: requests with numbered answers, watches with credit, and the handshake.

A caller waits for an answer or for the link's end, whichever comes first. If the link's end leaves the outcome of a
command unknown, its sender repeats it with the same id (I5). Events of a watch go to its watcher alone; bytes that the
watcher has taken are credited back, so that the replica knows how far behind this reader is.

Bounds: `requests` unanswered ones, `queue_bytes` unsent ones: beyond either, `Overloaded`.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, TypeVar

from actors.cluster.versions import OURS, common_protocol, protocol_mismatch, protocols_of
from actors.hosting.runtime import Moved
from actors.peer import frames as pf
from actors.peer.frames import PEER_PROTOCOL_OLDEST
from actors.peer.links import Carrier, Dialer, LinkDown, LinkLimits, Replaced, Unreachable, Watcher
from actors.peer.wire import Wire
from sessions.model.commands import Ok, ToolApprove
from sessions.model.errors import NotFound, Overloaded, Unavailable
from sessions.model.inspection import AboutTokenizer, Answer, BarePrompt, Question, TokenTexts
from sessions.model.request import Request
from sessions.model.types import Principal, SessionKey
from sessions.ports import Member, Owner

PATIENT_MAX: Final = 1024  # processes whose links ended early, at most

PeerReply = pf.Executed | pf.SessionTaken | pf.Failed | pf.MovedTo | pf.Surveyed | pf.Inspected | pf.Measured


R = TypeVar("R", bound=PeerReply)


class _RemoteSubscription:
    __slots__ = ("taken", "watcher")

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.taken = 0  # bytes not yet credited back


class PeerClient:
    """The dialing end of a link; implements `PeerLink`. A `Connector` makes it, and `run` carries it."""

    def __init__(
        self,
        member: Member,
        wire: Wire,
        limits: LinkLimits,
        protocol: int = PEER_PROTOCOL_OLDEST,
        on_end: Callable[[LinkDown], None] = lambda down: None,
    ) -> None:
        self.protocol = protocol
        self._member = member
        self._on_end = on_end
        self._wire = wire
        self._limits = limits
        self._numbers = 0
        self._pending: dict[int, asyncio.Future[PeerReply]] = {}
        self._watches: dict[int, _RemoteSubscription] = {}
        self._taken = 0  # bytes of events, of all watches, not yet credited back
        self._handoffs: dict[int, asyncio.Queue[pf.HandoffAnswer | LinkDown]] = {}
        self._drains: dict[int, asyncio.Queue[pf.DrainProgress | pf.Failed | LinkDown]] = {}

    @property
    def member(self) -> Member:
        return self._member

    @property
    def down(self) -> LinkDown | None:
        return self._wire.down

    async def run(self) -> LinkDown:
        """Carries the link until it ends, and returns the reason; callers that wait for an answer get LinkDown."""
        down = LinkDown("closed")
        try:
            down = await self._wire.run(self._deliver)
        finally:
            for pending in self._pending.values():
                if not pending.done():
                    pending.set_exception(down)
            self._pending.clear()
            self._watches.clear()
            for handoff in self._handoffs.values():
                handoff.put_nowait(down)
            for drain in self._drains.values():
                drain.put_nowait(down)
        self._on_end(down)
        return down

    async def close(self) -> None:
        await self._wire.close()

    # -- requests ---------------------------------------------------------------------------------------------------

    async def execute(
        self, request: Request, *, activate: bool, instead_of: Owner | None = None
    ) -> tuple[Ok, Owner | None]:
        if isinstance(request.command, ToolApprove) and self.protocol < 3:  # it would not read the frame
            raise NotFound("call_not_found", "No call waits for an approval at this replica.", param="call_id")
        answer = await self._request(pf.Executed, pf.Execute, request.principal, request.command, activate, instead_of)
        return answer.ok, answer.owner

    async def take_over(self, key: SessionKey, *, instead_of: Owner | None, priority: int) -> Owner:
        return (await self._request(pf.SessionTaken, pf.TakeOver, key, instead_of, priority)).owner

    async def holds(self, key: SessionKey, fence: int) -> Owner | None:
        try:
            return (await self._request(pf.SessionTaken, pf.Holds, key, fence)).owner
        except Moved:
            return None

    def deleted(self, key: SessionKey) -> None:
        self._check_room()
        self._wire.post(pf.Deleted(self._number(), key))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _check_room(self) -> None:
        if self._wire.down is not None:
            raise self._wire.down
        if len(self._pending) >= self._limits.requests or self._wire.queued_bytes >= self._limits.queue_bytes:
            raise Overloaded("overloaded", "Too much waits for this replica.", retry_after_ms=500)

    async def _request(self, reply: type[R], frame: Callable[..., pf.Frame], *fields: object) -> R:
        """Sends a frame made of a new number and `fields`; returns its answer. Raises LinkDown, Moved, or the error
        with which the other end answered."""
        self._check_room()
        number = self._number()
        pending: asyncio.Future[PeerReply] = asyncio.get_running_loop().create_future()
        self._pending[number] = pending
        self._wire.post(frame(number, *fields))
        try:
            answer = await pending
        finally:
            self._pending.pop(number, None)
        match answer:
            case pf.Failed():
                raise pf.raised(answer)
            case pf.MovedTo():
                raise Moved(answer.owner)
            case _:
                assert isinstance(answer, reply)
                return answer

    async def inspect(self, principal: Principal, question: Question) -> Answer:
        if isinstance(question, TokenTexts | AboutTokenizer | BarePrompt) and self.protocol < 3:
            what = "This replica is of the release before and cannot answer that. Try again when all are upgraded."
            raise Unavailable("no_replica", what)
        return (await self._request(pf.Inspected, pf.Inspect, principal, question)).answer

    # -- watches ----------------------------------------------------------------------------------------------------

    def attach(self, key: SessionKey, watcher: Watcher) -> int:
        if self._wire.down is not None:
            raise self._wire.down
        number = self._number()
        self._watches[number] = _RemoteSubscription(watcher)
        self._wire.post(pf.Attach(number, key))
        return number

    def detach(self, watch: int) -> None:
        if self._watches.pop(watch, None) is not None:
            self._wire.post(pf.Detach(watch))

    # -- hand-off ---------------------------------------------------------------------------------------------------

    def open_handoff(self) -> ClientHandoffChannel:
        if self._wire.down is not None:
            raise self._wire.down
        number = self._number()
        answers = self._handoffs[number] = asyncio.Queue()
        return ClientHandoffChannel(number, self._wire, answers, lambda: self._handoffs.pop(number, None))

    # -- operations -------------------------------------------------------------------------------------------------

    async def drain(self, on_progress: asyncio.Queue[pf.DrainProgress]) -> pf.DrainProgress:
        """Has the replica hand everything off; returns when nothing is left there. Raises SessileError, LinkDown."""
        return await self._drained(pf.DrainRequest, on_progress)

    async def undrain(self) -> None:
        """Has the replica take sessions again. Raises SessileError, LinkDown."""
        if self.protocol < 3:  # it would not read the frame
            what = "This replica is of the release before and cannot take a drain back: start it again instead."
            raise Unavailable("no_replica", what, retryable=False)
        await self._drained(pf.Undrain, asyncio.Queue())

    async def _drained(
        self, request: type[pf.DrainRequest | pf.Undrain], on_progress: asyncio.Queue[pf.DrainProgress]
    ) -> pf.DrainProgress:
        self._check_room()
        number = self._number()
        queue = self._drains[number] = asyncio.Queue()
        self._wire.post(request(number))
        try:
            while True:
                answer = await queue.get()
                if isinstance(answer, LinkDown):
                    raise answer
                if isinstance(answer, pf.Failed):
                    raise pf.raised(answer)
                on_progress.put_nowait(answer)
                if answer.left == 0:
                    return answer
        finally:
            del self._drains[number]

    async def survey(
        self, *, after: SessionKey | None, limit: int, tenant: str = "", session: str = "", state: str = ""
    ) -> pf.Surveyed:
        """Returns a page of the sessions in memory at the replica (see `frames.Survey`). Raises SessileError,
        LinkDown."""
        return await self._request(pf.Surveyed, pf.Survey, after, limit, tenant, session, state)

    async def measure(self, *, after: int = 0, step_s: int = 0) -> pf.Measured:
        """Returns the load of the replica, and how well its readers were served (see `frames.Measure`). Raises
        SessileError, LinkDown."""
        return await self._request(pf.Measured, pf.Measure, after, step_s)

    async def move(self, key: SessionKey, to: str = "") -> Owner:
        """Has the replica hand a session off to `to` ("": where placement chooses); returns its new owner. Raises
        SessileError, LinkDown."""
        return (await self._request(pf.SessionTaken, pf.Move, key, to)).owner

    # -- what arrives -----------------------------------------------------------------------------------------------

    def _deliver(self, frames: list[pf.AnyFrame]) -> None:
        credit: list[tuple[int, int]] = []
        for frame in frames:
            match frame:
                case pf.Events():
                    self._events(frame, credit)
                case pf.Executed() | pf.MovedTo() | pf.Surveyed() | pf.Inspected() | pf.Measured():
                    self._answer(frame.id, frame)
                case pf.SessionTaken() if frame.id in self._handoffs:
                    self._handoffs[frame.id].put_nowait(frame)
                case pf.SessionTaken():
                    self._answer(frame.id, frame)
                case pf.Failed() if frame.id in self._drains:
                    self._drains[frame.id].put_nowait(frame)
                case pf.Failed():
                    self._answer(frame.id, frame)
                case pf.Attached():
                    if (watch := self._watches.get(frame.watch)) is not None:
                        watch.watcher.attached(frame.owner, frame.epoch, frame.top)
                case pf.Behind():
                    if (watch := self._watches.get(frame.watch)) is not None:
                        watch.watcher.behind(frame.epoch, frame.top)
                case pf.Absent():
                    if (watch := self._watches.pop(frame.watch, None)) is not None:
                        watch.watcher.detached(frame.owner, top=0)
                case pf.SessionDeactivated():
                    if (watch := self._watches.pop(frame.watch, None)) is not None:
                        watch.watcher.detached(frame.owner, top=frame.top)
                case pf.Reserved() | pf.KVSnapshotCredit() | pf.HandoffReady() | pf.Abort():
                    if (queue := self._handoffs.get(frame.handoff)) is not None:
                        queue.put_nowait(frame)
                case pf.DrainProgress():
                    if (drain := self._drains.get(frame.id)) is not None:
                        drain.put_nowait(frame)
                case pf.Heartbeat():
                    self._wire.promised(frame)
                case _:
                    raise ValueError(type(frame).__name__)
        if credit:
            self._wire.post(pf.Credit(tuple(credit)))

    def _answer(self, number: int, answer: PeerReply) -> None:
        pending = self._pending.get(number)
        if pending is not None and not pending.done():
            pending.set_result(answer)

    def _events(self, frame: pf.Events, credit: list[tuple[int, int]]) -> None:
        self._taken += frame.num_bytes
        if self._taken >= self._limits.events_bytes // 8:
            credit.append((0, self._taken))
            self._taken = 0
        watch = self._watches.get(frame.watch)
        if watch is None:
            return  # on its way when the watch ended
        watch.watcher.events(frame.epoch, frame.records)
        watch.taken += frame.num_bytes
        if watch.taken >= self._limits.watch_bytes // 4:
            credit.append((frame.watch, watch.taken))
            watch.taken = 0


class ClientHandoffChannel:
    """The source's end of one hand-off; implements `HandoffChannel`. The protocol bounds how many answers wait: there
    is one for each question and each chunk."""

    def __init__(
        self,
        number: int,
        wire: Wire,
        answers: asyncio.Queue[pf.HandoffAnswer | LinkDown],
        end: Callable[[], object],
    ) -> None:
        self._number = number
        self._wire = wire
        self._answers = answers
        self._end = end

    @property
    def number(self) -> int:
        return self._number

    def send(self, frame: pf.Frame) -> None:
        if self._wire.down is not None:
            raise self._wire.down
        self._wire.post(frame)

    async def receive(self) -> pf.HandoffAnswer:
        answer = await self._answers.get()
        if isinstance(answer, LinkDown):
            raise answer
        return answer

    def give_up(self, reason: str) -> None:
        self._wire.post(pf.Abort(self._number, reason))

    def __enter__(self) -> ClientHandoffChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


class Connector:
    """Dials replicas and shakes hands; implements `Connect`.

    A link may end early because a knock was not answered. Later links to the same process then judge by beats alone for
    `patient_s`, so that a living replica is taken for dead by such a guess at most once in that time.
    """

    def __init__(
        self,
        dialer: Dialer,
        *,
        kind: Literal["gateway", "replica", "operator"],
        name: str,
        fingerprint: str | None = None,
        model: str = "",
        limits: LinkLimits | None = None,
        version: str = "",
    ) -> None:
        """`kind` and `name` say who dials. `fingerprint` is our own, if KV is to move over the links. If it is None, or
        a replica serves another model than `model` (sessions go there without KV), the hello carries the fingerprint
        that the directory has of the other end. `version` is our program's."""
        self._model = model
        self._dialer = dialer
        self._kind: Literal["gateway", "replica", "operator"] = kind
        self._name = name
        self._fingerprint = fingerprint
        self._limits = limits or LinkLimits()
        self._version = version
        self._patient_until: OrderedDict[tuple[str, str], float] = OrderedDict()  # processes

    async def __call__(self, member: Member) -> PeerClient:
        proposed = common_protocol(OURS, protocols_of(member))
        if proposed is None:
            raise LinkDown("rejected", protocol_mismatch(self._name, OURS, member.replica, protocols_of(member)) or "")
        carrier: Carrier | None = None
        process = member.replica, member.incarnation
        hasty = self._patient_until.get(process, -math.inf) <= asyncio.get_running_loop().time()
        alike = self._model in ("", member.model)
        try:
            async with asyncio.timeout(self._limits.dial_s):
                carrier = await self._dialer.dial(member.address)
                wire = Wire(carrier, self._limits, partial(self._dialer.knock, member.address) if hasty else None)
                await wire.now(
                    pf.PeerHello(
                        proposed,
                        self._kind,
                        self._name,
                        member.replica,
                        member.incarnation,
                        (self._fingerprint if alike else None) or member.fingerprint,
                        OURS,
                        self._version,
                    )
                )
                protocol = _protocol_of_welcome(await wire.first(), member)
            return PeerClient(member, wire, self._limits, protocol, partial(self._ended, process))
        except BaseException as error:
            if carrier is not None:
                await carrier.close()
            if isinstance(error, TimeoutError):
                raise LinkDown("keepalive", f"{member.address} does not answer") from error
            raise

    def _ended(self, process: tuple[str, str], down: LinkDown) -> None:
        if isinstance(down, Unreachable):
            self._patient_until.pop(process, None)
            self._patient_until[process] = asyncio.get_running_loop().time() + self._limits.patient_s
            while len(self._patient_until) > PATIENT_MAX:
                self._patient_until.popitem(last=False)


def _protocol_of_welcome(frames: list[pf.AnyFrame], member: Member) -> int:
    """Returns the protocol that the link speaks, from the first message of `member`. Raises LinkDown if that is no
    welcome, or names a protocol that this process does not speak; Replaced if another process answers."""
    match frames:
        case [pf.Welcome() as welcome]:
            decided = (welcome.protocol, welcome.protocol)
            apart = protocol_mismatch("this process", OURS, member.replica, decided)
            if apart is not None:
                raise LinkDown("rejected", apart)
            return welcome.protocol
        case [pf.PeerRefusal(code="wrong_process") as refusal]:
            raise Replaced(refusal.message)
        case [pf.PeerRefusal() as refusal]:
            raise LinkDown("rejected", refusal.message)
        case _:
            raise LinkDown("rejected", f"{member.address} is not a replica's peer link")
