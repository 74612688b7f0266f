"""Prefills a slot for a run: its KV is brought up, the rest of the prompt computed.

A prompt is sent in pieces of a step each (`Scheduler.take_step`): whoever decodes, or comes with a short rest, waits no
longer than a step lasts. And llama-server would notice only when it has something to say that nobody wants an answer
any more: whoever is cancelled does not begin the next piece.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from inference.llama.completion import LlamaCompletion
from inference.llama.grammar_guide import Guide
from inference.llama.prefix_cache import WORTH_TOKENS, PrefixCache
from inference.llama.scheduling import EngineRun, Scheduler
from inference.llama.schema_probe import SchemaProbe
from inference.llama.shown_prompts import ShownPrompt
from inference.llama.slot_kv import SlotKv
from inference.llama.slots import Slot
from inference.step_budget import StepBudget
from inference.tokens import common_prefix
from sessions.model.errors import SessileError
from sessions.model.generation import Chunk
from sessions.model.types import INTEGER_MAX, Json

_MEASURED_TOKENS_MIN: Final = 16  # fewer say more about the step than about the rate


class SlotRun:
    """A run that has a slot, with what is known of its prefill."""

    __slots__ = ("cached_max", "completion", "forgotten", "paused", "preparing", "run", "slot")

    def __init__(self, slot: Slot, run: EngineRun) -> None:
        self.slot = slot
        self.run = run
        self.paused = False  # whether it makes room and goes on later
        self.completion: LlamaCompletion | None = None
        self.preparing: asyncio.Task[Any] | None = None
        self.cached_max = INTEGER_MAX  # what was there before we computed an opening or tried a schema ahead of the run
        self.forgotten = False  # the session was deleted: nothing of it stays


class SlotPrefill:
    """Computes prompts in slots: `begin` once for each run; the caller gives the slot back afterwards, however it
    ended."""

    def __init__(
        self,
        scheduler: Scheduler,
        make_completion: Callable[[Guide | None, int, array.array[int], int, int, ShownPrompt | None], LlamaCompletion],
        slot_kv: SlotKv,
        schemas: SchemaProbe,
        *,
        turn_opening_tokens: int,
        budget: StepBudget,
        check: Callable[[], None],
    ) -> None:
        """`make_completion` gets (guide, slot number, prompt, tokens of the prompt whose KV is in the slot, most tokens
        to report as cached, prompt with images). `turn_opening_tokens`: how many tokens come before a user's words in
        every conversation. `budget`: how many tokens a step may compute. `check` raises once the engine is closed."""
        self._scheduler = scheduler
        self._slot_kv = slot_kv
        self._prefix_cache = PrefixCache(slot_kv)
        self._make_completion = make_completion
        self._turn_opening_tokens = turn_opening_tokens
        self._schemas = schemas
        self._budget = budget
        self._check = check

    async def begin(
        self,
        slot_run: SlotRun,
        prompt: array.array[int],
        shared_prefix: int,
        parameters: dict[str, Json],
        guide: Guide | None = None,
    ) -> LlamaCompletion | None:
        """Restores the session's KV, computes the rest of the prompt and starts the run. Returns None if the run has to
        make room for another one first."""
        slot, key = slot_run.slot, slot_run.run.key
        slot_run.preparing = asyncio.create_task(self._prepare(slot_run, prompt, shared_prefix))
        resident = await asyncio.shield(slot_run.preparing)
        opening = prompt[:shared_prefix]
        alone = shared_prefix - resident >= WORTH_TOKENS and slot.key == key
        if alone and self._prefix_cache.common(key, opening):
            if await self._fill(slot_run, opening, resident, whole=True) is None:
                return None
            resident = shared_prefix
            slot_run.preparing = asyncio.create_task(self._prefix_cache.keep(slot, key, opening))
            await asyncio.shield(slot_run.preparing)
        filled = await self._fill(slot_run, prompt, resident, whole=False)
        if filled is None:
            return None
        resident = filled
        trial = self._schemas.probe_parameters(parameters) if guide is None else None
        if trial is not None:
            completion = await self._run(slot_run, prompt, resident, trial)
            self._schemas.judge(trial["json_schema"], await completion.next())
            await completion.next()  # its Finish
            completion.close()
            slot_run.cached_max, resident = min(slot_run.cached_max, completion.cached_tokens), len(prompt)
        return await self._run(slot_run, prompt, resident, parameters, guide)

    async def measure(self) -> None:
        """Computes some tokens in a free slot at the start, to measure how fast prompts are computed: the first turns
        must know that to choose between restoring and computing. If llama-server fails at it, nothing is measured."""
        for count in (1, self._budget.tokens(decoding=False)):  # the first touches all weights, and measures nothing
            completion = self._make_completion(None, 0, array.array("I", [0] * count), 0, INTEGER_MAX, None)
            with contextlib.suppress(SessileError):
                await completion.open({"n_predict": 0})
                while isinstance(await completion.next(), Chunk):
                    continue
                self.learn(completion)
            completion.close()

    def learn(self, completion: LlamaCompletion) -> None:
        """Learns the engine's pace from a run that is over."""
        if completion.prefill_s:
            self._budget.measured(completion.evaluated_tokens, completion.prefill_s)
        if completion.prefill_s and completion.evaluated_tokens >= _MEASURED_TOKENS_MIN:
            self._slot_kv.tiers.cost.prefilled(
                completion.cached_tokens, completion.cached_tokens + completion.evaluated_tokens, completion.prefill_s
            )

    async def _fill(self, slot_run: SlotRun, prompt: array.array[int], resident: int, *, whole: bool) -> int | None:
        """Computes the part of a prompt that is not `resident` in the slot, in pieces: all of it (`whole`), or until
        the rest fits into one step, which is then reserved for the run. What begins with an image is no piece, nor is
        text behind one, which llama-server would split into other tokens: it is the rest. Returns how many tokens the
        slot holds afterwards; None if the run has to make room first."""
        run = slot_run.run
        dividable = run.shown.first if run.shown is not None else len(prompt)
        while True:
            self._check()
            if self._scheduler.gives_way(run):
                if not await self._scheduler.wait_to_prefill(run):
                    return None
                self._check()
            lacks = len(prompt) - resident
            if lacks <= 0:
                return resident
            room = await self._scheduler.take_step(run, lacks, self._budget)
            self._check()
            if not whole and (room == lacks or resident + room > dividable):
                return resident
            piece = prompt[: resident + room]
            completion = await self._run(slot_run, piece, resident, {"n_predict": 0})
            while isinstance(await completion.next(), Chunk):
                continue
            completion.close()
            self._scheduler.end_step(run)
            self.learn(completion)
            slot_run.cached_max = min(slot_run.cached_max, completion.cached_tokens)
            resident = len(piece)

    async def _run(
        self,
        slot_run: SlotRun,
        prompt: array.array[int],
        resident: int,
        parameters: dict[str, Json],
        guide: Guide | None = None,
    ) -> LlamaCompletion:
        slot = slot_run.slot
        slot.tokens = prompt[:resident]  # what it holds beyond that is lost from here on
        slot.saved_tokens = min(slot.saved_tokens, resident)
        slot_run.completion = self._make_completion(
            guide, slot.number, prompt, resident, slot_run.cached_max, slot_run.run.shown
        )
        await slot_run.completion.open(parameters)
        return slot_run.completion

    async def _prepare(self, slot_run: SlotRun, prompt: array.array[int], shared_prefix: int) -> int:
        """Assigns the slot to the session and restores its KV. Returns how many leading tokens of `prompt` the slot
        holds afterwards.

        Runs in a task that nobody cancels: the slot stays busy until its files are complete."""
        slot, key, scope = slot_run.slot, slot_run.run.key, slot_run.run.scope
        shared = common_prefix(slot.tokens, prompt)
        if slot.key != key or self._slot_kv.is_branch_worth_saving(slot, shared):
            await self._slot_kv.save(slot)  # nobody's slot, too: it may be on its way out since before it was freed
        resident = 0
        if slot.key is not None:
            alike = shared_prefix + self._turn_opening_tokens  # nothing of anybody's own words
            if slot.is_shared_with(key, scope) or (slot.key.tenant == key.tenant and shared <= alike):
                resident = shared
        self._scheduler.table.assign(slot, key, scope)
        if scope:
            await self._slot_kv.save_near(self._scheduler.table, slot, prompt, resident)
        resident = await self._slot_kv.bring_up(slot, key, prompt, resident)
        if shared_prefix - resident < WORTH_TOKENS or slot.key != key:
            return resident
        if not await self._prefix_cache.lay(slot, key.tenant, prompt[:shared_prefix]):
            return resident
        slot_run.cached_max = shared_prefix
        return shared_prefix
