"""How a turn that has its slot comes to its first token: its KV is brought up, the rest of the prompt computed.

A step of a CPU takes half a second, and llama-server would notice only after the next one that nobody wants an answer
any more: it looks when it has something to say. So there a prompt is sent in pieces of a step each, and whoever is
cancelled does not begin the next. Whoever gives way (`Scheduler.gives_way`) sends pieces on any machine.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from inference.llama.completion import LlamaCompletion
from inference.llama.http import HttpClient
from inference.llama.prefix_cache import WORTH_TOKENS, PrefixCache
from inference.llama.scheduling import EngineRun, Scheduler
from inference.llama.schema_probe import SchemaProbe
from inference.llama.slot_kv import SlotKv
from inference.llama.slots import Slot
from inference.llama.tokenizer import LlamaTokenizer
from inference.llama.vocabulary import ByteFragments
from inference.tokens import common_prefix
from sessions.model.errors import SessileError
from sessions.model.generation import Chunk
from sessions.model.types import INTEGER_MAX, Json

_TRIED_TOKENS: Final = 64
_MEASURED_TOKENS_MIN: Final = 16  # fewer say more about the step than about the rate


class SlotRun:
    """A run of a session, from the moment it has its slot."""

    __slots__ = ("cached_max", "claim", "forgotten", "paused", "preparing", "run", "slot")

    def __init__(self, slot: Slot, claim: EngineRun) -> None:
        self.slot = slot
        self.claim = claim
        self.paused = False  # it makes room, and goes on later
        self.run: LlamaCompletion | None = None
        self.preparing: asyncio.Task[Any] | None = None
        self.cached_max = INTEGER_MAX  # what was there before we computed an opening or tried a schema ahead of the run
        self.forgotten = False  # the session was deleted: nothing of it stays


class SlotPrefill:
    """`begin` once for each turn; the caller gives the slot back afterwards, however it ended."""

    def __init__(
        self,
        scheduler: Scheduler,
        http: HttpClient,
        residency: SlotKv,
        tokenizer: LlamaTokenizer,
        fragments: ByteFragments,
        schemas: SchemaProbe,
        piece_tokens: int,
        *,
        always: bool,
        check: Callable[[], None],
    ) -> None:
        """`always`: all prompts go in pieces. `check`: raises once the engine is gone."""
        self._scheduler = scheduler
        self._residency = residency
        self._http = http
        self._openings = PrefixCache(residency)
        self._tokenizer = tokenizer
        self._fragments = fragments
        self._schemas = schemas
        self._piece_tokens = piece_tokens
        self._always = always
        self._check = check

    async def begin(
        self, turn: SlotRun, prompt: array.array[int], shared_prefix: int, parameters: dict[str, Json]
    ) -> LlamaCompletion | None:
        """Brings the KV up and starts the run; None: it is to make room first."""
        slot, key = turn.slot, turn.claim.key
        turn.preparing = asyncio.create_task(self._prepare(turn, prompt, shared_prefix))
        resident = await asyncio.shield(turn.preparing)
        opening = prompt[:shared_prefix]
        alone = shared_prefix - resident >= WORTH_TOKENS and slot.key == key
        if alone and self._openings.common(key, opening):
            if await self._fill(turn, opening, resident, leave=0) is None:
                return None
            resident = shared_prefix
            turn.preparing = asyncio.create_task(self._openings.keep(slot, key, opening))
            await asyncio.shield(turn.preparing)
        filled = await self._fill(turn, prompt, resident, leave=self._piece_tokens)
        if filled is None:
            return None
        resident = filled
        trial = self._schemas.probe_parameters(parameters)
        if trial is not None:
            run = await self._run(turn, prompt, resident, trial)
            self._schemas.judge(trial["json_schema"], await run.next())
            await run.next()  # its Finish
            run.close()
            turn.cached_max, resident = min(turn.cached_max, run.cached_tokens), len(prompt)
        return await self._run(turn, prompt, resident, parameters)

    async def measure(self) -> None:
        """Computes some tokens that nobody asked for, in a slot that is nobody's yet: the first turns after a start,
        whose sessions lie in the tiers below, need to know what computing takes. Without an answer they do not."""
        for count in (1, min(self._piece_tokens, _TRIED_TOKENS)):  # the first touches all weights, and tells nothing
            run = LlamaCompletion(
                self._http, self._fragments, self._tokenizer.text, 0, array.array("I", [0] * count), 0
            )
            with contextlib.suppress(SessileError):
                await run.open({"n_predict": 0})
                while isinstance(await run.next(), Chunk):
                    continue
                self.learn(run)
            run.close()

    def learn(self, run: LlamaCompletion) -> None:
        """What a run that is over tells of the engine's pace."""
        if run.finished and run.evaluated_tokens >= _MEASURED_TOKENS_MIN:
            self._residency.tiers.cost.prefilled(
                run.cached_tokens, run.cached_tokens + run.evaluated_tokens, run.prefill_s
            )

    async def _fill(self, turn: SlotRun, prompt: array.array[int], resident: int, *, leave: int) -> int | None:
        """Computes what is not `resident` of a prompt, in pieces where it is to go in pieces, until no more than
        `leave` tokens are left. Returns how many are there then; None: the run is to make room first."""
        while True:
            self._check()
            gives_way = self._scheduler.gives_way(turn.claim)
            if gives_way:
                if not await self._scheduler.wait_to_prefill(turn.claim):
                    return None
                self._check()
            in_pieces = gives_way or self._always
            if len(prompt) - resident <= leave or (leave and not in_pieces):
                return resident
            piece = prompt[: resident + self._piece_tokens] if in_pieces else prompt
            run = await self._run(turn, piece, resident, {"n_predict": 0})
            while isinstance(await run.next(), Chunk):
                continue
            run.close()
            self.learn(run)
            turn.cached_max = min(turn.cached_max, run.cached_tokens)
            resident = len(piece)

    async def _run(
        self, turn: SlotRun, prompt: array.array[int], resident: int, parameters: dict[str, Json]
    ) -> LlamaCompletion:
        slot = turn.slot
        slot.tokens = prompt[:resident]  # what it holds beyond that is lost from here on
        slot.saved_tokens = min(slot.saved_tokens, resident)
        turn.run = LlamaCompletion(
            self._http, self._fragments, self._tokenizer.text, slot.number, prompt, resident, turn.cached_max
        )
        await turn.run.open(parameters)
        return turn.run

    async def _prepare(self, turn: SlotRun, prompt: array.array[int], shared_prefix: int) -> int:
        """Makes the slot the session's and restores its KV. Returns how many tokens of `prompt` it holds then.

        Runs in a task that nobody cancels: the slot stays busy until its files are whole."""
        slot, key = turn.slot, turn.claim.key
        shared = common_prefix(slot.tokens, prompt)
        if slot.key != key or self._residency.is_branch_worth_saving(slot, shared):
            await self._residency.save(slot)  # nobody's slot, too: it may be on its way out since before it was freed
        resident = 0
        if slot.key is not None:
            alike = shared_prefix + len(self._tokenizer.turn_opening)  # nothing that anybody said
            if slot.key == key or (slot.key.tenant == key.tenant and shared <= alike):
                resident = shared
        self._scheduler.table.assign(slot, key)
        resident = await self._residency.bring_up(slot, key, prompt, resident)
        if shared_prefix - resident < WORTH_TOKENS or slot.key != key:
            return resident
        if not await self._openings.lay(slot, key.tenant, prompt[:shared_prefix]):
            return resident
        turn.cached_max = shared_prefix
        return shared_prefix
