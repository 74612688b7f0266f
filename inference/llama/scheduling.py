"""Who gets a slot next: the slot table, with the queue of `inference.fair` before it.

A slot is handed to a waiter by the release that frees it, so nobody overtakes; a waiter that was cancelled in that
moment gives it back at once. Where a waiter goes before somebody that runs, that one is told to make room
(`Run.yields`) and does so behind its next token.
"""

from __future__ import annotations

import array
import asyncio

import msgspec

from inference.fair import Claim, FairQueue
from inference.llama.slots import Slot, SlotTable
from sessions.errors import Overloaded, SessileError
from sessions.ports import GenerationRequest
from sessions.turn import continuation_seed
from sessions.types import SessionKey, Tokens


class Run:
    """One run of an engine as the queue knows it: it may have several slots, one after another."""

    __slots__ = ("claim", "future", "key", "pauses", "prompt", "slot", "yields")

    def __init__(
        self,
        key: SessionKey,
        prompt: array.array[int],
        priority: int = 0,
        weight: float = 1.0,
        *,
        pauses: bool = True,
    ) -> None:
        self.key = key
        self.prompt = prompt  # what it begins from, or goes on from
        self.claim: Claim[Run] = Claim(
            self, tenant=key.tenant, priority=priority, weight=weight, prompt_tokens=len(prompt)
        )
        self.claim.may_yield = False
        self.pauses = pauses  # it can be stopped and go on
        self.future: asyncio.Future[Slot] | None = None
        self.slot: Slot | None = None
        self.yields = False  # somebody is to have its slot: `give_way` comes next


class Scheduler:
    """`acquire` comes first, then `give_way` with `acquire` again any number of times, then `leave`."""

    def __init__(self, table: SlotTable, waiting_max: int) -> None:
        self.table = table
        self.queue: FairQueue[Run] = FairQueue(len(list(table)), waiting_max)
        self.num_shed = 0
        self.num_preempted = 0

    @property
    def num_waiting(self) -> int:
        """Counted, not kept: a cancelled task has left the queue before it has run once more to say so."""
        return sum(_waits(claim.holder) for claim in self.queue.waiting)

    async def acquire(self, run: Run) -> Slot:
        """A busy slot, chosen by `SlotTable.acquire`. Raises Overloaded when the queue is full, and the error of
        `refuse_all`; then, and cancelled, the run has left."""
        if not run.claim.arrival:
            if not self.table.has_idle() and self.queue.is_full(run.key.tenant):
                self.num_shed += 1
                raise Overloaded("overloaded", "The model is busy. Try again shortly.", retry_after_ms=1000)
            self.queue.join(run.claim)
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        run.future = future
        self._hand_out()
        try:
            return await future
        except BaseException:
            self.leave(run)
            raise

    def try_acquire(self, run: Run) -> Slot | None:
        """A slot if one is idle and nobody waits; never queues."""
        if self.num_waiting:
            return None
        slot = self.table.acquire(run.key, run.prompt)
        if slot is not None:
            self.queue.join(run.claim)
            self.queue.start(run.claim)
            run.slot = slot
        return slot

    def spoke(self, run: Run, tokens: int) -> None:
        """The run has said something: from now on stopping it loses nothing."""
        self.queue.served(run.claim, tokens)
        if not run.claim.may_yield and run.pauses:
            run.claim.may_yield = True
            self._hand_out()

    def give_way(self, run: Run, slot: Slot) -> None:
        """The run's KV is in order, and its slot goes to who is next; it waits again."""
        run.yields = False
        run.slot = None
        self.num_preempted += 1
        self.queue.make_room(run.claim)
        self.table.release(slot)
        self._hand_out()

    def leave(self, run: Run) -> None:
        """The run is over, wherever it was."""
        self.queue.leave(run.claim)
        slot, run.slot = run.slot, None
        if slot is not None:
            self.table.release(slot)
        self._hand_out()

    def refuse_all(self, error: SessileError) -> None:
        """Ends everybody's wait with `error`."""
        for claim in self.queue.waiting:
            future = claim.holder.future
            if future is not None and not future.done():
                future.set_exception(error)

    def _hand_out(self) -> None:
        """Gives idle slots to who is next; where none is left, asks somebody to make room for who is."""
        while (claim := self.queue.first(_ready)) is not None:
            run = claim.holder
            slot = self.table.acquire(run.key, run.prompt)
            if slot is None:
                self._ask_for_room(claim)
                break
            self.queue.start(claim)
            run.slot = slot
            assert run.future is not None
            run.future.set_result(slot)

    def _ask_for_room(self, claim: Claim[Run]) -> None:
        """One at a time: who is asked next depends on who has made room."""
        if any(each.holder.yields for each in self.queue.running):
            return
        victim = self.queue.victim(claim)
        if victim is not None:
            victim.holder.yields = True


def continued(request: GenerationRequest, said: Tokens) -> GenerationRequest:
    """The rest of a run that said something and made room, as a run of its own."""
    emitted = (*request.emitted, *said)
    return msgspec.structs.replace(
        request,
        prompt=(*request.prompt, *said),
        emitted=emitted,
        max_tokens=request.max_tokens - len(said),
        seed=continuation_seed(request.seed, request.response_id, len(emitted)),
    )


def _ready(claim: Claim[Run]) -> bool:
    return _waits(claim.holder)


def _waits(run: Run) -> bool:
    """Not so: it is cancelled or refused, or has just made room, and will say so when it runs."""
    return run.future is not None and not run.future.done()
