"""Keeps this replica's lease in the directory, and the view of the others that comes back with it.

Announces the member every `renew_s` (2 s) with its present load, at once when something about it changes or when an
answer of the directory brings news (a newer view, a lease that is missing because everything was lost), and more often
while announcements fail. A gateway, which owns nothing, runs the same keeper without a member: it only reads the view.

What it decides: until when this replica may take itself for an owner. The deadline is TTL after the moment at which
the last successful announcement was sent, on this process's own monotonic clock, so it always ends before the
directory's lease does. Past it `must_confirm` is true: answer nothing until the journal has confirmed the fence.
`tenure` counts the unbroken stretches of the lease: what was confirmed under an earlier one must be confirmed again,
because in between others could see no lease of ours. Neither is needed for safety (the fence is, I1); they keep stale
answers in.

What it does not know: sessions. Listeners get every change; `Change.rejoined` names the partitions (`partition_of`)
whose sessions their owner must claim again.

After: Gray and Cheriton, "Leases" (1989). The clock is assumed to be at most 1% slower than the directory's, and it
does not run while a whole machine is suspended, which is one more reason why the fence decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from actors.directory.common import LEASE_TTL_S, Leases
from sessions.model.errors import Unavailable
from sessions.model.types import ReplicaId
from sessions.ports import Member, View

RENEW_S: Final = 2.0
CLOCK_DRIFT: Final = 0.01
RETRY_S: Final = 0.1
PAUSE_MIN_S: Final = 0.05  # between two announcements, however much news there is

log = structlog.get_logger(__name__)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the view or the lease, for listeners.

    `joined` and `left` are replicas; a replica that came back as another incarnation is in both. `lapsed`: the lease
    had run out, or was lost, so everything that is owned here must be confirmed. `rejoined`: the partitions in which
    sessions must be claimed again (after the first announcement none, because nothing had been claimed).
    """

    view: View
    joined: frozenset[ReplicaId] = frozenset()
    left: frozenset[ReplicaId] = frozenset()
    lapsed: bool = False
    rejoined: frozenset[int] = frozenset()


Listener = Callable[[Change], None]


