"""Delivers events of sessions that live on replicas to the readers of a gateway, wherever the session goes.

A watch is attached at the session's owner while it has one; nothing here ever activates a session that is at rest. The
gateway registers its interest in the directory, so that an activation anywhere notifies it, and checks again once per
lease TTL, because such news may be lost. Whenever a watch may have missed something (it was attached late, its owner
vanished, it was too slow) the log's end is compared with what it has seen, and if it is further, its last record is
read from the journal and delivered: readers then find the gap by the offsets and the rest in the journal.

When an owner is suspected, its sessions with an open turn are taken over by other replicas; a gateway requests that for
those that are read through it. Sessions at rest are left alone. A survivor admits them at its own pace
(`actors.hosting.recovery_gate`).

States of a watch: unattached (the session has no owner, as far as known) ⇄ attached. Whatever must be done about a
watch is done by one of a few workers, one watch at a time each: `enqueue` holds it until then.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from actors.hosting.ownership import Identity, Moved
from actors.hosting.recovery_gate import READ
from actors.peer.links import LinkDown, Links, PeerLink, identity
from actors.routing.route_table import RouteTable
from actors.routing.router_limits import RouterLimits
from sessions.backoff import Backoff
from sessions.model.errors import Gone, NotFound, SessileError, Unavailable
from sessions.model.events import Record
from sessions.model.journal_types import Head, Page
from sessions.model.types import Epoch, SessionKey
from sessions.ports import Directory, Journal, Member, Owner, Published

log = structlog.get_logger(__name__)

Sink = Callable[[Published], None]

LOST: Final = 0  # priorities of work on a watch
NEW: Final = 1
LOOK: Final = 2
CATCH_UP_RECORDS: Final = 64  # so few records are delivered here, instead of being read again by each reader
CATCH_UP_BYTES: Final = 64 * 1024
ATTACHED_TTLS: Final = 4  # lease TTLs between two checks of an attached watch, whose owner reports what it knows


class SessionSubscription:
    """One session that is read through this gateway; a `Watcher`. Its attributes (where the session is, and what was
    last received of it) change together."""

    def __init__(self, key: SessionKey, subscriptions: Subscriptions) -> None:
        self.key = key
        self.sinks: dict[int, Sink] = {}
        self.epoch = Epoch("")
        self.seen = 0
        self.link: PeerLink | None = None
        self.number = 0
        self.owner: Owner | None = None
        self.hint: Owner | None = None  # a possible owner
        self.known: tuple[Epoch, int] | None = None  # how far the log is known to go, if beyond `seen`
        self.check = False  # whether the journal must be read: the owner has left
        self.compared_at = asyncio.get_running_loop().time()  # last comparison of the log with the journal
        self.absent: Owner | None = None  # an owner that has answered that it does not have the session
        self.limbo: Identity | None = None  # the replica process that it waits for news of
        self.recovering = False
        self.queued = False
        self.backoff: Backoff | None = None  # set after failures in a row
        self.check_at = 0.0
        self._subscriptions = subscriptions

    @property
    def live(self) -> bool:
        return bool(self.sinks)

    def deliver(self, epoch: Epoch, records: tuple[Record, ...]) -> None:
        """Passes records on to all sinks."""
        self.epoch, self.seen = epoch, records[-1].offset
        published = Published(self.key, epoch, records)
        for sink in tuple(self.sinks.values()):
            sink(published)

    # -- Watcher -----------------------------------------------------------------------------------------------------

    def attached(self, owner: Owner, epoch: Epoch, top: int) -> None:
        self.owner = owner
        self.backoff = None
        self.check = False
        self._subscriptions.attached(self)
        self.reaches(epoch, top)

    def events(self, epoch: Epoch, records: tuple[Record, ...]) -> None:
        self.deliver(epoch, records)

    def behind(self, epoch: Epoch, top: int) -> None:
        self.reaches(epoch, top)

    def reaches(self, epoch: Epoch, top: int) -> None:
        """Notes that the log goes up to `top`, and has the missing records delivered."""
        if top and (epoch != self.epoch or top > self.seen):
            self.known = epoch, top
            self._subscriptions.enqueue(self, LOST)

    def detached(self, owner: Owner | None, *, top: int) -> None:
        self.check = True
        self.hint = owner
        self.absent = self.owner if not top and owner is None else None
        self._subscriptions.clear_link(self)
        if top or owner is not None:
            self._subscriptions.enqueue(self, LOST)
        else:
            self._subscriptions.retry_later(self)  # it is not there, whatever the directory says


class Subscriptions:
    """The subscriptions of a gateway. It is large because links, takeovers and watches of a gateway meet here, and
    each moves the others."""

    def __init__(
        self,
        *,
        gateway: str,
        directory: Directory,
        journal: Journal,
        routes: RouteTable,
        links: Links,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        rng: random.Random,
        limits: RouterLimits,
    ) -> None:
        self._gateway = gateway
        self._directory = directory
        self._journal = journal
        self._routes = routes
        self._links = links
        self._spawn = spawn
        self._rng = rng
        self._ttl_s = limits.lease_ttl_s
        self._limits = limits.watches
        self._watches: dict[SessionKey, SessionSubscription] = {}
        self._on_link: dict[PeerLink, dict[SessionSubscription, None]] = {}
        self._limbo: dict[
            Identity, dict[SessionSubscription, None]
        ] = {}  # their replica does not answer, or its link just broke
        self._unregistered: list[SessionSubscription] = []
        self._arrived = asyncio.Event()
        self._queue: list[tuple[int, int, SessionSubscription]] = []
        self._numbers = 0
        self._work = asyncio.Semaphore(0)
        self._checks: list[tuple[float, int, SessionSubscription]] = []
        self._takeovers = asyncio.Semaphore(limits.watches.takeovers)
        links.add_listener(self)

    def __len__(self) -> int:
        return len(self._watches)

    @property
    def attachments(self) -> int:
        return sum(len(watches) for watches in self._on_link.values())

    def start(self) -> None:
        """Starts the tasks that register interest, listen for activations, and look after watches."""
        for work in (self._register(), self._renew(), self._listen(), self._check_due()):
            self._spawn(work)
        for _ in range(self._limits.workers):
            self._spawn(self._worker())

    def watch(self, key: SessionKey, sink: Sink) -> Callable[[], None]:
        """Begins a watch as the `Sessions` port says."""
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = SessionSubscription(key, self)
            self._unregistered.append(watch)
            self._arrived.set()
        number = self._number()
        watch.sinks[number] = sink

        def unwatch() -> None:
            watch.sinks.pop(number, None)
            if not watch.sinks and self._watches.get(key) is watch:
                del self._watches[key]
                link, number_there = watch.link, watch.number
                self.clear_link(watch)
                self._leave_limbo(watch)
                if link is not None and link.down is None:
                    link.detach(number_there)

        return unwatch

    def is_attached(self, key: SessionKey) -> bool:
        """Returns whether the session's owner sends its records to this gateway, as far as this gateway can know."""
        watch = self._watches.get(key)
        return watch is not None and watch.link is not None and watch.link.down is None

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- what is to be done ------------------------------------------------------------------------------------------

    def enqueue(self, watch: SessionSubscription, priority: int) -> None:
        """Has a worker look after this watch; watches with smaller `priority` come first."""
        if watch.live and not watch.queued:
            watch.queued = True
            heapq.heappush(self._queue, (priority, self._number(), watch))
            self._work.release()

    def retry_later(self, watch: SessionSubscription) -> None:
        """Enqueues a watch after a pause, which grows with each retry in a row."""
        if watch.backoff is None:
            watch.backoff = Backoff(self._limits.again_min_s, self._limits.again_max_s, self._rng)
        asyncio.get_running_loop().call_later(watch.backoff.next_s(), self.enqueue, watch, LOST)

    def _check_in(self, watch: SessionSubscription, seconds: float) -> None:
        watch.check_at = asyncio.get_running_loop().time() + seconds * (0.75 + self._rng.random() / 2)
        heapq.heappush(self._checks, (watch.check_at, self._number(), watch))

    def clear_link(self, watch: SessionSubscription) -> None:
        """Notes that the watch is not attached any more."""
        if watch.link is not None:
            watches = self._on_link.get(watch.link, {})
            watches.pop(watch, None)
            if not watches:
                self._on_link.pop(watch.link, None)
        watch.link, watch.number, watch.owner = None, 0, None

    def attached(self, watch: SessionSubscription) -> None:
        self._routes.remember(watch.key, watch.owner)
        self._check_in(watch, ATTACHED_TTLS * self._ttl_s)

    # -- what happens to links and sessions ---------------------------------------------------------------------------

    def link_down(self, link: PeerLink, reason: LinkDown) -> None:
        """Detaches the watches of a link that has ended. Shortly afterwards `suspected` or `reachable` says whether its
        replica lives."""
        for watch in list(self._on_link.pop(link, {})):
            watch.hint, watch.check = watch.owner, True
            watch.link, watch.number, watch.owner = None, 0, None
            self._enter_limbo(watch, identity(link.member))

    def suspected(self, member: Member) -> None:
        """Has the workers find other owners for the sessions of a replica that does not answer."""
        self._end_limbo(member)

    def reachable(self, member: Member) -> None:
        """Has the workers attach watches again at a replica that answers again."""
        self._end_limbo(member)

    def _end_limbo(self, member: Member) -> None:
        for watch in self._limbo.pop(identity(member), {}):
            watch.limbo = None
            self.enqueue(watch, LOST)

    def _enter_limbo(self, watch: SessionSubscription, process: Identity) -> None:
        watch.limbo = process
        self._limbo.setdefault(process, {})[watch] = None

    def _leave_limbo(self, watch: SessionSubscription) -> None:
        if watch.limbo is not None:
            waiting = self._limbo.get(watch.limbo, {})
            waiting.pop(watch, None)
            if not waiting:
                self._limbo.pop(watch.limbo, None)
            watch.limbo = None

    async def _listen(self) -> None:
        """Receives notifications of activations, and has their watches attached."""
        while True:
            try:
                async for key, owner in self._directory.activations(self._gateway):
                    watch = self._watches.get(key)
                    if watch is not None and (watch.link is None or watch.owner != owner):
                        watch.hint = owner
                        self.enqueue(watch, LOST)
            except Unavailable as error:
                log.warning("activation_stream_lost", error=error.code)
            await asyncio.sleep(self._limits.again_max_s)

    async def _register(self) -> None:
        """Registers new watches in the directory before their owners are looked up, so that no activation is missed."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            at_once = self._limits.register_at_once
            batch, self._unregistered = self._unregistered[:at_once], self._unregistered[at_once:]
            if self._unregistered:
                self._arrived.set()
            await self._register_keys([watch.key for watch in batch if watch.live])
            for watch in batch:
                self.enqueue(watch, NEW)

    async def _register_keys(self, keys: list[SessionKey]) -> None:
        if keys:
            try:
                await self._directory.watch(self._gateway, keys)
            except Unavailable as error:  # renewed in a moment; meanwhile nothing is activated by the directory either
                log.warning("registration_failed", sessions=len(keys), error=error.code)

    async def _renew(self) -> None:
        """Renews the registration of all watches in the directory again and again, because it lapses with the TTL."""
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            keys = list(self._watches)
            for at in range(0, len(keys), self._limits.register_at_once):
                await self._register_keys(keys[at : at + self._limits.register_at_once])

    async def _check_due(self) -> None:
        """Runs until cancelled, and enqueues each watch when its periodic check is due."""
        while True:
            await asyncio.sleep(self._ttl_s / 24)
            now = asyncio.get_running_loop().time()
            while self._checks and self._checks[0][0] <= now:
                due, _, watch = heapq.heappop(self._checks)
                if watch.check_at == due:
                    self.enqueue(watch, LOOK)

    # -- the workers ------------------------------------------------------------------------------------------------

    async def _worker(self) -> None:
        while True:
            await self._work.acquire()
            watch = heapq.heappop(self._queue)[2]
            watch.queued = False
            if not watch.live:
                continue
            try:
                if watch.known is not None:
                    await self._catch_up(watch)
                await self._attach_to_owner(watch)
            except (SessileError, LinkDown) as error:
                log.info("watch_retried", session=watch.key.session, tenant=watch.key.tenant, error=str(error))
                self.retry_later(watch)
            except Exception:  # the boundary of a job: one watch fails, not the gateway
                log.exception("watch_failed", session=watch.key.session, tenant=watch.key.tenant)
                self.retry_later(watch)

    async def _catch_up(self, watch: SessionSubscription) -> None:
        """Delivers what the log has beyond the offset `seen`, unless events have brought it meanwhile. If it is more
        than a little, only the record at the log's known end is delivered."""
        assert watch.known is not None
        epoch, top = watch.known
        if epoch != watch.epoch or top > watch.seen:
            page = await self._read_rest(watch.key, watch.seen, top) if epoch == watch.epoch else None
            page = page or await self._journal.read(watch.key, after=top - 1, limit=1, bytes_max=1)
            if page is not None:
                same = page.head.epoch == watch.epoch
                news = tuple(new for new in page.records if new.offset > watch.seen) if same else page.records[-1:]
                if news:
                    watch.deliver(page.head.epoch, news)
        if watch.known == (epoch, top):
            watch.known = None

    async def _read_rest(self, key: SessionKey, seen: int, top: int) -> Page | None:
        """Returns the log from behind `seen` to its very end, so that retractions of it are included; None if that is
        more than a little."""
        if top - seen > CATCH_UP_RECORDS:
            return None
        page = await self._journal.read(key, after=seen, limit=2 * CATCH_UP_RECORDS, bytes_max=CATCH_UP_BYTES)
        whole = page is not None and page.records and page.records[-1].offset == page.head.top
        return page if whole else None

    async def _attach_to_owner(self, watch: SessionSubscription) -> None:
        """Attaches a watch to the session's present owner, or finds that it has none."""
        owner, watch.hint = watch.hint, None
        if owner is None:
            owner = await self._routes.owner(watch.key)
        if not watch.live:
            return
        if watch.link is not None:
            if owner is None or owner == watch.owner:
                self._check_in(watch, ATTACHED_TTLS * self._ttl_s)
                return
            if watch.link.down is None:
                watch.link.detach(watch.number)
            self.clear_link(watch)
        self._leave_limbo(watch)
        absent, watch.absent = watch.absent, None
        if owner is None or owner == absent:  # or the directory is behind: what there is to read is in the journal
            await self._ownerless(watch, None)
            return
        member = self._routes.member(owner)
        if member is None:
            await self._routes.refresh()
            member = self._routes.member(owner)
        if member is None:
            raise LinkDown("refused", f"{owner.replica} is not in the view")
        if self._links.suspect(member):
            self._enter_limbo(watch, identity(member))
            watch.check = True
            await self._ownerless(watch, owner)
            return
        link = await self._links.get(member)
        if watch.live and watch.link is None:
            watch.number = link.attach(watch.key, watch)
            watch.link, watch.owner = link, owner
            self._on_link.setdefault(link, {})[watch] = None

    async def _ownerless(self, watch: SessionSubscription, lost: Owner | None) -> None:
        """Handles a session that has no owner, or whose owner is lost: if it has an open turn, another replica is made
        to activate it."""
        now = asyncio.get_running_loop().time()
        if watch.check or now - watch.compared_at >= ATTACHED_TTLS * self._ttl_s:  # news may have been lost
            head = await self._journal.head(watch.key)
            watch.check, watch.compared_at = False, now
            if head is not None:
                watch.reaches(head.epoch, head.top)
                # A log that may have gone back (a restored backup) gets its new epoch, and so its readers learn of it.
                unfinished = head.open or head.incarnation != self._journal.incarnation
                if unfinished and head.deleted_at is None and watch.live and not watch.recovering:
                    watch.recovering = True
                    self._spawn(self._recover(watch, head, lost))
                    return
        self._check_in(watch, self._ttl_s)

    async def _recover(self, watch: SessionSubscription, head: Head, lost: Owner | None) -> None:
        """Has another replica activate a session, because it has an open turn or its log went back."""
        try:
            async with self._takeovers:
                if watch.live:
                    await self._take_over(watch, head, lost)
        finally:
            watch.recovering = False

    async def _take_over(self, watch: SessionSubscription, head: Head, lost: Owner | None) -> None:
        key = watch.key
        try:
            if lost is None:
                member: Member | None = self._routes.place(key, head, None)
            else:
                member = self._routes.survivor(key, lost, self._routes.model_of(head.model, lost))
            if member is not None:
                link = await self._links.get(member)
                watch.hint = await link.take_over(key, instead_of=lost, priority=READ)
                log.info("session_taken_over", session=key.session, tenant=key.tenant, by=member.replica)
        except Moved as moved:
            watch.hint = moved.owner
        except (NotFound, Gone):
            return
        except (SessileError, LinkDown) as error:
            log.info("takeover_failed", session=key.session, tenant=key.tenant, error=str(error))
            if lost is not None and isinstance(error, SessileError):
                self._routes.takeover_failed(key, lost)
        if watch.hint is None:
            watch.check = True
            self.retry_later(watch)
        else:
            self.enqueue(watch, LOST)
