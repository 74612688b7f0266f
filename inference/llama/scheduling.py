"""Schedules runs onto slots: the slot table, with the queue of `inference.fair_queue` before it.

A slot is handed to a waiter by the release that frees it, so nobody overtakes; a waiter that was cancelled in that
moment gives it back at once. Where a waiter goes before a run that has a slot, that one is to make room
(`EngineRun.yields`) and does so behind its next token.

That takes several steps of llama-server's: until it has emitted its next token, has noticed that we hung up, and the
slot is saved. So with enough slots one is kept idle for whoever is around and has less than its share
(`inference.fair_queue`). And llama-server fills prompts in the order of its slots, each as far as a batch goes: so
prompts are sent in pieces that share a step (`take_step`): short rests first, what is left to one long prompt, the long
ones in turn. Whoever gives way waits before each piece until nobody who goes first is being filled (`wait_to_prefill`).
"""

from __future__ import annotations

import array
import asyncio
from typing import Final

from inference.fair_queue import FairQueue, SlotClaim
from inference.llama.shown_prompts import ShownPrompt
from inference.llama.slots import Slot, SlotTable
from inference.step_budget import LEAST_BESIDE, StepBudget
from sessions.model.errors import Overloaded, SessileError
from sessions.model.types import SessionKey


class EngineRun:
    """One run of an engine as the queue sees it: it may have several slots, one after another."""

    __slots__ = (
        *("claim", "decoding", "filling", "future", "is_long", "key", "pauses", "prompt", "scope"),
        *("shown", "slot", "step_tokens", "yields"),
    )

    def __init__(
        self,
        key: SessionKey,
        prompt: array.array[int],
        priority: int = 0,
        weight: float = 1.0,
        *,
        pauses: bool = True,
        scope: bytes = b"",
        shown: ShownPrompt | None = None,
    ) -> None:
        """`shown`: the same as `prompt`, if that names images."""
        self.key = key
        self.shown = shown
        self.scope = scope  # the run's `cache_scope`
        self.prompt = prompt  # the tokens that it begins or continues from
        self.claim: SlotClaim[EngineRun] = SlotClaim(
            self, tenant=key.tenant, priority=priority, weight=weight, prompt_tokens=len(prompt)
        )
        self.claim.may_yield = False
        self.pauses = pauses  # whether it can be stopped and continued
        self.future: asyncio.Future[Slot] | None = None
        self.slot: Slot | None = None
        self.filling = False  # whether it has a slot and has emitted nothing in it
        self.decoding = False  # whether it has a slot and has emitted tokens in it
        self.step_tokens = 0  # prompt tokens that llama-server is computing
        self.is_long = False  # whether more prompt tokens follow those
        self.yields = False  # another run is to have its slot: `give_way` comes next


RESERVE_FROM_SLOTS: Final = 4  # with fewer slots, keeping one idle costs too much


