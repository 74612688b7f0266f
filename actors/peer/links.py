"""Keeps one link per replica, and suspects replicas that cannot be reached; the ports of the peer protocol.

Three layers, each with its own second implementation:

    router, hand-off ─ PeerLink ─ Wire (frames, batches, beats) ─ Carrier (messages of bytes) ─ gRPC | memory

A `Carrier` moves whole messages in order or dies; everything else (liveness, limits, routing) is
decided above it, so that a whole cluster runs in one process under virtual time on the same code.

`Links` keeps one link per replica and knows of each whether it can be trusted. A replica is suspected when a link
broke and its address does not answer any more, when it was silent for too long (`actors.peer.silence`), or when another
process answers in its place. A suspicion is no proof, and need not be: an action on one is fenced by the journal (I1).
It ends when the replica answers again. Bounds: one link and one dialing per replica.

After: the phi-accrual and SWIM detectors' split of suspicion from proof; etcd's peer streams.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Literal, Protocol

import msgspec
import structlog

from actors.hosting.ownership import Identity
from actors.peer.frames import Frame, HandoffAnswer
from sessions.backoff import Backoff
from sessions.model.commands import Ok
from sessions.model.errors import Unavailable
from sessions.model.events import Record
from sessions.model.inspection import Answer, Question
from sessions.model.request import Request
from sessions.model.types import Epoch, Principal, SessionKey
from sessions.ports import Member, Owner

log = structlog.get_logger(__name__)

DownReason = Literal["reset", "refused", "keepalive", "rejected", "closed"]


class LinkDown(Exception):
    """Raised if a link is down. Requests sent over it may or may not have been executed. `reason` is one of:

    reset      it broke                        refused   nothing listens at the address
    keepalive  the other end is silent         rejected  the other end refuses us: `detail` has the reason
    closed     one of the ends closed it on purpose
    """

    def __init__(self, reason: DownReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason: DownReason = reason
        self.detail = detail


class Replaced(LinkDown):
    """Raised if another process answers at the replica's address: the expected one has ended."""

    def __init__(self, detail: str) -> None:
        super().__init__("refused", detail)


class Unreachable(LinkDown):
    """Raised if the other end is silent and its host does not answer a knock: it is taken for dead, by an early
    guess."""

    def __init__(self, detail: str) -> None:
        super().__init__("keepalive", detail)


class Carrier(Protocol):
    """A connection that moves messages both ways, in order and whole, until it dies; then all calls raise LinkDown."""

    async def send(self, message: bytes) -> None:
        """Sends a message; returns when there is room for another one. One caller at a time."""
        ...

    async def receive(self) -> bytes:
        """Returns the next message. One caller at a time."""
        ...

    async def close(self) -> None:
        """Ends the connection at once, for both sides. Idempotent; never raises."""
        ...


class Dialer(Protocol):
    async def dial(self, address: str) -> Carrier:
        """Connects to an address. Raises LinkDown: refused, rejected (credentials), or keepalive if nothing answers in
        time."""
        ...

    async def knock(self, address: str) -> None:
        """Returns when the host accepts a connection, whatever its process does. Raises LinkDown if the host refuses
        one. Waits without limit if nothing answers, so the caller cancels it."""
        ...


class Watcher(Protocol):
    """The reader of a session over a link. Called by the link's reader: plain functions that neither block nor
    raise."""

    def attached(self, owner: Owner, epoch: Epoch, top: int) -> None:
        """Notes that the watch is attached: events from `top` + 1 on follow."""
        ...

    def events(self, epoch: Epoch, records: tuple[Record, ...]) -> None: ...

    def behind(self, epoch: Epoch, top: int) -> None:
        """Notes that events up to `top` were left out; the journal has them."""
        ...

    def detached(self, owner: Owner | None, *, top: int) -> None:
        """Notes that the watch has ended, because the session is not in memory at that replica. `owner` is the
        session's next owner, None if not known. `top` is its newest offset there, 0 if it was not there."""
        ...


class HandoffChannel(Protocol):
    """One hand-off over a link, at its source. It is a context: after its end the target's frames are dropped."""

    @property
    def number(self) -> int:
        """The number that the frames of this hand-off carry."""
        ...

    def send(self, frame: Frame) -> None:
        """Sends a frame. Raises LinkDown."""
        ...

    async def receive(self) -> HandoffAnswer:
        """Returns the target's next frame. Raises LinkDown."""
        ...

    def give_up(self, reason: str) -> None:
        """Tells the target that the session does not come, if the link is still up."""
        ...

    def __enter__(self) -> HandoffChannel: ...

    def __exit__(self, *_: object) -> None: ...


