"""Places cold sessions: weighted rendezvous hashing with bounded load.

Decides only for sessions without an owner; a live session is where the directory says. Pure but for its caches: the
rankings under one version of the view, what its members carry in all, and the sessions placed since loads were last
announced. What costs as much as there are members is done once a view: a decision costs the same among ten and among
ten thousand.

* Members are ranked by rendezvous hashing (`actors.cluster.rendezvous`).
* Bounded load: with one more session the members carry W in all, and none may carry more than 1.25 times its share of
  W, rounded up to a whole session. A member that would is passed over, in the order of the scores. Not all can be full,
  so the bound is never broken.
* The holder of a session's KV is preferred while it stays under its bound. (Following the cache without a bound
  thrashes: one hot replica preempts itself to death while others idle.)

A member's load is known as of its last announcement; sessions that this process placed meanwhile count in addition,
for between one and two renewals. What other processes placed is not known until then.

Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2018).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

from actors.cluster.rendezvous import FLAT_MAX, RendezvousTree, ranking
from sessions.model.types import ReplicaId, SessionKey
from sessions.ports import Member, View

BOUND: Final = 1.25
SESSION_LOAD: Final = 1 / 32
RANKED_MAX: Final = 16_384

# Loads are sums of floats: a session that fits exactly must not be turned away for the last bit.
SLACK: Final = 1e-9


class BoundedRendezvous:
    """Chooses members for cold sessions. One object for each process; not thread-safe."""

    def __init__(self, *, bound: float = BOUND, session_load: float | None = None) -> None:
        """Sets the bound, as a multiple of a member's share. `session_load` is what one more session adds to the load
        of a member of weight 1; None: one slot of those that members announce."""
        if bound < 1 or (session_load is not None and session_load <= 0):
            raise ValueError("a bound is at least 1 and a session's load above 0")
        self._bound = bound
        self._announced = session_load is None
        self._session_load = SESSION_LOAD if session_load is None else session_load
        self._ranked: dict[tuple[SessionKey, str | None], tuple[ReplicaId, ...]] = {}
        self._trees: dict[str | None, RendezvousTree] = {}
        self._ranked_version = -1
        self._view: View | None = None
        self._pools: dict[str | None, _Pool] = {}
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
        """Returns the member that `key` should go to, of those that serve `model` (None: every model) and are not in
        `avoid`.

        `holder` is the replica that has the session's KV, if one has it. Returns None if no member is left: all are
        draining or avoided.
        """
        self._update_view(view)
        pool = self._pool(view, model)
        avoided = {replica for replica in avoid if replica in pool.members}
        if len(avoided) == len(pool.members):
            return None
        chosen = self._pick(key, model, holder, pool, avoided)
        self._placed[chosen.replica] = self._placed.get(chosen.replica, 0) + 1
        for other in self._pools.values():
            if chosen.replica in other.members:
                other.work += self._session_load
        return chosen

    def _pick(
        self, key: SessionKey, model: str | None, holder: ReplicaId | None, pool: _Pool, avoided: set[ReplicaId]
    ) -> Member:
        members = pool.members
        share = self._share(
            pool.work - sum(self._work(members[replica]) for replica in avoided),
            pool.weight - sum(members[replica].weight for replica in avoided),
        )

        def fits(replica: ReplicaId) -> bool:
            member = members[replica]
            return self._work(member) + self._session_load <= self._limit(member, share) + SLACK

        if holder is not None and holder in members and holder not in avoided and fits(holder):
            return members[holder]
        for replica in self._rank(key, model, pool):
            if replica in members and replica not in avoided and fits(replica):
                return members[replica]
        # Only rounding can bring us here: the limits add up to more than the work.
        left = (member for member in members.values() if member.replica not in avoided)
        return min(left, key=lambda member: (self._work(member) / member.weight, member.replica))

    def limits(self, view: View, *, model: str | None = None) -> dict[ReplicaId, float]:
        """Returns, for each member that serves `model` (None: every model), the load up to which it is within its bound
        now. Rebalancing compares loads with it."""
        self._update_view(view)
        pool = self._pool(view, model)
        if not pool.members:  # all may be draining
            return {}
        share = self._share(pool.work, pool.weight)
        return {replica: self._limit(member, share) / member.weight for replica, member in pool.members.items()}

    def _share(self, work: float, weight: float) -> float:
        """Returns the work (load times weight) that a member of weight 1 may carry once one more session is placed."""
        return self._bound * (work + self._session_load) / weight

    def _limit(self, member: Member, share: float) -> float:
        """Returns the work that a member may carry, rounded up to whole sessions."""
        return math.ceil(share * member.weight / self._session_load - SLACK) * self._session_load

    def _work(self, member: Member) -> float:
        """Returns a member's work: its load times its weight, as announced, plus the sessions placed there since."""
        placed = self._placed.get(member.replica, 0) + self._placed_before.get(member.replica, 0)
        return member.load * member.weight + placed * self._session_load

    def _pool(self, view: View, model: str | None) -> _Pool:
        pool = self._pools.get(model)
        if pool is None:
            members = {member.replica: member for member in view.members if _serves(member, model)}
            weight = sum(member.weight for member in members.values())
            pool = self._pools[model] = _Pool(members, weight, sum(map(self._work, members.values())))
        return pool

    def _update_view(self, view: View) -> None:
        if view is self._view:
            return
        self._view = view
        if self._announced:
            self._session_load = session_load_of(view)
        self._placed, self._placed_before = {}, self._placed
        self._pools.clear()
        if view.version != self._ranked_version:
            self._ranked_version = view.version
            self._ranked.clear()
            self._trees.clear()

    def _rank(self, key: SessionKey, model: str | None, pool: _Pool) -> Iterable[ReplicaId]:
        """Returns the members' replicas by falling score. Rankings of a small pool are cached while the view stays the
        same; those of a large pool are not, because they are long, and their beginning is quickly computed again."""
        if len(pool.members) > FLAT_MAX:
            tree = self._trees.get(model)
            if tree is None:
                tree = self._trees[model] = RendezvousTree(pool.members.values())
            return tree.ranked(key)
        ranked = self._ranked.get((key, model))
        if ranked is None:
            ranked = ranking(key, pool.members.values())
            if len(self._ranked) >= RANKED_MAX:
                del self._ranked[next(iter(self._ranked))]
            self._ranked[key, model] = ranked
        return ranked


class _Pool:
    """The members of one view that serve one model, with their total weight and work."""

    __slots__ = ("members", "weight", "work")

    def __init__(self, members: dict[ReplicaId, Member], weight: float, work: float) -> None:
        self.members = members
        self.weight = weight
        self.work = work


def session_load_of(view: View) -> float:
    """Returns what one more session adds to the load of a member of weight 1: one slot, as a share of the slots that
    members announce on average."""
    loads = [member.weight / member.engine.slots for member in view.members if member.engine is not None]
    return sum(loads) / len(loads) if any(loads) else SESSION_LOAD


def _serves(member: Member, model: str | None) -> bool:
    return not member.draining and member.weight > 0 and (model is None or member.model == model)
