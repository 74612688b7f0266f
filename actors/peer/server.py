"""Serves peer links: frames in, calls on this replica's runtime, frames out.

Each link is a `PeerSession`: its requests are tasks, bounded in number; its watches are sinks of the runtime, which
encode records once for all links. Watches are bounded in bytes: one with more than `watch_bytes` that its reader has
not taken, or on a link with more than `events_bytes` of that kind, is behind. Records that follow are left out, and
once there is room the reader learns how far the log went meanwhile; the journal has them. So a slow gateway costs its
own readers a detour, and other readers nothing (I7).

Does not know: carriers, where requests come from and why, hand-off (`HandoffReceiver`). A link's end ends its watches
and leaves its commands running: they are journaled or not, and their senders repeat them by id (I5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec
import structlog

from actors.cluster.versions import OURS, ProtocolRange, common_protocol, protocol_mismatch
from actors.hosting.ownership import Moved, session_moving_error
from actors.hosting.runtime import Runtime
from actors.peer import frames as pf
from actors.peer.links import Carrier, LinkDown, LinkLimits
from actors.peer.wire import Wire
from sessions.model.errors import Internal, Overloaded, SessileError
from sessions.model.request import request_of
from sessions.model.types import Epoch, SessionKey
from sessions.ports import Member, Owner, Published

log = structlog.get_logger(__name__)

HELLO_S = 5.0

Post = Callable[[pf.Frame], int]


class HandoffSession(Protocol):
    """The incoming hand-offs of one link."""

    def receive(self, frame: pf.Frame) -> None:
        """Takes a frame of a hand-off. It is a plain function, and sends its answers by the link's `post`."""
        ...

    def close(self) -> None:
        """Ends the hand-offs, because the link has ended."""
        ...