class Membership:
    """Keeps a replica's lease and view: `start`, then `run` as a task until it is cancelled, then `leave`."""

    def __init__(
        self,
        directory: Leases,
        member: Member | None,
        *,
        load: Callable[[], float] = lambda: 0.0,
        lease_ttl_s: float = LEASE_TTL_S,
        renew_s: float = RENEW_S,
    ) -> None:
        """Keeps the lease of `member`, or only reads the view if it is None. `load` is called at each announcement.
        `lease_ttl_s` must be the directory's own."""
        if not 0 < renew_s < lease_ttl_s / 2:
            raise ValueError("a lease is renewed at least twice in its TTL")
        self._directory = directory
        self._member = member
        self._load = load
        self._ttl_s = lease_ttl_s * (1 - CLOCK_DRIFT)
        self._renew_s = renew_s
        self._view = View(0, ())
        self._vanished: tuple[Member, ...] = ()
        self._deadline = -float("inf")
        self._lapsed = True
        self._started = False
        self._tenure = 0
        self._changed = asyncio.Event()
        self._listeners: list[Listener] = []
        self._failing = False

    # -- what is known ------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """The newest view that was received; version 0 before the first."""
        return self._view

    @property
    def vanished(self) -> tuple[Member, ...]:
        """The members that the directory had lost sight of when this one joined (`Announcement.vanished`)."""
        return self._vanished

    @property
    def member(self) -> Member | None:
        """The member as it is announced next, except for its load."""
        return self._member

    @property
    def must_confirm(self) -> bool:
        """Whether the lease has run out by our own clock. True without a member, before `start` and after `leave`."""
        self._check_deadline()
        return self._lapsed

    @property
    def tenure(self) -> int:
        """A number that changes whenever the lease has run out or was lost. What was confirmed under another number
        must be confirmed again."""
        self._check_deadline()
        return self._tenure

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` (plain function, must not block or raise) with every change from now on, once `view`,
        `tenure` and `must_confirm` show the change. Returns a function that ends the calls."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _check_deadline(self) -> None:
        if not self._lapsed and asyncio.get_running_loop().time() >= self._deadline:
            self._lapsed = True
            self._tenure += 1

    # -- keeping ------------------------------------------------------------------------------------

    async def start(self) -> View:
        """Announces the member for the first time. Raises what the directory raises: no replica starts without a
        lease."""
        await self._renew()
        self._started = True
        return self._view

    async def run(self) -> None:
        """Renews the lease until this call is cancelled. Raises Conflict if another process has taken this replica's
        place: then this one must stop, since the directory does not count its claims any more."""
        loop = asyncio.get_running_loop()
        wait_s = self._renew_s
        while True:
            await self._wait(loop.time() + wait_s)
            try:
                await self._renew()
            except (Unavailable, TimeoutError) as error:
                wait_s = min(wait_s * 2, self._renew_s) if self._failing else RETRY_S
                if not self._failing:
                    self._failing = True
                    log.warning("announcement_failed", error=str(error) or "no answer in time")
            else:
                wait_s = self._renew_s
                if self._failing:
                    self._failing = False
                    log.info("announcement_recovered", version=self._view.version)

    def change(self, *, draining: bool | None = None, weight: float | None = None, address: str | None = None) -> None:
        """Changes what is announced from now on; a running keeper announces it at once."""
        assert self._member is not None, "only a member changes"
        fields = {"draining": draining, "weight": weight, "address": address}
        changes = {name: value for name, value in fields.items() if value is not None}
        self._member = msgspec.structs.replace(self._member, **changes)
        self._changed.set()

    async def leave(self) -> None:
        """Gives up the lease, and with it every session; call it only once `run` has ended. Raises what the directory
        raises."""
        member, self._member = self._member, None
        self._deadline = -float("inf")
        self._check_deadline()
        if member is not None:
            await self._directory.withdraw(member.replica, member.incarnation)

    async def _wait(self, until: float) -> None:
        """Waits until the loop's time `until`, or until there is a reason to announce at once."""
        await asyncio.sleep(PAUSE_MIN_S)
        news = asyncio.ensure_future(self._directory.news())
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            left_s = max(0.0, until - asyncio.get_running_loop().time())
            # While announcements fail news stay news: hurrying on them would only hammer a directory that is away.
            reasons = [changed] if self._failing else [changed, news]
            await asyncio.wait(reasons, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            changed.cancel()
            await asyncio.gather(news, changed, return_exceptions=True)

    async def _renew(self) -> None:
        """Announces the member, or reads the view, once. Raises TimeoutError if that takes longer than `renew_s`."""
        self._changed.clear()
        sent_at = asyncio.get_running_loop().time()
        async with asyncio.timeout(self._renew_s):
            if self._member is None:
                self._update_view(await self._directory.view(), frozenset(), lapsed=False)
                return
            member = msgspec.structs.replace(self._member, load=self._load())
            answer = await self._directory.announce(member)
        self._check_deadline()
        if not self._started:
            self._vanished = answer.vanished
        rejoined = answer.rejoined if self._started else frozenset[int]()
        if rejoined and not self._lapsed:  # lost or emptied, while our own clock saw nothing
            self._tenure += 1
        lapsed = bool(rejoined) or (self._lapsed and self._started)
        self._deadline = sent_at + self._ttl_s
        self._lapsed = asyncio.get_running_loop().time() >= self._deadline
        self._update_view(View(answer.version, answer.members), rejoined, lapsed=lapsed)

    def _update_view(self, view: View, rejoined: frozenset[int], *, lapsed: bool) -> None:
        if view.version < self._view.version:
            view = self._view  # an answer that was overtaken
        before = {member.replica: member.incarnation for member in self._view.members}
        after = {member.replica: member.incarnation for member in view.members}
        is_new = view != self._view
        self._view = view
        if is_new or rejoined or lapsed:
            change = Change(
                view=view,
                joined=frozenset(replica for replica in after if before.get(replica) != after[replica]),
                left=frozenset(replica for replica in before if before[replica] != after.get(replica)),
                lapsed=lapsed,
                rejoined=rejoined,
            )
            for listener in list(self._listeners):
                listener(change)
