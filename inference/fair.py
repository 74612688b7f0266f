"""Who runs next on an engine, and who makes room: fair between tenants by the tokens that they were served.

    join ──> waiting ──start──> running ──leave──>
                ^                  │
                └──── make_room ───┘      a victim waits again and goes on later

Each tenant has a counter of the tokens it was served, prompts at `PROMPT_COST` and answers at `ANSWER_COST`, divided
by its weight. Among those that wait in the best priority the tenant with the smallest counter is next, its oldest
claim first. A tenant that comes back from having nothing to do is lifted to within `CREDIT` of the smallest counter
of those that have: time that it did not use is not saved up, but a burst of few turns is let through. So tenants that
always have work are served within a constant of their shares, and one that takes less than its share waits for
nobody's backlog. This is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI
2024), with weights.

What the paper leaves out, because its batches turn over quickly and ours may not: when all slots are taken, a claim
may make another one give way. One of a worse priority always does, the worst first. Within a priority a tenant with
more than its share of the slots gives way to one with less that was served less, its youngest claim first; nobody gives
way to a tenant that has its share, so claims do not chase each other in circles. A victim keeps its place in its
tenant's line.

Invariants (`check_integrity`): a claim waits or runs, never both; a tenant is known while it has a claim, and for a
while behind; counters only grow.
Pure bookkeeping: no I/O, no clock, no chance. Does not know engines, slots' contents, KV, time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from sessions.types import TenantId

PROMPT_COST: Final = 1.0
ANSWER_COST: Final = 2.0  # a decoded token holds its slot for a whole step; the paper's price of it
CREDIT: Final = 4_096.0  # counted tokens that a tenant may be behind the others when it comes back
ROOM_SHARE: Final = 4  # a tenant may have so many times as many waiting as there is room left
TENANTS_REMEMBERED: Final = 4_096  # without a claim; the longest idle are forgotten

T = TypeVar("T")


class Claim(Generic[T]):
    """One run that wants a slot, has one, or waits to go on. Mutable; the queue's, but for `holder` and `may_yield`."""

    __slots__ = (
        "arrival",
        "charged",
        "holder",
        "may_yield",
        "priority",
        "prompt_tokens",
        "started",
        "tenant",
        "weight",
    )

    def __init__(self, holder: T, *, tenant: TenantId, priority: int, weight: float, prompt_tokens: int) -> None:
        self.holder = holder
        self.tenant = tenant
        self.priority = priority
        self.weight = weight
        self.prompt_tokens = prompt_tokens
        self.may_yield = True  # it can be stopped where it is, and go on later
        self.arrival = 0
        self.started = 0  # when it was given its slot, in the queue's own ticks; 0: it waits
        self.charged = False  # for its prompt: computing it again is our doing


class _Tenant:
    __slots__ = ("counter", "running", "waiting", "weight")

    def __init__(self) -> None:
        self.counter = 0.0
        self.weight = 1.0
        self.waiting: dict[int, list[Claim[object]]] = {}  # by priority, oldest first
        self.running = 0