class HandoffReceiver(Protocol):
    """Takes sessions in from other replicas (`actors.handoff.target`)."""

    def open_session(self, post: Post, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> HandoffSession: ...


class Drainer(Protocol):
    """Empties the replica (`actors.handoff.drain`)."""

    async def drain(self, report: Callable[[int, int, int], None], *, by: str) -> None:
        """Drains the replica. `by` names the requester. Calls `report(handed_off, parked, left)` repeatedly with
        numbers of sessions, the last time with `left` 0."""
        ...

    async def undrain(self, *, by: str) -> None: ...


class SurveyPort(Protocol):
    """Shows operators which sessions are in memory here, and the load (`actors.maintenance.introspection`)."""

    def answer(self, survey: pf.Survey) -> pf.Surveyed: ...

    def measure(self, request: pf.Measure) -> pf.Measured: ...


class SessionMover(Protocol):
    """Hands one session off on an operator's request (`actors.handoff.operator_handoff`)."""

    async def move(self, key: SessionKey, to: str) -> Owner: ...


class DeletedKVCleaner(Protocol):
    """Releases the KV of deleted sessions (`actors.maintenance.kv_cleanup`)."""

    async def remove_if_deleted(self, key: SessionKey) -> bool: ...


class PeerEndpoint:
    """Accepts the links of other processes to one replica, each over a carrier."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        member: Member,
        handoffs: HandoffReceiver | None = None,
        drainer: Drainer | None = None,
        survey: SurveyPort | None = None,
        mover: SessionMover | None = None,
        kv_cleaner: DeletedKVCleaner | None = None,
        limits: LinkLimits | None = None,
    ) -> None:
        """Serves `runtime`. `member` is this replica, whose fingerprint and version peers get in the handshake. A None
        service (hand-offs, drain, survey and so on) is not offered."""
        self.runtime = runtime
        self.limits = limits or LinkLimits()
        self.handoffs = handoffs
        self.drainer = drainer
        self.survey = survey
        self.mover = mover
        self.kv_cleaner = kv_cleaner
        self._fingerprint = member.fingerprint
        self._version = member.version
        self._peers: dict[PeerSession, None] = {}
        self._encoded: tuple[Published | None, bytes] = (None, b"")

    @property
    def num_peers(self) -> int:
        return len(self._peers)

    async def accept(self, carrier: Carrier, peer: str) -> None:
        """Serves one link until it ends. Cancelling it ends the link."""
        wire = Wire(carrier, self.limits)
        try:
            async with asyncio.timeout(HELLO_S):
                peer_info = await self._welcome(wire)
        except (LinkDown, TimeoutError) as error:
            log.info("peer_refused", peer=peer, reason=str(error) or "no hello in time")
            await carrier.close()
            return
        peer_session = PeerSession(self, wire, peer_info)
        self._peers[peer_session] = None
        try:
            await peer_session.serve()
        finally:
            del self._peers[peer_session]

    async def _welcome(self, wire: Wire) -> pf.LinkedPeer:
        """Shakes hands; returns the peer. A peer that is refused gets the reason, and then LinkDown is raised."""
        match await wire.first():
            case [pf.PeerHello() as hello]:
                refusal = self._objection(hello)
            case _:
                raise LinkDown("rejected", "no hello")
        if refusal is not None:
            await wire.now(refusal)
            raise LinkDown("rejected", refusal.message)
        protocol = common_protocol(OURS, _speaks(hello))
        assert protocol is not None, "there was no objection"
        await wire.now(pf.Welcome(protocol, *self.runtime.identity, self._fingerprint, OURS, self._version))
        return pf.LinkedPeer(hello.kind, hello.name, protocol, hello.version)

    def peers(self) -> tuple[pf.LinkedPeer, ...]:
        """Returns the processes that have a link to this replica now."""
        return tuple(session.peer for session in self._peers)

    def _objection(self, hello: pf.PeerHello) -> pf.PeerRefusal | None:
        own = self.runtime.identity
        apart = protocol_mismatch(hello.name, _speaks(hello), own.replica, OURS)
        if apart is not None:
            return pf.PeerRefusal("protocol", apart)
        if hello.kind == "operator":
            return None
        if (hello.replica, hello.incarnation) != own:
            return pf.PeerRefusal(
                "wrong_process",
                f"this is {own.replica} {own.incarnation}, not {hello.replica} {hello.incarnation}",
            )
        if hello.fingerprint != self._fingerprint:
            return pf.PeerRefusal(
                "fingerprint",
                f"{own.replica} runs {self._fingerprint}, {hello.name} expects {hello.fingerprint}",
            )
        return None

    def encoded(self, published: Published) -> bytes:
        """Returns a publication's records in encoded form, which is made once for all links."""
        if self._encoded[0] is not published:
            self._encoded = published, pf.encode_records(published.records)
        return self._encoded[1]

    async def close(self) -> None:
        """Closes every link, once everything that was posted to it is sent."""
        await asyncio.gather(*(peer.close() for peer in list(self._peers)))


def _speaks(hello: pf.PeerHello) -> ProtocolRange:
    """Returns the protocols that a dialing process speaks; one that names no range speaks only the proposed one."""
    return hello.speaks or (hello.protocol, hello.protocol)


class PeerSession:
    """One link of another process to this replica."""

    def __init__(self, endpoint: PeerEndpoint, wire: Wire, peer: pf.LinkedPeer) -> None:
        self.endpoint = endpoint
        self.peer = peer
        self.name = f"{peer.kind} {peer.name}"
        self.events_bytes = 0  # sent and not yet credited, over all watches
        self.behind: dict[Attachment, None] = {}
        self._wire = wire
        self._attachments: dict[int, Attachment] = {}
        self._requests: set[asyncio.Task[None]] = set()
        self._tasks = asyncio.TaskGroup()
        self._handoffs = (
            endpoint.handoffs.open_session(wire.post, self._spawn) if endpoint.handoffs is not None else None
        )

    @property
    def post(self) -> Post:
        return self._wire.post

    async def serve(self) -> None:
        async with self._tasks:
            try:
                down = await self._wire.run(self._deliver)
                log.info("peer_left", peer=self.name, reason=str(down))
            finally:
                for attachment in list(self._attachments.values()):
                    attachment.end()
                self._attachments.clear()
                self.behind.clear()
                if self._handoffs is not None:
                    self._handoffs.close()

    async def close(self) -> None:
        await self._wire.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    # -- what arrives -----------------------------------------------------------------------------------------------

    def _deliver(self, frames: list[pf.AnyFrame]) -> None:
        for frame in frames:
            match frame:
                case pf.Execute():
                    self._request(frame.id, self._execute(frame))
                case pf.Attach():
                    self._attach(frame)
                case pf.Detach():
                    if (attachment := self._attachments.pop(frame.watch, None)) is not None:
                        attachment.end()
                case pf.Credit():
                    self._credit(frame)
                case pf.TakeOver():
                    self._request(frame.id, self._take_over(frame))
                case pf.Reserve() | pf.KVSnapshotChunk() | pf.HandoffPrefill() | pf.Sealed() | pf.Abort() if (
                    self._handoffs is not None
                ):
                    self._handoffs.receive(frame)
                case pf.Holds():
                    self._request(frame.id, self._holds(frame))
                case pf.DrainRequest() if self.endpoint.drainer is not None:
                    self._request(frame.id, self._drain(frame.id, self.endpoint.drainer))
                case pf.Undrain() if self.endpoint.drainer is not None:
                    self._request(frame.id, self._undrain(frame.id, self.endpoint.drainer))
                case pf.Survey() if self.endpoint.survey is not None:
                    surveyed = self.endpoint.survey.answer(frame)
                    self.post(msgspec.structs.replace(surveyed, peers=self.endpoint.peers()))
                case pf.Measure() if self.endpoint.survey is not None:
                    self.post(self.endpoint.survey.measure(frame))
                case pf.Move() if self.endpoint.mover is not None:
                    self._request(frame.id, self._move(frame, self.endpoint.mover))
                case pf.Deleted() if self.endpoint.kv_cleaner is not None:
                    self._request(frame.id, self._clean_kv(frame.key, self.endpoint.kv_cleaner))
                case pf.Inspect():
                    self._request(frame.id, self._inspect(frame))
                case pf.Heartbeat():
                    pass
                case _:
                    raise ValueError(type(frame).__name__)

    def _request(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        if len(self._requests) >= self.endpoint.limits.requests:
            work.close()
            self.post(pf.failed(number, Overloaded("overloaded", "Too many requests.", retry_after_ms=500)))
        else:
            self._spawn(self._answered(number, work))

    async def _answered(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        """Runs a request; an error that it raises becomes its answer."""
        try:
            await work
        except Moved as moved:
            self.post(pf.MovedTo(number, moved.owner))
        except SessileError as error:
            self.post(pf.failed(number, error))
        except Exception:  # the boundary of a task: one request fails, not the link
            log.exception("request_failed", peer=self.name)
            self.post(pf.failed(number, Internal("internal", "Something went wrong on our side.")))

    async def _execute(self, frame: pf.Execute) -> None:
        runtime = self.endpoint.runtime
        request = request_of(frame.principal, frame.command)
        if not frame.activate and not runtime.present(request.key):
            raise Moved(None)
        ok = await runtime.execute(request, instead_of=frame.instead_of)
        self.post(pf.Executed(frame.id, ok, runtime.ownership.owner(request.key)))

    async def _inspect(self, frame: pf.Inspect) -> None:
        answer = await self.endpoint.runtime.inspector.inspect(frame.principal, frame.question)
        self.post(pf.Inspected(frame.id, answer))

    async def _take_over(self, frame: pf.TakeOver) -> None:
        owner = await self.endpoint.runtime.recover(frame.key, instead_of=frame.instead_of, priority=frame.priority)
        if owner is None:
            raise session_moving_error()
        self.post(pf.SessionTaken(frame.id, owner))

    async def _holds(self, frame: pf.Holds) -> None:
        owner = await self.endpoint.runtime.confirmed_owner(frame.key, fence=frame.fence)
        if owner is None:
            raise Moved(None)
        self.post(pf.SessionTaken(frame.id, owner))

    async def _drain(self, number: int, drainer: Drainer) -> None:
        await drainer.drain(
            lambda handed_off, parked, left: self._report(number, handed_off, parked, left), by=self.name
        )

    async def _undrain(self, number: int, drainer: Drainer) -> None:
        await drainer.undrain(by=self.name)
        self._report(number, 0, 0, 0)

    async def _move(self, frame: pf.Move, mover: SessionMover) -> None:
        self.post(pf.SessionTaken(frame.id, await mover.move(frame.key, frame.to)))

    async def _clean_kv(self, key: SessionKey, cleaner: DeletedKVCleaner) -> None:
        await cleaner.remove_if_deleted(key)

    def _report(self, number: int, handed_off: int, parked: int, left: int) -> None:
        self.post(pf.DrainProgress(number, handed_off, parked, left))

    # -- watches ----------------------------------------------------------------------------------------------------

    def _attach(self, frame: pf.Attach) -> None:
        if frame.watch in self._attachments or frame.watch <= 0:
            raise ValueError("Attach: a number that is taken")
        attachment = self._attachments[frame.watch] = Attachment(self, frame.watch, frame.key)
        self._spawn(self._attached(attachment))

    async def _attached(self, attachment: Attachment) -> None:
        try:
            begun = await attachment.begin()
        except SessileError as error:
            log.info("attach_failed", session=attachment.key.session, tenant=attachment.key.tenant, error=error.code)
            begun = False
        if not begun and self._attachments.get(attachment.watch) is attachment:
            del self._attachments[attachment.watch]
            self.post(pf.Absent(attachment.watch, None))

    def deactivated(self, attachment: Attachment, epoch: Epoch, top: int, owner: Owner | None) -> None:
        """Ends an attachment whose session has left memory."""
        self._attachments.pop(attachment.watch, None)
        self.behind.pop(attachment, None)
        self.post(pf.SessionDeactivated(attachment.watch, epoch, top, owner))

    def _credit(self, frame: pf.Credit) -> None:
        for watch, num_bytes in frame.taken:
            if watch == 0:
                self.events_bytes -= num_bytes
            elif (attachment := self._attachments.get(watch)) is not None:
                attachment.untaken -= num_bytes
        for attachment in list(self.behind):
            if self.events_bytes > self.endpoint.limits.events_bytes // 2:
                return
            if attachment.untaken <= self.endpoint.limits.watch_bytes // 2:
                attachment.catch_up()


class Attachment:
    """One watch over one link: it is a subscriber of the runtime, and sends events."""

    __slots__ = ("_detach", "_ended", "_epoch", "_peer", "_top", "key", "untaken", "watch")

    def __init__(self, peer: PeerSession, watch: int, key: SessionKey) -> None:
        self.watch = watch
        self.key = key
        self.untaken = 0
        self._peer = peer
        self._detach: Callable[[], None] | None = None
        self._ended = False
        self._epoch = Epoch("")
        self._top = 0

    async def begin(self) -> bool:
        """Attaches to the actor and answers with `Attached`. Returns False if the session is not in memory here."""
        peer = self._peer
        runtime = peer.endpoint.runtime
        attached = await runtime.attach(self.key, self.publish, self.left)
        if attached is None:
            return False
        actor, detach = attached
        owner = runtime.ownership.owner(self.key)
        if self._ended or owner is None:
            detach()
            return self._ended
        self._detach = detach
        peer.post(pf.Attached(self.watch, owner, actor.epoch, actor.top))
        return True

    def publish(self, published: Published) -> None:
        """Sends records that became durable, or notes that this watch is behind if too many bytes are not credited."""
        peer = self._peer
        limits = peer.endpoint.limits
        if self in peer.behind or self.untaken >= limits.watch_bytes or peer.events_bytes >= limits.events_bytes:
            peer.behind[self] = None
            self._epoch, self._top = published.epoch, published.records[-1].offset
            return
        data = peer.endpoint.encoded(published)
        num_bytes = len(data)
        self.untaken += num_bytes
        peer.events_bytes += num_bytes
        peer.post(pf.EncodedEvents(self.watch, published.epoch, num_bytes, msgspec.Raw(data)))

    def catch_up(self) -> None:
        """Tells the reader how far the log went while the watch was behind; from now on events are sent again."""
        del self._peer.behind[self]
        self._peer.post(pf.Behind(self.watch, self._epoch, self._top))

    def left(self, epoch: Epoch, top: int, owner: Owner | None) -> None:
        """Ends the attachment: the session has left memory here."""
        self.end()
        self._peer.deactivated(self, epoch, top, owner)

    def end(self) -> None:
        """Ends the sending of events. Idempotent."""
        self._ended = True
        self._peer.behind.pop(self, None)
        detach, self._detach = self._detach, None
        if detach is not None:
            detach()