class Scheduler:
    """Gives slots to runs. For each run: `acquire`, then any number of times `give_way` and `acquire` again, then
    `leave`."""

    def __init__(self, table: SlotTable, waiting_max: int) -> None:
        slots = len(list(table))
        self.table = table
        self.queue: FairQueue[EngineRun] = FairQueue(slots, waiting_max, reserve=int(slots >= RESERVE_FROM_SLOTS))
        self._gated: list[asyncio.Future[None]] = []
        self._asking: dict[EngineRun, int] = {}  # runs waiting for room in a step, in order, with the tokens they lack
        self.num_shed = 0
        self.num_preempted = 0

    @property
    def num_waiting(self) -> int:
        """How many runs wait. They are counted at each call, because a cancelled run still stands in the queue until
        its task runs again."""
        return sum(_waits(claim.holder) for claim in self.queue.waiting)

    async def acquire(self, run: EngineRun) -> Slot:
        """Waits for a slot, chosen by `SlotTable.acquire`. Raises Overloaded if the queue is full, and the error of
        `refuse_all`. If this raises or is cancelled, the run has been removed, as by `leave`."""
        if not run.claim.arrival:
            idle = self.queue.num_idle_for(run.key.tenant, run.claim.priority, run.claim.weight)
            if not idle and self.queue.is_full(run.key.tenant):
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

    def try_acquire(self, run: EngineRun, *, beside: bool = False) -> Slot | None:
        """Returns a slot if one is idle and no run waits, otherwise None at once. `beside`: as for
        `SlotTable.acquire`."""
        if self.num_waiting or not self.queue.num_idle_for(run.key.tenant, run.claim.priority, run.claim.weight):
            return None
        slot = self.table.acquire(run.key, run.prompt, beside=beside)
        if slot is not None:
            self.queue.join(run.claim)
            self.queue.start(run.claim)
            run.slot = slot
        return slot

    def on_output(self, run: EngineRun, tokens: int) -> None:
        """Notes that the run has emitted tokens: from now on it can be stopped without loss."""
        self.queue.served(run.claim, tokens)
        if not run.decoding:
            run.filling, run.decoding, run.step_tokens = False, True, 0
            self._open_gates()
        if not run.claim.may_yield and run.pauses:
            run.claim.may_yield = True
            self._hand_out()

    def give_way(self, run: EngineRun, slot: Slot) -> None:
        """Gives the slot of a run to the next run; the run itself waits again. The slot's KV must be saved or
        consistent by now. The run counts as preempted if it had been asked to make room."""
        self.num_preempted += run.yields
        run.yields = run.filling = run.decoding = False
        run.step_tokens = 0
        run.slot = None
        self.queue.make_room(run.claim)
        self.table.release(slot)
        self._hand_out()
        self._open_gates()

    def leave(self, run: EngineRun) -> None:
        """Removes a run that is over, whether it waited or ran."""
        self.queue.leave(run.claim)
        slot, run.slot = run.slot, None
        run.filling = run.decoding = False
        run.step_tokens = 0
        if slot is not None:
            self.table.release(slot)
        self._hand_out()
        self._open_gates()

    # -- whose prompt is computed first ------------------------------------------------------------------------

    def gives_way(self, run: EngineRun) -> bool:
        """Returns whether the run's prompt must be sent in pieces, with a call of `wait_to_prefill` before each
        piece."""
        return self.queue.gives_way(run.claim)

    async def wait_to_prefill(self, run: EngineRun) -> bool:
        """Waits until no run that goes before this one has a prompt being computed. The run that goes first never
        waits. Returns False if the run has to make room now, which loses nothing between two pieces."""
        if run.pauses and not run.claim.may_yield:
            run.claim.may_yield = True
            self._request_room()
        self._open_gates()
        while not run.yields and any(
            each.holder.filling and self.queue.is_before(each, run.claim)
            for each in self.queue.running
            if each is not run.claim
        ):
            gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._gated.append(gate)
            await gate
        return not run.yields

    async def take_step(self, run: EngineRun, lacks: int, budget: StepBudget) -> int:
        """Waits for room in llama-server's next step for a prompt of which `lacks` tokens are not computed. Returns how
        many of them the caller may send. They count as being computed until `end_step`, or until the run emits
        something or leaves."""
        self._asking[run] = lacks
        try:
            while not (room := self._step_room(run, lacks, budget)):
                gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._gated.append(gate)
                await gate
        finally:
            del self._asking[run]
            self._open_gates()
        run.step_tokens, run.is_long = room, room < lacks
        return room

    def end_step(self, run: EngineRun) -> None:
        run.step_tokens = 0
        self._open_gates()

    def _step_room(self, run: EngineRun, lacks: int, budget: StepBudget) -> int:
        """Returns how many of the run's `lacks` tokens fit into the next step; 0 if none fit now. An empty step always
        has room for some run."""
        running = [claim.holder for claim in self.queue.running if claim.holder is not run]
        step = budget.tokens(decoding=any(other.decoding for other in running))
        used = sum(other.step_tokens for other in running)
        if lacks <= step:
            return lacks if not used or used + lacks <= step else 0
        if any(other.step_tokens and other.is_long for other in running):
            return 0
        if any(tokens <= step for tokens in self._asking.values()):
            return 0
        if next(iter(self._asking)) is not run:  # all who ask are long
            return 0
        return min(lacks, max(step - used, LEAST_BESIDE))

    def _open_gates(self) -> None:
        gates, self._gated = self._gated, []
        for gate in gates:
            if not gate.done():
                gate.set_result(None)

    def refuse_all(self, error: SessileError) -> None:
        """Ends every wait with `error`."""
        for claim in self.queue.waiting:
            future = claim.holder.future
            if future is not None and not future.done():
                future.set_exception(error)

    def _hand_out(self) -> None:
        """Gives idle slots to the next runs; where none is left, asks a run to make room."""
        while (claim := self.queue.first(self._may_start)) is not None:
            run = claim.holder
            slot = self.table.acquire(run.key, run.prompt)
            assert slot is not None
            self.queue.start(claim)
            run.slot = slot
            run.filling = True
            assert run.future is not None
            run.future.set_result(slot)
        self._request_room()

    def _may_start(self, claim: SlotClaim[EngineRun]) -> bool:
        return _waits(claim.holder) and self.queue.num_idle_for(claim.tenant, claim.priority, claim.weight) > 0

    def _request_room(self) -> None:
        """Asks one running run to make room. Does nothing while a run that was asked has not yet made room, because
        which run is next depends on that."""
        if any(claim.holder.yields for claim in self.queue.running):
            return
        first = self.queue.first(_ready)
        victim = self.queue.victim(first) if first is not None and not self.table.has_idle() else None
        if victim is None:
            victim = self.queue.keeper()
        if victim is not None:
            victim.holder.yields = True
            self._open_gates()


def _ready(claim: SlotClaim[EngineRun]) -> bool:
    return _waits(claim.holder)


def _waits(run: EngineRun) -> bool:
    """Returns whether the run waits for a slot; false as soon as it is cancelled or refused, even before its task has
    run again."""
    return run.future is not None and not run.future.done()