class PeerLink(Protocol):
    """The link from this process to one replica. Every call raises LinkDown if the link is down, or ends during the
    call."""

    @property
    def member(self) -> Member: ...

    @property
    def down(self) -> LinkDown | None:
        """The reason why the link ended; None while it is up."""
        ...

    async def execute(
        self, request: Request, *, activate: bool, instead_of: Owner | None = None
    ) -> tuple[Ok, Owner | None]:
        """Runs a command at the replica; a session that is not in memory there is activated only with `activate`.
        Returns the answer and the session's owner, None if the session has left memory again. Raises the command's
        SessileError, or Moved. Cancelling the call does not undo the command."""
        ...

    async def take_over(self, key: SessionKey, *, instead_of: Owner | None, priority: int) -> Owner:
        """Has the session activated at the replica; returns its owner. Raises SessileError or Moved."""
        ...

    async def holds(self, key: SessionKey, fence: int) -> Owner | None:
        """Returns the owner of a session that is in memory at the replica and certainly owned there; else None. A
        replica whose fence is older than `fence` asks the journal first. Raises SessileError."""
        ...

    def deleted(self, key: SessionKey) -> None:
        """Tells the replica that a session is deleted, without waiting. Raises Overloaded."""
        ...

    async def inspect(self, principal: Principal, question: Question) -> Answer:
        """Asks the replica about texts (their tokens, or what moderation finds in them, as `question` says) and returns
        its answer. Raises SessileError."""
        ...

    def attach(self, key: SessionKey, watcher: Watcher) -> int:
        """Begins a watch and returns its number, for `detach`. `watcher` is called with what happens to the session; it
        is not called when the link goes down."""
        ...

    def detach(self, watch: int) -> None:
        """Ends a watch: its watcher is not called any more. Idempotent."""
        ...

    def open_handoff(self) -> HandoffChannel:
        """Begins a hand-off; returns its channel."""
        ...

    async def run(self) -> LinkDown:
        """Carries the link until it ends, and returns the reason. Cancelling it closes the link."""
        ...


class LinkLimits(msgspec.Struct, frozen=True):
    """The limits of a link. A peer that is silent for `dead_after_beats` of our own beats counts as dead, after 1.5 to
    2 s. Only beats during which this process ran count, so that one that stood still takes no other for dead.

    Beats are quick on a link that was used lately. There a peer whose host does not answer a knock either counts as
    dead after 0.4 to 0.5 s (`actors.peer.silence`).
    """

    beat_s: float = 0.5
    dead_after_beats: int = 3
    quick_beat_s: float = 0.1
    attentive_s: float = 30.0  # beats are quick for so long after the last other frame
    knock_after_beats: int = 2  # quick beats without a word, before a knock
    knock_beats: int = 2  # quick beats to wait for a knock's answer; more if answers take longer
    patient_s: float = 60.0  # for so long after an early end by a knock, only beats count
    linger_s: float = 0.001  # frames that follow a message within this time share the next one
    message_bytes: int = 256 * 1024  # a message is closed when it reaches this
    queue_bytes: int = 64 << 20  # unsent; beyond it requests are refused
    requests: int = 4096  # unanswered
    dial_s: float = 1.0
    redial_min_s: float = 0.1
    redial_max_s: float = 1.0
    watch_bytes: int = 256 * 1024  # events of one watch that its reader has not taken
    events_bytes: int = 16 << 20  # the same for all watches of a link


class Connect(Protocol):
    """Dials a replica and shakes hands: `actors.peer.client.Connector`. The caller runs the link."""

    async def __call__(self, member: Member) -> PeerLink: ...


class LinkEvents(Protocol):
    """A listener for what happens to links. Its methods are plain functions."""

    def link_down(self, link: PeerLink, reason: LinkDown) -> None:
        """Notes that a link that was up has ended. Unless its replica is suspected at once, it is being dialed
        again."""
        ...

    def suspected(self, member: Member) -> None:
        """Notes that the replica does not answer (any more)."""
        ...

    def reachable(self, member: Member) -> None:
        """Notes that a link to the replica is up (again)."""
        ...


def identity(of: Member | Owner) -> Identity:
    return Identity(of.replica, of.incarnation)


class _Peer:
    """The link, or its attempts, to one replica process."""

    __slots__ = ("dialing", "link", "member", "rejected", "suspect", "task")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.link: PeerLink | None = None
        self.suspect: LinkDown | None = None
        self.rejected: tuple[float, LinkDown] | None = None  # (time, reason): it is not dialed again before this time
        self.dialing: asyncio.Task[PeerLink] | None = None
        self.task: asyncio.Task[None] | None = None  # redials a suspect


