"""Queries the previous owner of a session that the directory has no owner for, before a replica acquires it.

A directory that was emptied, or that failed over, has forgotten owners that live, and remembers them one by one as they
announce themselves again. A lookup in between sees a view of a few members and sessions without owners. So the
replica that the journal granted a session to last is queried first, while its process may live: because the view has
it, or because it has vanished from the view and its link still stands. A replica that is suspected is not queried, so a
dead one is replaced as soon as ever.

A replica that this process has never met cannot be queried: while the directory may not have heard of it again, for one
lease TTL after it was seen to have forgotten, its sessions wait. (Those of a process that was met and has left do not,
unless another answers in its place.)

Members that vanish are dialed at once, so that later queries find them linked or suspected and do not wait. One
that leaves in order has closed its door before it gives its lease back. Who joins is told by the directory of those
that had vanished before (`Announcement.vanished`): a directory that was away for longer than a lease has lost sight of
everybody, and whoever starts as soon as it is back meets members that live and are not in the view.

Invariant: nothing here is needed for safety (I1). No answer, within `query_timeout_s`, is as good as a no. Bounds: the
members of the last views that are linked, and `DEPARTED_MAX` names. Does not know: what an emptied directory forgot
before this process joined, unless it was the first to join since; nor whom it forgot after ten lease TTLs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from actors.hosting.ownership import last_replica, owner_label, session_moving_error
from actors.peer.links import LinkDown, Links, PeerLink, Replaced
from sessions.model.errors import SessileError
from sessions.model.journal_types import Head
from sessions.model.types import ReplicaId, SessionKey
from sessions.ports import Member, Owner, View

log = structlog.get_logger(__name__)

QUERY_TIMEOUT_S: Final = 1.0
DEPARTED_MAX: Final = 1024


class PreviousOwnerQuery:
    """Finds out whether other replicas live and still have a session. Implements `LinkEvents`, to hear of its links."""

    def __init__(
        self,
        replica: ReplicaId,
        links: Links,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        lease_ttl_s: float,
        query_timeout_s: float = QUERY_TIMEOUT_S,
    ) -> None:
        self._replica = replica
        self._links = links
        self._spawn = spawn
        self._ttl_s = lease_ttl_s
        self._query_timeout_s = query_timeout_s
        self._forgetful_until = -float("inf")
        self._members: dict[ReplicaId, Member] = {}
        self._vanished: dict[ReplicaId, Member] = {}
        self._departed: OrderedDict[ReplicaId, Member] = OrderedDict()  # met, and lost since
        links.add_listener(self)

    def update(self, view: View, *, vanished: tuple[Member, ...] = ()) -> None:
        """Takes a new view. Members that are missing in it, but were in the view before or are in `vanished`, are
        dialed to see whether they live."""
        if view.version == 1 and not self._members:  # the first to come to an empty directory: what did it know?
            self.directory_lost()
        members = {member.replica: member for member in view.members}
        before = {member.replica: member for member in vanished if member.replica != self._replica} | self._members
        departed = {replica: member for replica, member in before.items() if replica not in members}
        self._members = members
        for replica in members:
            self._vanished.pop(replica, None)
            self._departed.pop(replica, None)
        unreachable = [member for member in departed.values() if not self._links.suspect(member)]
        self._vanished.update({member.replica: member for member in unreachable})
        for member in departed.values():
            if member.replica not in self._vanished:
                self._record_departure(member)
        self._update_links()
        for member in unreachable:
            self._spawn(self._probe(member))

    def directory_lost(self) -> None:
        """Notes that the directory has just lost entries: for one lease TTL from now, living replicas may be missing in
        it."""
        self._forgetful_until = asyncio.get_running_loop().time() + self._ttl_s

    def _record_departure(self, member: Member) -> None:
        self._departed[member.replica] = member
        while len(self._departed) > DEPARTED_MAX:
            self._departed.popitem(last=False)

    def _update_links(self) -> None:
        self._links.update((*self._members.values(), *self._vanished.values()))

    async def _probe(self, member: Member) -> None:
        try:
            await self._links.get(member)
        except LinkDown:
            self._given_up(member)
        else:
            log.info("vanished_replica_reached", replica=member.replica)

    def _given_up(self, member: Member) -> None:
        """Treats a vanished member that does not answer as departed."""
        if self._vanished.get(member.replica) == member:
            del self._vanished[member.replica]
            self._record_departure(member)
            self._update_links()

    async def find_owner(self, key: SessionKey, head: Head) -> Owner | None:
        """Returns the owner that the journal names, if its process lives and answers that it has the session in memory;
        else None. Raises Unavailable if the owner may live in a process that is not known here yet."""
        replica = ReplicaId(last_replica(head))
        if replica == self._replica:
            return None
        member = self._members.get(replica) or self._vanished.get(replica)
        if member is None:
            forgetful = asyncio.get_running_loop().time() < self._forgetful_until
            if replica and forgetful and await self._may_be_back(replica):
                raise session_moving_error()
            return None
        if self._links.suspect(member):
            return None
        try:
            async with asyncio.timeout(self._query_timeout_s):
                owner = await (await self._links.get(member)).holds(key, head.fence)
        except (LinkDown, SessileError, TimeoutError) as error:
            log.info("owner_query_failed", session=key.session, tenant=key.tenant, replica=replica, error=str(error))
            return None
        return owner if owner is not None and owner_label(owner) == head.owner else None

    async def question_owner(self, key: SessionKey, owner: Owner, fence: int) -> None:
        """Asks an owner that the directory names whether it still has a session, which the journal has granted to
        another under `fence`: the question makes that owner look into the journal, and leave. Raises nothing."""
        member = self._members.get(owner.replica)
        if member is None or member.incarnation != owner.incarnation or self._links.suspect(member):
            return
        try:
            async with asyncio.timeout(self._query_timeout_s):
                await (await self._links.get(member)).holds(key, fence)
        except (LinkDown, SessileError, TimeoutError) as error:
            log.info(
                "owner_query_failed", session=key.session, tenant=key.tenant, replica=owner.replica, error=str(error)
            )

    async def _may_be_back(self, replica: ReplicaId) -> bool:
        """Returns whether a replica that is missing in the view may be running: True if it was never seen here, if it
        answers now, or if another process answers in its place."""
        departed = self._departed.get(replica)
        if departed is None:
            return True
        try:
            await self._links.get(departed)
        except LinkDown as down:
            return isinstance(down, Replaced)
        finally:
            self._update_links()
        return True

    # -- LinkEvents ------------------------------------------------------------------------------------------------

    def link_down(self, link: PeerLink, reason: LinkDown) -> None:
        """Does nothing: if the replica is down too, `suspected` is called shortly afterwards."""

    def suspected(self, member: Member) -> None:
        self._given_up(member)

    def reachable(self, member: Member) -> None:
        """Does nothing, because nothing here waits for a member to come back."""
