"""Places cold sessions: weighted rendezvous hashing with bounded load.

Decides only for sessions without an owner; a live session is where the directory says. Pure but for two caches: the
ranking of sessions under one version of the view, and the sessions placed since loads were last announced.

* Each member scores -weight / ln(u), u drawn from a hash of (session, replica), and the highest score is the session's
  place. A member that leaves moves only its own sessions; one that joins takes only what is now its own; a weight of 2
  draws twice as much. The hash is BLAKE2b, so that every process agrees.
* Bounded load: with one more session the members carry W in all, and none may carry more than 1.25 times its share of
  W, rounded up to a whole session. A member that would is passed over, in the order of the scores. Not all can be full,
  so the bound is never broken.
* The holder of a session's KV is preferred while it stays under its bound. (Following the cache without a bound
  thrashes: one hot replica preempts itself to death while others idle.)

A member's load is known as of its last announcement; sessions that this process placed meanwhile count in addition,
for between one and two renewals. What other processes placed is not known until then.

Sources: Thaler and Ravishankar (1998), rendezvous hashing; Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with
Bounded Loads" (2018).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from hashlib import blake2b
from typing import Final

from actors.directory.common import session_name
from sessions.model.types import ReplicaId, SessionKey
from sessions.ports import Member, View

BOUND: Final = 1.25
SESSION_LOAD: Final = 1 / 32
RANKED_MAX: Final = 16_384

# Loads are sums of floats: a session that fits exactly must not be turned away for the last bit.
SLACK: Final = 1e-9


class BoundedRendezvous:
    """Chooses members for cold sessions. One object per process; not for threads."""

    def __init__(self, *, bound: float = BOUND, session_load: float | None = None) -> None:
        """`session_load` is what one more session adds to the load of a member of weight 1; None: one of its slots, as
        the members announce them."""
        if bound < 1 or (session_load is not None and session_load <= 0):
            raise ValueError("a bound is at least 1 and a session's load above 0")
        self._bound = bound
        self._announced = session_load is None
        self._session_load = SESSION_LOAD if session_load is None else session_load
        self._ranked: dict[tuple[SessionKey, str | None], tuple[ReplicaId, ...]] = {}
        self._ranked_version = -1
        self._view: View | None = None
        self._placed: dict[ReplicaId, int] = {}
        self._placed_before: dict[ReplicaId, int] = {}

    def choose(
        self,
        key: SessionKey,
        view: View,
        *,
        model: str | None = None,
        holder: ReplicaId | None = None,
        avoid: Collection[ReplicaId] = (),
    ) -> Member | None:
        """The member that `key` should go to, of those that serve `model` (None: any) and are not to be avoided.

        `holder` has the session's KV. None when no member is left: all are draining or avoided.
        """
        self._update_view(view)
        able = {member.replica: member for member in view.members if _serves(member, model)}
        members = {replica: member for replica, member in able.items() if replica not in avoid}
        if not members:
            return None
        chosen = self._pick(key, model, holder, able, members)
        self._placed[chosen.replica] = self._placed.get(chosen.replica, 0) + 1
        return chosen

    def _pick(
        self,
        key: SessionKey,
        model: str | None,
        holder: ReplicaId | None,
        able: dict[ReplicaId, Member],
        members: dict[ReplicaId, Member],
    ) -> Member:
        work = {replica: self._work(member) for replica, member in members.items()}
        limits = self._limits(members, sum(work.values()))

        def fits(replica: ReplicaId) -> bool:
            return work[replica] + self._session_load <= limits[replica] + SLACK

        if holder is not None and holder in members and fits(holder):
            return members[holder]
        for replica in self._rank(key, model, able.values()):
            if replica in members and fits(replica):
                return members[replica]
        # Only rounding can bring us here: the limits add up to more than the work.
        return min(members.values(), key=lambda member: (work[member.replica] / member.weight, member.replica))

    def limits(self, view: View, *, model: str | None = None) -> dict[ReplicaId, float]:
        """The load up to which each member of `model` is in its bound now: what rebalancing goes by."""
        self._update_view(view)
        members = {member.replica: member for member in view.members if _serves(member, model)}
        limits = self._limits(members, sum(self._work(member) for member in members.values()))
        return {replica: limits[replica] / member.weight for replica, member in members.items()}

    def _limits(self, members: dict[ReplicaId, Member], work: float) -> dict[ReplicaId, float]:
        """How much work each may carry once one more session is placed, in whole sessions. All may be draining."""
        if not members:
            return {}
        share = self._bound * (work + self._session_load) / sum(member.weight for member in members.values())
        return {
            replica: math.ceil(share * member.weight / self._session_load - SLACK) * self._session_load
            for replica, member in members.items()
        }

    def _work(self, member: Member) -> float:
        """Load times weight, as announced, and what was placed since."""
        placed = self._placed.get(member.replica, 0) + self._placed_before.get(member.replica, 0)
        return member.load * member.weight + placed * self._session_load

    def _update_view(self, view: View) -> None:
        if view is self._view:
            return
        self._view = view
        if self._announced:
            self._session_load = session_load_of(view)
        self._placed, self._placed_before = {}, self._placed
        if view.version != self._ranked_version:
            self._ranked_version = view.version
            self._ranked.clear()

    def _rank(self, key: SessionKey, model: str | None, members: Collection[Member]) -> tuple[ReplicaId, ...]:
        """The members' replicas by falling score. Kept per version of the view, the oldest dropped first."""
        ranked = self._ranked.get((key, model))
        if ranked is None:
            ranked = ranking(key, members)
            if len(self._ranked) >= RANKED_MAX:
                del self._ranked[next(iter(self._ranked))]
            self._ranked[key, model] = ranked
        return ranked


def session_load_of(view: View) -> float:
    """What one more session adds to a member of weight 1, on average: a slot of those that it announces."""
    loads = [member.weight / member.engine.slots for member in view.members if member.engine is not None]
    return sum(loads) / len(loads) if any(loads) else SESSION_LOAD


def ranking(key: SessionKey, members: Collection[Member]) -> tuple[ReplicaId, ...]:
    """Replicas by falling score for `key`: pure rendezvous hashing, whatever their load."""
    name = session_name(key).encode()
    return tuple(member.replica for member in sorted(members, key=lambda each: (-_score(name, each), each.replica)))


def _score(name: bytes, member: Member) -> float:
    digest = blake2b(name, digest_size=8, key=_key_of(member.replica)).digest()
    uniform = (int.from_bytes(digest) + 0.5) / 2**64  # strictly between 0 and 1
    return member.weight / -math.log(uniform) if uniform < 1 else math.inf


def _key_of(replica: ReplicaId) -> bytes:
    """BLAKE2b takes at most 64 bytes of key; longer names are hashed first."""
    raw = replica.encode()
    return raw if len(raw) <= 64 else blake2b(raw, digest_size=64).digest()


def _serves(member: Member, model: str | None) -> bool:
    return not member.draining and member.weight > 0 and (model is None or member.model == model)