class Links:
    """All links of one process. `spawn` starts the tasks that carry them; a link ends with its task."""

    def __init__(
        self,
        connect: Connect,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        limits: LinkLimits | None = None,
    ) -> None:
        self._connect = connect
        self._spawn = spawn
        self._limits = limits or LinkLimits()
        self._peers: dict[Identity, _Peer] = {}
        self._listeners: list[LinkEvents] = []
        self._known: set[Identity] = set()
        self._suspects: set[Identity] = set()
        self._closed = False

    def add_listener(self, events: LinkEvents) -> None:
        """Has `events` called with what happens to links, until `close`."""
        self._listeners.append(events)

    def suspect(self, of: Member | Owner) -> bool:
        peer = self._peers.get(identity(of))
        return peer is not None and peer.suspect is not None

    @property
    def has_suspects(self) -> bool:
        """Whether at least one replica is suspected. Mostly none is, and then callers need not look through a large
        view."""
        return bool(self._suspects)

    def member(self, of: Member | Owner) -> Member | None:
        """Returns the replica of an owner if there is a link to it, whether or not it is in the view; else None."""
        peer = self._peers.get(identity(of))
        return peer.member if peer is not None and peer.link is not None else None

    def update(self, members: Iterable[Member]) -> None:
        """Sets which replicas are alive by the directory. Only those are dialed again after a link has ended."""
        self._known = {identity(member) for member in members}
        for of, peer in list(self._peers.items()):
            if of not in self._known and peer.link is None and peer.dialing is None:
                self._forget(of)
            elif of in self._known and peer.suspect is not None and peer.task is not None and peer.task.done():
                peer.task = self._spawn(self._redial(peer))  # it had left, and was not dialed since

    def _forget(self, of: Identity) -> None:
        peer = self._peers.pop(of)
        self._suspects.discard(of)
        if peer.task is not None:
            peer.task.cancel()

    async def get(self, member: Member) -> PeerLink:
        """Returns the link to a replica, dialed if there is none. Raises LinkDown; at once if the replica is
        suspected."""
        if self._closed:
            raise LinkDown("closed")
        peer = self._peers.get(identity(member))
        if peer is None:
            peer = self._peers[identity(member)] = _Peer(member)
        if peer.link is not None:
            return peer.link
        if peer.suspect is not None:
            raise peer.suspect
        if peer.rejected is not None and asyncio.get_running_loop().time() < peer.rejected[0]:
            raise peer.rejected[1]
        return await self._answered(peer)

    async def is_replaced(self, member: Member) -> bool:
        """Dials a suspected replica once more; returns whether another process answers in its place."""
        peer = self._peers.get(identity(member))
        if peer is None or peer.suspect is None or self._closed:
            return False
        with contextlib.suppress(LinkDown):
            await self._answered(peer)
        return isinstance(peer.suspect, Replaced)

    async def _answered(self, peer: _Peer) -> PeerLink:
        dialing = self._dial(peer)
        await asyncio.wait((dialing,))  # a cancelled caller does not cancel it for others
        if dialing.cancelled():  # by `close`
            raise LinkDown("closed")
        return dialing.result()

    def _dial(self, peer: _Peer) -> asyncio.Task[PeerLink]:
        """Dials a replica, once for all callers at the same time. The callers await the returned task; its own callback
        does too."""
        if peer.dialing is None:
            peer.dialing = asyncio.get_running_loop().create_task(self._dialed(peer))
            peer.dialing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return peer.dialing

    async def _dialed(self, peer: _Peer) -> PeerLink:
        try:
            link = await self._connect(peer.member)
        except LinkDown as down:
            peer.dialing = None
            if down.reason == "rejected":
                log.error("link_rejected", replica=peer.member.replica, reason=down.detail)
                peer.rejected = asyncio.get_running_loop().time() + self._limits.redial_max_s, down
            else:
                self._doubt(peer, down)
            raise
        except BaseException:
            peer.dialing = None
            raise
        peer.dialing, peer.suspect = None, None
        self._suspects.discard(identity(peer.member))
        peer.link = link
        self._spawn(self._carry(peer, link))
        for listener in self._listeners:
            listener.reachable(peer.member)
        return link

    async def _carry(self, peer: _Peer, link: PeerLink) -> None:
        down = LinkDown("closed")
        try:
            down = await link.run()
        except Exception:  # the boundary of a task: one link fails, not the process
            log.exception("link_failed", replica=peer.member.replica)
        finally:
            peer.link = None
        if self._closed:
            return
        log.warning("link_down", replica=peer.member.replica, reason=str(down))
        for listener in self._listeners:
            listener.link_down(link, down)
        if down.reason == "keepalive":
            self._doubt(peer, down)
        else:
            self._dial(peer)

    def _doubt(self, peer: _Peer, down: LinkDown) -> None:
        first = peer.suspect is None
        peer.suspect = down
        self._suspects.add(identity(peer.member))
        if first and not self._closed:
            log.warning("replica_suspected", replica=peer.member.replica, reason=str(down))
            peer.task = self._spawn(self._redial(peer))
            for listener in self._listeners:
                listener.suspected(peer.member)

    async def _redial(self, peer: _Peer) -> None:
        """Redials a suspected replica until it answers, or the directory does not name it any more."""
        backoff = Backoff(self._limits.redial_min_s, self._limits.redial_max_s)
        while peer.suspect is not None and identity(peer.member) in self._known:
            await asyncio.sleep(backoff.next_s())
            try:
                await self._answered(peer)
            except LinkDown as down:
                if self._closed or down.reason == "rejected" or isinstance(down, Replaced):
                    return

    async def close(self) -> None:
        """Cancels dialing. The links themselves end with the tasks that carry them."""
        self._closed = True
        for peer in self._peers.values():
            if peer.dialing is not None:
                peer.dialing.cancel()


def unreachable(replica: str, down: LinkDown) -> Unavailable:
    error = Unavailable(
        "replica_unreachable", f"The replica {replica!r} cannot be reached ({down}).", retry_after_ms=500
    )
    error.__cause__ = down
    return error
