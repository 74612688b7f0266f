"""Limits how many answers run at once, fairly between tenants; beyond the queue work is shed. While the gate is `held`
nobody gets in.

Who is next, and who makes room for whom, is `inference.fair_queue`'s to say. A run that is to make room learns of it by
`yields`, stops behind its next token (`give_way`) and waits again (`acquire`): vLLM drops an aborted run within one
step, so no slot is kept idle for that. The gate stands before vLLM's own scheduler: what waits has sent nothing
yet, and a cancelled waiter leaves nothing behind. It knows no engine.
"""

from __future__ import annotations

import asyncio
from typing import Final

from inference.fair_queue import FairQueue, SlotClaim
from sessions.model.errors import Overloaded, SessileError
from sessions.model.types import TenantId

_RETRY_AFTER_MS: Final = 1000


class GatedRun:
    """A run as the gate sees it: it may be let in several times, one after another."""

    __slots__ = ("claim", "future", "left", "pauses", "yields")

    def __init__(self, tenant: TenantId, priority: int, weight: float, prompt_tokens: int, *, pauses: bool) -> None:
        """`pauses`: whether the run can be stopped after any token and go on later."""
        self.claim: SlotClaim[GatedRun] = SlotClaim(
            self, tenant=tenant, priority=priority, weight=weight, prompt_tokens=prompt_tokens
        )
        self.claim.may_yield = False  # before its first token stopping it would lose what is computed
        self.pauses = pauses
        self.yields = False  # another run is to go first: `give_way` comes next
        self.left = False
        self.future: asyncio.Future[None] | None = None

    @property
    def waits(self) -> bool:
        """Whether the run waits to be let in. It is false as soon as the run is cancelled or refused, even before its
        task has run again."""
        return self.future is not None and not self.future.done()


class ConcurrencyGate:
    """Lets a bounded number of runs in at a time. For each run: `acquire`, then any number of times `give_way` and
    `acquire` again, then `leave`."""

    def __init__(self, slots: int, waiting_max: int) -> None:
        self.queue: FairQueue[GatedRun] = FairQueue(slots, waiting_max)
        self.num_shed = 0
        self.num_preempted = 0
        self.held = False

    @property
    def slots(self) -> int:
        return self.queue.slots

    @property
    def running(self) -> int:
        return self.queue.num_running

    @property
    def waiting(self) -> int:
        """How many runs wait. They are counted at each call, because a cancelled run still stands in the queue until
        its task runs again."""
        return sum(claim.holder.waits for claim in self.queue.waiting)

    def is_full(self, tenant: TenantId) -> bool:
        """Returns whether one more run of a tenant would be refused."""
        return (self.held or self._idle() <= self.waiting) and self.queue.is_full(tenant)

    async def acquire(self, run: GatedRun) -> None:
        """Waits until the run is let in. Raises Overloaded if the queue is full, and the error of `refuse_all`. If this
        raises or is cancelled, the run has been removed, as by `leave`."""
        if not run.claim.arrival:
            if self.is_full(run.claim.tenant):
                run.left = True
                self.num_shed += 1
                raise Overloaded("overloaded", "The model is busy. Try again shortly.", retry_after_ms=_RETRY_AFTER_MS)
            self.queue.join(run.claim)
        run.future = asyncio.get_running_loop().create_future()
        self._let_in()
        try:
            await run.future
        except BaseException:
            self.leave(run)
            raise

    def on_output(self, run: GatedRun, tokens: int) -> None:
        """Notes that the run has emitted tokens: from now on it can be stopped without loss."""
        self.queue.served(run.claim, tokens)
        if run.pauses and not run.claim.may_yield:
            run.claim.may_yield = True
            self._request_room()

    def give_way(self, run: GatedRun) -> None:
        """Lets another run in instead of this one, which has stopped and been aborted in vLLM. The caller then calls
        `acquire` again."""
        self.num_preempted += 1
        run.yields = False
        run.future = None
        self.queue.make_room(run.claim)
        self._let_in()

    def leave(self, run: GatedRun) -> None:
        """Removes a run that is over, whether it waited or ran. Idempotent."""
        if not run.left:
            run.left = True
            self.queue.leave(run.claim)
            self._let_in()

    def hold(self) -> None:
        """Lets no run in until `open` is called. Runs that were let in before go on."""
        self.held = True

    def open(self) -> None:
        self.held = False
        self._let_in()

    def refuse_all(self, error: SessileError) -> None:
        """Ends every wait with the error."""
        for claim in self.queue.waiting:
            run = claim.holder
            if run.future is not None and not run.future.done():
                run.future.set_exception(error)

    def _idle(self) -> int:
        return self.queue.slots - self.queue.num_running

    def _let_in(self) -> None:
        """Lets in the runs that are next; where no place is free, asks a run to make room."""
        if self.held:
            return
        while self._idle() > 0 and (claim := self.queue.first(_waits)) is not None:
            self.queue.start(claim)
            future = claim.holder.future
            assert future is not None
            future.set_result(None)
        self._request_room()

    def _request_room(self) -> None:
        """Asks one running run to make room. Does nothing while a run that was asked has not yet made room, because
        which run is next depends on that."""
        if self.held or self._idle() > 0 or any(claim.holder.yields for claim in self.queue.running):
            return
        first = self.queue.first(_waits)
        victim = self.queue.victim(first) if first is not None else None
        if victim is not None:
            victim.holder.yields = True


def _waits(claim: SlotClaim[GatedRun]) -> bool:
    return claim.holder.waits