class FairQueue(Generic[T]):
    """The claims on `slots` slots, of which at most `waiting_max` wait."""

    def __init__(self, slots: int, waiting_max: int) -> None:
        self.slots = slots
        self.waiting_max = waiting_max
        self._tenants: dict[TenantId, _Tenant] = {}  # with claims
        self._idle: OrderedDict[TenantId, float] = OrderedDict()  # the others' counters, longest idle first
        self._running: dict[Claim[T], None] = {}
        self._num_waiting = 0
        self._ticks = 0
        self._floor = 0.0  # the counter of who was served last: where a newcomer to an empty engine begins

    # -- what there is ----------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @property
    def running(self) -> Iterator[Claim[T]]:
        return iter(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> list[Claim[T]]:
        """In no order that matters."""
        found = [claim for tenant in self._tenants.values() for line in tenant.waiting.values() for claim in line]
        return found  # type: ignore[return-value]

    def counter(self, tenant: TenantId) -> float:
        """The tokens that a tenant was served, priced and weighted; for those that have work, comparable."""
        known = self._tenants.get(tenant)
        return known.counter if known is not None else self._idle.get(tenant, 0.0)

    def is_under_share(self, tenant: TenantId, weight: float, coming: int = 0) -> bool:
        """Whether one more claim, and those that are on their way, stay within its share of slots that others use."""
        mine = self._tenants.get(tenant)
        others = sum(other.weight for name, other in self._tenants.items() if name != tenant)
        if not others:
            return False
        taken = coming + (mine.running + sum(map(len, mine.waiting.values())) if mine is not None else 0)
        return taken + 1 <= max(1.0, self.slots * weight / (weight + others))

    def ahead_of(self, tenant: TenantId, priority: int, weight: float) -> int:
        """How many of those that wait would be served before a claim that came now, if all were as long."""
        ahead = 0
        mine = self._tenants.get(tenant)
        own = sum(len(line) for level, line in mine.waiting.items() if level <= priority) if mine is not None else 0
        for name, other in self._tenants.items():
            if name == tenant:
                continue
            better = sum(len(line) for level, line in other.waiting.items() if level < priority)
            # Tenants take turns while both have work: of a backlog no more goes first than one has waiting oneself.
            turns = round((own + 1) * other.weight / weight)
            behind = mine is None or other.counter > mine.counter
            ahead += better + min(len(other.waiting.get(priority, ())), max(0, turns - behind))
        return ahead + own

    def is_full(self, tenant: TenantId) -> bool:
        """Whether no more of this tenant may wait. One tenant alone fills most of the queue and never all of it, so
        that there is room for another (dynamic thresholds, Choudhury and Hahne, 1998)."""
        known = self._tenants.get(tenant)
        own = sum(len(line) for line in known.waiting.values()) if known is not None else 0
        return own >= ROOM_SHARE * (self.waiting_max - self._num_waiting)

    # -- coming and going -------------------------------------------------------------------------------------

    def join(self, claim: Claim[T]) -> None:
        """The claim waits. Its tenant's weight is the one that came last."""
        self._ticks += 1
        claim.arrival = self._ticks
        tenant = self._tenants.get(claim.tenant)
        if tenant is None:
            tenant = _Tenant()
            least = min((other.counter for other in self._tenants.values()), default=self._floor)
            tenant.counter = max(self._idle.pop(claim.tenant, 0.0), least - CREDIT)
            self._tenants[claim.tenant] = tenant
        tenant.weight = claim.weight
        self._wait(tenant, claim)

    def _wait(self, tenant: _Tenant, claim: Claim[T]) -> None:
        line = tenant.waiting.setdefault(claim.priority, [])
        at = len(line)
        while at and line[at - 1].arrival > claim.arrival:
            at -= 1
        line.insert(at, claim)  # type: ignore[arg-type]
        self._num_waiting += 1

    def first(self, ready: Callable[[Claim[T]], bool] = lambda claim: True) -> Claim[T] | None:
        """Who is next, of those that are ready."""
        best: tuple[int, float, int] | None = None
        found: Claim[T] | None = None
        for tenant in self._tenants.values():
            for priority, line in tenant.waiting.items():
                if best is not None and (priority, tenant.counter) > best[:2]:
                    continue
                candidate = next((claim for claim in line if ready(claim)), None)  # type: ignore[arg-type]
                if candidate is None:
                    continue
                rank = (priority, tenant.counter, candidate.arrival)
                if best is None or rank < best:
                    best, found = rank, candidate  # type: ignore[assignment]
        return found

    def start(self, claim: Claim[T]) -> None:
        """The claim that waited has a slot, and its tenant is charged for the prompt."""
        tenant = self._tenants[claim.tenant]
        self._unwait(tenant, claim)
        self._ticks += 1
        claim.started = self._ticks
        self._running[claim] = None
        tenant.running += 1
        self._floor = tenant.counter
        if not claim.charged:
            claim.charged = True
            tenant.counter += PROMPT_COST * claim.prompt_tokens / tenant.weight

    def served(self, claim: Claim[T], tokens: int) -> None:
        """So many tokens of an answer were decoded."""
        tenant = self._tenants[claim.tenant]
        tenant.counter += ANSWER_COST * tokens / tenant.weight

    def leave(self, claim: Claim[T]) -> None:
        """The run has ended, or whoever waited has given up."""
        tenant = self._tenants[claim.tenant]
        if claim in self._running:
            self._stop(tenant, claim)
        else:
            self._unwait(tenant, claim)
        if not tenant.running and not tenant.waiting:
            del self._tenants[claim.tenant]
            self._idle[claim.tenant] = tenant.counter
            self._floor = max(self._floor, tenant.counter) if not self._tenants else self._floor
            while len(self._idle) > TENANTS_REMEMBERED:
                self._idle.popitem(last=False)

    def make_room(self, claim: Claim[T]) -> None:
        """A running claim waits again, where it stood in its tenant's line."""
        tenant = self._tenants[claim.tenant]
        self._stop(tenant, claim)
        self._wait(tenant, claim)

    def _stop(self, tenant: _Tenant, claim: Claim[T]) -> None:
        del self._running[claim]
        claim.started = 0
        tenant.running -= 1

    def _unwait(self, tenant: _Tenant, claim: Claim[T]) -> None:
        line = tenant.waiting[claim.priority]
        line.remove(claim)  # type: ignore[arg-type]
        if not line:
            del tenant.waiting[claim.priority]
        self._num_waiting -= 1

    # -- making room ------------------------------------------------------------------------------------------

    def victim(self, claim: Claim[T]) -> Claim[T] | None:
        """The running claim that gives way to `claim`, which waits; None: it waits on."""
        worst = max(
            (other for other in self._running if other.may_yield and other.priority > claim.priority),
            key=lambda other: (other.priority, self._tenants[other.tenant].counter, other.started),
            default=None,
        )
        if worst is not None:
            return worst
        mine = self._tenants[claim.tenant]
        if mine.running + 1 > self._share(mine):
            return None
        over = [
            other
            for other in self._running
            if other.may_yield and other.priority == claim.priority and other.tenant != claim.tenant
            # Served more, too: otherwise the victim would be next, and take its slot back at once.
            if mine.counter < self._tenants[other.tenant].counter
            and self._tenants[other.tenant].running > self._share(self._tenants[other.tenant])
        ]
        return max(over, key=lambda other: (self._tenants[other.tenant].counter, other.started), default=None)

    def _share(self, tenant: _Tenant) -> float:
        """The slots that a tenant may have while others want them: at least one."""
        return max(1.0, self.slots * tenant.weight / sum(other.weight for other in self._tenants.values()))

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
        assert not self._idle.keys() & self._tenants.keys()
