"""Queues runs for an engine's slots: fair between tenants by the tokens that they were served, with preemption.

    join ──> waiting ──start──> running ──leave──>
                ^                  │
                └──── make_room ───┘      a victim waits again and goes on later

Each tenant has a counter of the tokens it was served, prompts at `PROMPT_COST` and answers at `ANSWER_COST`, divided
by its weight. Among those that wait in the best priority the tenant with the smallest counter is next, its oldest
claim first. A tenant without waiting claims is lifted, when one comes, to within `credit` of the smallest
counter of those that have some: time that it did not use is not saved up, but a burst is let through, about one
answer for each slot. So tenants that always have work are served within a constant of their shares, and one that takes
less than its share waits for nobody's backlog. This is the virtual token counter of Sheng et al., "Fairness in Serving
Large Language Models" (OSDI 2024), with weights and a credit.

A tenant that requests no more than the whole engine could do at once counts as if it had been served a credit less
(`_rank`): it may run ahead of its share for as long as it takes to distinguish a burst from a flood, and who requests
more waits for it. So nobody gets more than a credit beyond its share, and nobody has to earn its bursts first.

What the paper leaves out, because its batches turn over quickly and ours may not: when all slots are taken, a claim
may make another one give way. One of a worse priority always does, the worst first. Within a priority a tenant that was
ranks behind gives way to one that ranks before, its youngest claim first, in two cases: it has more than its share of
the slots and the other has less; or it ranks behind by `MARGIN`, whatever either has now. The second is for a tenant
that takes nearly all of its share: its arrivals come in bursts, in a burst it wants more slots than its share, and over
a while it gets no more. Who gives way ranks behind all the more for it, so claims do not chase each other in circles. A
victim keeps its place in its tenant's line.

An engine that takes long to empty a slot needs a `reserve`: while a tenant is around that goes first and has less
than its share (it has claims, or had some less than a credit ago), those who have theirs leave so many slots idle, and
make room where there are none. A tenant that is alone, or goes first, leaves nothing idle.

Invariants (`check_integrity`): a claim waits or runs, never both; a tenant is known while it has a claim, and for a
while behind; counters only grow.
Pure bookkeeping: no I/O, no clock, no chance. Does not know engines, slots' contents, KV, time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Generic, TypeVar

from sessions.model.types import TenantId

PROMPT_COST: Final = 1.0
ANSWER_COST: Final = 2.0  # a decoded token holds its slot for a whole step; the paper's price of it
CREDIT: Final = 4_096.0  # counted tokens that a tenant may be behind the others when it comes back; at least
SLOT_CREDIT: Final = 1_024.0  # for each slot of an engine that has many: about an answer with its prompt
MARGIN: Final = 1_024.0  # a tenant that was served so many more counted tokens gives way in any case
ROOM_SHARE: Final = 4  # a tenant may have so many times as many waiting as there is room left
TENANTS_REMEMBERED: Final = 4_096  # without a claim; the longest idle are forgotten

T = TypeVar("T")


@dataclass(slots=True, eq=False, repr=False)
class SlotClaim(Generic[T]):
    """A run's claim to a slot: it waits, runs, or waits to go on. The queue changes all but `holder` and
    `may_yield`."""

    holder: T
    _: KW_ONLY
    tenant: TenantId
    priority: int
    weight: float
    prompt_tokens: int
    may_yield: bool = field(default=True, init=False)  # whether it can be stopped where it is, and go on later
    arrival: int = field(default=0, init=False)
    started: int = field(default=0, init=False)  # when it was given its slot, in the queue's own ticks; 0: it waits
    charged: bool = field(default=False, init=False)  # whether its tenant was charged for its prompt: once


class _Tenant:
    __slots__ = ("counter", "left_at", "num_waiting", "priority", "running", "waiting", "weight")

    def __init__(self) -> None:
        self.counter = 0.0
        self.weight = 1.0
        self.num_waiting = 0
        self.priority = 0  # of the tenant's latest claim
        self.left_at = 0.0  # the value of `FairQueue._served` when its last claim left
        self.waiting: dict[int, list[SlotClaim[object]]] = {}  # by priority, oldest first
        self.running = 0


class FairQueue(Generic[T]):
    """Shares `slots` slots fairly among tenants; at most `waiting_max` claims wait. Each rule on whose turn it is has a
    method of its own."""

    def __init__(self, slots: int, waiting_max: int, *, reserve: int = 0) -> None:
        self.slots = slots
        self.waiting_max = waiting_max
        self.reserve = reserve
        self.credit = max(CREDIT, SLOT_CREDIT * slots)
        self._tenants: dict[TenantId, _Tenant] = {}  # tenants with claims
        self._idle: OrderedDict[TenantId, _Tenant] = OrderedDict()  # the others, longest idle first
        self._running: dict[SlotClaim[T], None] = {}
        self._num_waiting = 0
        self._ticks = 0
        self._floor = 0.0  # the counter of who was served last: where a newcomer to an empty engine begins
        self._served = 0.0  # what all tenants were served, as counted

    # -- what there is ----------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @property
    def running(self) -> Iterator[SlotClaim[T]]:
        return iter(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> list[SlotClaim[T]]:
        """The waiting claims, in no particular order."""
        claims = [claim for tenant in self._tenants.values() for line in tenant.waiting.values() for claim in line]
        return claims  # type: ignore[return-value]

    def counter(self, tenant: TenantId) -> float:
        """Returns the tokens that a tenant was served, priced and weighted; comparable among tenants that have work."""
        known = self._tenants.get(tenant) or self._idle.get(tenant)
        return known.counter if known is not None else 0.0

    def _rank(self, tenant: _Tenant) -> float:
        """Returns a tenant's rank, lowest first: what it was served, less a credit unless it floods the queue."""
        floods = tenant.running + tenant.num_waiting > self.slots
        return tenant.counter if floods else tenant.counter - self.credit

    def is_under_share(self, tenant: TenantId, weight: float, coming: int = 0) -> bool:
        """Returns whether one more claim of the tenant, after `coming` others, would get a slot at once by making
        another claim give way: because the tenant has fewer slots than its share, or was served much less than
        others."""
        others = [other for name, other in self._tenants.items() if name != tenant]
        if not others:
            return False
        mine = self._tenants.get(tenant)
        waiting = coming + (mine.num_waiting if mine is not None else 0)
        taken = waiting + (mine.running if mine is not None else 0)
        if taken + 1 <= self._part(weight, sum(other.weight for other in others)):
            return True
        if mine is None:
            return False
        served = max((self._rank(other) for other in others if other.running), default=mine.counter)
        return served - self._rank(mine) > MARGIN + (waiting + 1) * SLOT_CREDIT / weight

    def ahead_of(self, tenant: TenantId, priority: int, weight: float) -> int:
        """Returns how many waiting claims would be served before a claim that came now, if all claims took equally
        long."""
        ahead = 0
        mine = self._tenants.get(tenant)
        own = sum(len(line) for level, line in mine.waiting.items() if level <= priority) if mine is not None else 0
        for name, other in self._tenants.items():
            if name == tenant:
                continue
            better = sum(len(line) for level, line in other.waiting.items() if level < priority)
            # Tenants take turns while both have work: of a backlog no more goes first than one has waiting oneself.
            turns = round((own + 1) * other.weight / weight)
            behind = mine is None or self._rank(other) > self._rank(mine)
            ahead += better + min(len(other.waiting.get(priority, ())), max(0, turns - behind))
        return ahead + own

    def is_full(self, tenant: TenantId, *, coming: int = 0, own: int = 0) -> bool:
        """Returns whether the queue would refuse a claim of the tenant after `coming` more claims, of which `own` are
        the tenant's. One tenant can fill most of the queue but never all of it, so that there is room for another
        (dynamic thresholds, Choudhury and Hahne, 1998)."""
        known = self._tenants.get(tenant)
        own += known.num_waiting if known is not None else 0
        return own >= ROOM_SHARE * (self.waiting_max - self._num_waiting - coming)

    # -- coming and going -------------------------------------------------------------------------------------

    def join(self, claim: SlotClaim[T]) -> None:
        """Adds a claim to those that wait. Its tenant takes on the claim's weight."""
        self._ticks += 1
        claim.arrival = self._ticks
        tenant = self._tenants.get(claim.tenant)
        if tenant is None:
            tenant = self._tenants[claim.tenant] = self._idle.pop(claim.tenant, _Tenant())
        if not tenant.waiting:
            least = min((other.counter for other in self._tenants.values() if other.waiting), default=self._floor)
            tenant.counter = max(tenant.counter, least - self.credit)
        tenant.weight = claim.weight
        tenant.priority = claim.priority
        self._wait(tenant, claim)

    def _wait(self, tenant: _Tenant, claim: SlotClaim[T]) -> None:
        line = tenant.waiting.setdefault(claim.priority, [])
        at = len(line)
        while at and line[at - 1].arrival > claim.arrival:
            at -= 1
        line.insert(at, claim)  # type: ignore[arg-type]
        tenant.num_waiting += 1
        self._num_waiting += 1

    def first(self, ready: Callable[[SlotClaim[T]], bool] = lambda claim: True) -> SlotClaim[T] | None:
        """Returns the claim whose turn is next, among those that are `ready`."""
        best: tuple[int, float, int] | None = None
        next_claim: SlotClaim[T] | None = None
        for tenant in self._tenants.values():
            counter = self._rank(tenant)
            for priority, line in tenant.waiting.items():
                if best is not None and (priority, counter) > best[:2]:
                    continue
                candidate = next((claim for claim in line if ready(claim)), None)  # type: ignore[arg-type]
                if candidate is None:
                    continue
                rank = (priority, counter, candidate.arrival)
                if best is None or rank < best:
                    best, next_claim = rank, candidate  # type: ignore[assignment]
        return next_claim

    def start(self, claim: SlotClaim[T]) -> None:
        """Gives a waiting claim a slot; its tenant is charged for the prompt, once."""
        tenant = self._tenants[claim.tenant]
        self._unwait(tenant, claim)
        self._ticks += 1
        claim.started = self._ticks
        self._running[claim] = None
        tenant.running += 1
        self._floor = tenant.counter
        if not claim.charged:
            claim.charged = True
            self._charge(tenant, PROMPT_COST * claim.prompt_tokens)

    def served(self, claim: SlotClaim[T], tokens: int) -> None:
        """Charges the claim's tenant for so many decoded tokens."""
        self._charge(self._tenants[claim.tenant], ANSWER_COST * tokens)

    def _charge(self, tenant: _Tenant, cost: float) -> None:
        tenant.counter += cost / tenant.weight
        self._served += cost

    def leave(self, claim: SlotClaim[T]) -> None:
        """Removes a claim whose run has ended, or has given up waiting; drops its `holder`."""
        tenant = self._tenants[claim.tenant]
        if claim in self._running:
            self._stop(tenant, claim)
        else:
            self._unwait(tenant, claim)
        if not tenant.running and not tenant.waiting:
            del self._tenants[claim.tenant]
            self._idle[claim.tenant] = tenant
            tenant.left_at = self._served
            self._floor = max(self._floor, tenant.counter) if not self._tenants else self._floor
            while len(self._idle) > TENANTS_REMEMBERED:
                self._idle.popitem(last=False)
        del claim.holder

    def make_room(self, claim: SlotClaim[T]) -> None:
        """Makes a running claim wait again, at its old place in its tenant's line."""
        tenant = self._tenants[claim.tenant]
        self._stop(tenant, claim)
        self._wait(tenant, claim)

    def _stop(self, tenant: _Tenant, claim: SlotClaim[T]) -> None:
        del self._running[claim]
        claim.started = 0
        tenant.running -= 1

    def _unwait(self, tenant: _Tenant, claim: SlotClaim[T]) -> None:
        line = tenant.waiting[claim.priority]
        line.remove(claim)  # type: ignore[arg-type]
        if not line:
            del tenant.waiting[claim.priority]
        tenant.num_waiting -= 1
        self._num_waiting -= 1

    # -- making room ------------------------------------------------------------------------------------------

    def victim(self, claim: SlotClaim[T]) -> SlotClaim[T] | None:
        """Returns the running claim that must give way to the waiting `claim`; None if `claim` has to wait."""
        worst = max(
            (other for other in self._running if other.may_yield and other.priority > claim.priority),
            key=lambda other: (other.priority, self._rank(self._tenants[other.tenant]), other.started),
            default=None,
        )
        if worst is not None:
            return worst
        mine = self._tenants[claim.tenant]
        under, rank = mine.running + 1 <= self._share(mine), self._rank(mine)
        givers = {
            name
            for name, other in self._tenants.items()
            # After it, in either case: otherwise the victim would be next, and take its slot back at once.
            if self._rank(other) > rank + MARGIN
            or (under and self._rank(other) > rank and other.running > self._share(other))
        }
        if not givers:
            return None
        candidates = (
            other
            for other in self._running
            if other.may_yield and other.priority == claim.priority and other.tenant in givers
        )
        return max(candidates, key=lambda other: (self._rank(self._tenants[other.tenant]), other.started), default=None)

    def _share(self, tenant: _Tenant) -> float:
        """Returns how many slots a tenant may have while others want them: at least one."""
        return self._part(tenant.weight, sum(other.weight for other in self._tenants.values()) - tenant.weight)

    # -- room that is kept ------------------------------------------------------------------------------------

    def num_idle_for(self, tenant: TenantId, priority: int, weight: float) -> int:
        """Returns how many idle slots one more claim of the tenant could get. Slots of the reserve do not count if
        another tenant, which goes first, has less than its share."""
        idle = self.slots - len(self._running)
        if idle > 0 and self.reserve:
            around = self._around()
            running = around[tenant].running if tenant in around else 0
            others = sum(other.weight for name, other in around.items() if name != tenant)
            if running + 1 > self._part(weight, others) and self._has_short(around, tenant, priority):
                return max(0, idle - self.reserve)
        return max(0, idle)

    def keeper(self) -> SlotClaim[T] | None:
        """Returns the running claim that must make room so that the reserve is idle again; None if the reserve is idle
        already or no claim has to make room for it."""
        if not self.reserve or self.slots - len(self._running) >= self.reserve:
            return None
        around = self._around()
        if len(around) < 2:
            return None
        total = sum(tenant.weight for tenant in around.values())
        candidates = (
            claim
            for claim in self._running
            if claim.may_yield
            and around[claim.tenant].running > self._part(claim.weight, total - around[claim.tenant].weight)
            and self._has_short(around, claim.tenant, claim.priority)
        )
        return max(candidates, key=lambda claim: (self._rank(around[claim.tenant]), claim.started), default=None)

    def gives_way(self, claim: SlotClaim[T]) -> bool:
        """Returns whether a tenant that goes before this claim's has claims or had some recently. If so, the claim's
        prompt is computed in pieces."""
        mine = self._tenants[claim.tenant]
        return any(
            (other.priority, self._rank(other)) < (claim.priority, self._rank(mine))
            for other in self._around().values()
            if other is not mine
        )

    def order(self, claim: SlotClaim[T]) -> tuple[int, float]:
        """Returns the sort key of a claim that has not left: the smallest goes first."""
        return claim.priority, self._rank(self._tenants[claim.tenant])

    def is_before(self, claim: SlotClaim[T], other: SlotClaim[T]) -> bool:
        """Returns whether `claim` belongs to another tenant than `other` and goes first."""
        return claim.tenant != other.tenant and self.order(claim) < self.order(other)

    def _around(self) -> dict[TenantId, _Tenant]:
        """Returns the tenants that have claims, or had some a short while ago."""
        tenants = dict(self._tenants)
        for name, tenant in reversed(self._idle.items()):  # who left last comes first
            if self._served - tenant.left_at > self.credit:
                break
            tenants[name] = tenant
        return tenants

    def _has_short(self, around: dict[TenantId, _Tenant], beside: TenantId, priority: int) -> bool:
        """Returns whether some tenant has fewer slots than its share and would go before a claim of the tenant
        `beside`. `around`: the tenants with claims now or recently."""
        total = sum(tenant.weight for tenant in around.values())
        before = (priority, self._rank(around[beside])) if beside in around else (priority, 0.0)
        return any(
            tenant.running + 1 <= self._part(tenant.weight, total - tenant.weight)
            for name, tenant in around.items()
            if name != beside and (tenant.priority, self._rank(tenant)) < before
        )

    def _part(self, weight: float, others: float) -> float:
        return max(1.0, self.slots * weight / (weight + others))

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        waiting = self.waiting
        assert len(waiting) == self._num_waiting == len(set(waiting))
        assert not set(waiting) & set(self._running)
        assert all(claim.started for claim in self._running) and not any(claim.started for claim in waiting)
        for name, tenant in self._tenants.items():
            assert tenant.running == sum(claim.tenant == name for claim in self._running)
            assert tenant.running or tenant.waiting, f"{name} has no claim"
            assert all(line for line in tenant.waiting.values())
            assert tenant.num_waiting == sum(map(len, tenant.waiting.values()))
        assert not self._idle.keys() & self._tenants.keys()
