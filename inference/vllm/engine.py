"""vLLM behind the `Engine` port: sessions share its blocks, and each session's KV follows it through the tiers.

It decides who runs (`ConcurrencyGate`), what a session's blocks are called on the device (a random tag, which is the
cache salt: two sessions share nothing there, and a deleted one's blocks can never be hit again), and what a run may be
restored from (`KvOffload`). vLLM batches, pages and evicts. An opening that sessions of a tenant have in common is
shared through the tiers: kept once in host memory and on disk, copied to the device for each session that begins with
it.

Without the connector (an unknown version of vLLM, a model whose KV is not plain blocks, no room in memory) it serves
all the same and says so: KV then lives on the device alone. It does not know stop strings, filters or the log.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final

import msgspec
from vllm import SamplingParams

from inference.brownout_engine import check_model
from inference.chat_template import BUILT_IN, ChatTemplate
from inference.kv.cost import CostModel
from inference.kv.disk import DiskTier
from inference.kv.envelope import KvIdentity
from inference.kv.redis import RedisTier
from inference.kv.staging import StagingFolder, create_staging_folder
from inference.kv.stats import tier_stats
from inference.kv.tenant_quota import TenantKvQuota
from inference.kv.tiers import Tiers
from inference.tokens import as_tokens, common_prefix
from inference.vllm.async_llm import BUILD, RunEnded, VllmCore
from inference.vllm.block_usage import BlockUsage
from inference.vllm.concurrency_gate import ConcurrencyGate
from inference.vllm.crash_isolation import CrashIsolation
from inference.vllm.kv_fingerprint import compute_kv_fingerprint
from inference.vllm.model_folder import VllmModel, read_vllm_model
from inference.vllm.offload import KvOffload, OffloadPlan
from inference.vllm.options import VllmOptions
from inference.vllm.sampling import HONOURED, prefill_params, sampling_params
from inference.vllm.supervisor import VllmSupervisor
from inference.vllm.tokenizer import VllmTokenizer, read_tokenizer
from inference.vllm.worker_events import Report, WorkerEventListener, WorkerReady, WorkerUnfit, all_ready
from sessions.limits import Forecast, Share
from sessions.model.errors import BadInput, EngineLost, Internal, SessileError, Unavailable
from sessions.model.generation import Chunk, EngineInfo, EngineStats, Finish, GenerationRequest, KVExport, KVPlace
from sessions.model.types import Json, ResponseId, SessionKey, TenantId, Tokens
from sessions.ports import Keys

__all__ = ["VllmEngine", "VllmOptions"]

log = logging.getLogger(__name__)

_WINDOW_UNKNOWN: Final = 8192  # where the model does not say
_CLOSE_S: Final = 5.0  # how long closing may save KV for
_COUNTERS: Final = ("prefilled_tokens", "reused_tokens", "decoded_tokens", "aborts", "deaths")


class _Turn:
    """A run of a session."""

    __slots__ = ("emitted", "key", "name", "plan", "prompt", "started")

    def __init__(self, key: SessionKey, name: str, prompt: array.array[int]) -> None:
        self.key = key
        self.name = name
        self.prompt = prompt
        self.plan: OffloadPlan | None = None
        self.started = False
        self.emitted: array.array[int] = array.array("I")

    @property
    def known(self) -> array.array[int]:
        return self.prompt + self.emitted


class VllmEngine:
    """Implements `Engine`."""

    def __init__(
        self,
        options: VllmOptions,
        keys: Keys | None = None,
        core: VllmCore | None = None,
        *,
        cost: CostModel | None = None,
    ) -> None:
        """`keys`: spilled KV is encrypted under them; None stores it plain, which is for tests. `core`: one that
        several engines use one after another, which is for tests too."""
        self.options = options
        self._keys = keys
        self._cost = cost or CostModel()
        self._core = core or VllmCore(options)
        self._gate = ConcurrencyGate(options.slots, options.waiting_max)
        self._turns: dict[str, _Turn] = {}
        self._resident = BlockUsage(options.block_tokens, self._is_busy)
        self._counters = dict.fromkeys(_COUNTERS, 0.0)
        self.holdings = TenantKvQuota()
        self._probation = CrashIsolation()
        self._revival = VllmSupervisor(
            self._gate, is_dead=lambda: self._core.is_dead, died=self._died, again=self._restart
        )
        # Set by `start`:
        self._model: VllmModel
        self._tokenizer: VllmTokenizer
        self._info: EngineInfo
        self._undo: contextlib.AsyncExitStack | None = None
        self._spill: KvOffload | None = None
        self._ends: tuple[int, ...] = ()
        self._deleted: set[SessionKey] = set()  # while there are no tiers to erase them from

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def tokenizer(self) -> VllmTokenizer:
        return self._tokenizer

    def stats(self) -> EngineStats:
        counters = {**self._counters, "sheds": float(self._gate.num_shed)}
        gauges: dict[str, float] = {}
        if self._spill is not None:
            tiers = self._spill.tiers
            gauges = tier_stats(tiers)
            each = self._spill.block_bytes / self._spill.block_tokens
            gauges |= {
                "device_bytes": self._resident.total_tokens * each,
                "device_bytes_max": self._resident.device_tokens * each,
            }
            for counted in (self._spill.counters, tiers.counters, *(tier.counters for tier in tiers.cold)):
                counters |= {name: float(value) for name, value in counted.items()}
        gone = self._revival.gone
        return EngineStats(
            slots=self.options.slots,
            running=self._gate.running,
            waiting=self._gate.waiting,
            counters=counters,
            gauges=gauges,
            away=None if gone is None else gone.public_message,
        )

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast | None:
        return None  # its own scheduler decides what runs next, and does not say when

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None:
        return

    def place(self, key: SessionKey) -> KVPlace:
        kept = self._spill.tiers.place(key) if self._spill is not None else KVPlace("none", 0)
        resident = self._resident.tokens(key)
        return KVPlace("device", resident) if resident and resident >= kept.tokens else kept

    def held_sessions(self) -> set[SessionKey]:
        kept = self._spill.tiers.held_sessions() if self._spill is not None else set()
        return kept.union(self._resident.sessions)

    # -- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        model = await asyncio.to_thread(read_vllm_model, self.options.model_path, self.options.adapter)
        template = _template(self.options.chat_template, model)
        tokenizer = await asyncio.to_thread(read_tokenizer, model, template)
        window = min(self.options.context_window or 1 << 30, model.context_window or _WINDOW_UNKNOWN)
        model = msgspec.structs.replace(
            model, fingerprint=compute_kv_fingerprint(model, self.options.engine_args, window)
        )
        async with contextlib.AsyncExitStack() as undo:
            self._spill = await self._start_core(undo, model, window)
            self._undo = undo.pop_all()
        ends = {tokenizer.answer_closing[0], tokenizer.token_id(model.token_text("eos_token"))}
        self._ends = tuple(sorted(end for end in ends if end is not None))
        self._model, self._tokenizer = model, tokenizer
        self._info = EngineInfo(
            model=self.options.model_name or model.name,
            build=BUILD,
            model_fingerprint=model.fingerprint,
            context_window=window,
            slots=self.options.slots,
            sampling=HONOURED,
            tool_format="hermes" if tokenizer.renders_tools else "none",
        )
        self._revival.started()

    async def close(self) -> None:
        await self._revival.close()
        undo, self._undo = self._undo, None
        if undo is None:
            return
        await self._core.abort([turn.name for turn in self._turns.values()])
        await undo.aclose()

    async def _start_core(self, undo: contextlib.AsyncExitStack, model: VllmModel, window: int) -> KvOffload | None:
        """Starts vLLM, with its connector where that can be. The tiers are opened last: their identity is the KV's."""
        self._core.adapter = model.adapter
        staging = await self._staging()
        if staging is None:
            undo.push_async_callback(self._core.close)
            await self._core.start(window, None)
            self._resident.device_tokens = self._core.device_tokens
            return None
        undo.push_async_callback(asyncio.to_thread, staging.close)
        reports: asyncio.Queue[WorkerReady | WorkerUnfit] = asyncio.Queue()

        def heard(report: Report) -> None:
            if isinstance(report, WorkerReady | WorkerUnfit):
                reports.put_nowait(report)
            elif self._spill is not None:
                self._spill.heard(report)

        undo.callback(WorkerEventListener(staging.path, heard).close)
        undo.push_async_callback(self._core.close)
        await self._core.start(window, str(staging.path))
        self._resident.device_tokens = self._core.device_tokens
        ready = self._core.kv_shape = self._core.kv_shape or await all_ready(reports)
        if isinstance(ready, str):
            log.warning("this engine runs without spilled KV: %s", ready)
            return None
        if self._core.block_tokens != self.options.block_tokens:
            log.warning(
                "this engine runs without spilled KV: vLLM makes blocks of %d tokens for this model, not of %d. Give"
                ' "block_size": %d in --vllm-args',
                *(self._core.block_tokens, self.options.block_tokens, self._core.block_tokens),
            )
            return None
        layout = f"vllm-blocks-1/{self.options.block_tokens}/{len(ready)} ranks/{ready[0].layout}"
        options, keys = self.options, self._keys
        identity = KvIdentity(BUILD, model.fingerprint, self._core.dtype, layout)
        folder = options.disk_folder
        disk = DiskTier(folder, options.disk_bytes_max, identity, keys) if folder is not None else None
        shared = RedisTier(options.redis_url, options.redis_bytes_max, identity, keys) if options.redis_url else None
        host_bytes_max = staging.bound_bytes(options.host_bytes_max)
        tiers = Tiers(
            identity, staging.path, host_bytes_max, disk, shared=shared, cost=self._cost, holdings=self.holdings
        )
        await tiers.open()
        spill = KvOffload(
            tiers,
            block_tokens=self.options.block_tokens,
            block_bytes=sum(report.block_bytes for report in ready),
            ranks=len(ready),
            answer_tokens=self.options.answer_tokens_saved,
            saves=self.options.write_through,
        )
        self._resident.join(self.holdings, spill.block_bytes / spill.block_tokens, lambda key: tiers.place(key).tokens)
        undo.push_async_callback(tiers.close, _CLOSE_S)
        undo.push_async_callback(spill.stop)
        return spill

    def _died(self) -> None:
        self._counters["deaths"] += 1
        self._probation.suspect(turn.key for turn in self._turns.values())

    async def _restart(self, wanted: Callable[[], bool]) -> None:
        """What was saved of sessions and has reached the disk is found again there."""
        await self._leave_core()
        if wanted():
            log.error("vLLM has died: it is started again")
            async with contextlib.AsyncExitStack() as undo:
                self._spill = await self._start_core(undo, self._model, self._info.context_window)
                self._undo = undo.pop_all()
        await self._erase_deleted()

    async def _erase_deleted(self) -> None:
        while self._deleted and self._spill is not None:
            try:
                await self._spill.tiers.erase(self._deleted.pop())
            except Exception:  # no reason to keep vLLM from whoever is there
                log.exception("KV of a session that was deleted meanwhile is still there, until its key is destroyed")

    async def _leave_core(self) -> None:
        """Closes all that belongs to a vLLM that has died; its runs have ended, or are about to."""
        undo, self._undo = self._undo, None
        for turn in self._turns.values():
            turn.started, turn.plan = False, None  # a plan ends with the spill that made it
        if self._spill is not None:
            self._spill.lose()
        if undo is not None:
            await undo.aclose()
        self._spill, self._resident = None, BlockUsage(self.options.block_tokens, self._is_busy)

    async def _staging(self) -> StagingFolder | None:
        if not self.options.spill:
            return None
        if not self._core.is_known_version:
            log.warning("this engine runs without spilled KV: the connector was never tried with %s", BUILD)
            return None
        return await asyncio.to_thread(create_staging_folder, self.options.staging_folder)

    # -- generating ------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        prompt = as_tokens(request.prompt)
        self._check(prompt, request.max_tokens)
        check_model(self._info, request.model)
        max_tokens = min(request.max_tokens, self._info.context_window - len(prompt))
        params = sampling_params(
            request,
            max_tokens=max_tokens,
            vocabulary_size=self._tokenizer.vocabulary_size,
            end_tokens=self._ends,
            transfer={},
            special_tags=self._tokenizer.has_special_tags,
        )
        async with self._probation.of(request.key) as passed:
            await self._gate.acquire(request.priority)
            if self._spill is not None:
                self._spill.tiers.turn(request.key, len(prompt))
            turn = self._enter(request.key, prompt)
            run = self._run(turn, params, request.shared_prefix, request.priority)
            async with contextlib.aclosing(self._output(turn, run)) as told:
                async for item in told:
                    passed()
                    yield item

    async def _output(
        self, turn: _Turn, items: AsyncGenerator[Chunk | RunEnded, None]
    ) -> AsyncGenerator[Chunk | Finish, None]:
        """What a run says to whoever asked for it."""
        cached = 0
        reason = "abort"
        try:
            async with contextlib.aclosing(items) as run:
                async for item in run:
                    cached = self._cached(turn, item.cached_tokens)
                    if isinstance(item, RunEnded):
                        reason = item.reason
                    else:
                        turn.emitted.extend(item.tokens)
                        if cached != item.cached_tokens:
                            item = Chunk(item.tokens, item.text, item.logprobs, cached_tokens=cached)
                        yield item
        finally:
            await self._leave(turn, cached, finished=reason != "abort")
        if reason == "abort":
            self._revival.check()
            raise Unavailable("engine_unavailable", "The model's engine cut an answer short.")
        yield Finish("stop" if reason == "stop" else "length", len(turn.prompt), cached)

    async def warm(self, key: SessionKey, prompt: Tokens) -> None:
        tokens = as_tokens(prompt)
        idle = self._gate.running < self._gate.slots and not self._gate.waiting
        free = self._revival.gone is None and key not in self._probation
        if not free or not 0 < len(tokens) < self._info.context_window:
            return
        if not idle:
            if self._spill is not None and not self._resident.tokens(key):
                await self._spill.tiers.prefetch(key)
            return
        await self._gate.acquire(0)
        turn = self._enter(key, tokens)
        cached = 0
        try:
            async with contextlib.aclosing(self._run(turn, prefill_params({}), 0, 0)) as run:
                async for item in run:
                    cached = self._cached(turn, item.cached_tokens)
        except SessileError:
            return  # a hint: the turn itself will be told
        finally:
            await self._leave(turn, cached, finished=True)

    async def release(self, key: SessionKey) -> None:
        self._resident.forget(key)
        self._probation.forget(key)
        for turn in self._turns.values():
            if turn.key == key:
                turn.started = False  # nothing of it counts as resident
        if self._spill is not None:
            self._spill.forget(key)
            await self._spill.tiers.erase(key)
        elif self._revival.beginning:
            self._deleted.add(key)

    async def park(self, key: SessionKey) -> None:
        self._resident.park(key)
        if self._spill is not None:
            self._spill.tiers.park(key)

    async def export_kv(self, key: SessionKey, ledger: array.array[int]) -> KVExport | None:
        spill = self._spill
        if spill is None:
            return None
        await spill.settled(key)  # vLLM may die meanwhile, and leave none
        turns = [t for t in self._turns.values() if t.key == key and common_prefix(t.prompt, ledger) == len(t.prompt)]
        turn = max(turns, key=lambda turn: common_prefix(turn.known, ledger), default=None)
        if turn is not None and turn.plan is not None:
            await spill.cut(turn.plan, turn.known)
        return await spill.tiers.export(key, ledger)

    async def import_kv(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        return await self._spill.tiers.import_(key, chunks) if self._spill is not None else 0

    # -- inside ------------------------------------------------------------------------------------------

    def _check(self, prompt: array.array[int], max_tokens: int) -> None:
        if (refused := self._revival.refuses) is not None:
            raise refused
        if not prompt:
            raise BadInput("empty_prompt", "There is nothing to answer: the prompt has no tokens.")
        if len(prompt) + bool(max_tokens) > self._info.context_window:
            raise BadInput(
                "context_length_exceeded",
                f"The prompt has {len(prompt)} tokens; this model takes {self._info.context_window} together with"
                " the answer.",
            )

    def _enter(self, key: SessionKey, prompt: array.array[int]) -> _Turn:
        turn = _Turn(key, secrets.token_hex(8), prompt)
        self._turns[turn.name] = turn
        return turn

    async def _run(
        self, turn: _Turn, params: SamplingParams, shared_prefix: int, priority: int
    ) -> AsyncGenerator[Chunk | RunEnded, None]:
        """`_leave` comes next, also when this fails."""
        self._revival.check()
        tag = self._resident.tag(turn.key)
        told: dict[str, Any] = {}
        if self._spill is not None:
            turn.plan = await self._spill.plan(
                turn.name,
                turn.key,
                turn.prompt,
                shared_prefix,
                params.max_tokens or 1,
                resident=self._resident.tokens(turn.key),
            )
            self._revival.check()
            told = self._transfer(turn.plan, tag)
            params.extra_args = {"kv_transfer_params": told}
        turn.started = self._resident.stays(turn.key, tag)
        async with contextlib.aclosing(self._core.run(turn.name, turn.prompt.tolist(), tag, params, priority)) as run:
            try:
                async for item in run:
                    if turn.plan is not None and self._spill is not None:
                        await self._spill.on_output(turn.plan, item.cached_tokens, len(turn.prompt))
                    yield item
            except (BadInput, Internal):  # vLLM refused it: the connector never hears of it and closes no file
                plan, turn.plan = turn.plan, None
                if plan is not None and self._spill is not None:
                    self._resident.return_notices(told["forget"], told["retire"])
                    await self._spill.abandon(plan)
                raise
            except EngineLost:
                if self._core.dead:
                    self._revival.dead()
                raise

    def _transfer(self, plan: OffloadPlan, tag: str) -> dict[str, Json]:
        assert self._spill is not None
        return self._spill.transfer(plan, tag, *self._resident.take_notices(tag))

    def _cached(self, turn: _Turn, told: int) -> int:
        """A load that failed was counted before it did."""
        if turn.plan is not None and turn.plan.bad_reason:
            return min(told, turn.plan.resident_tokens)
        return told

    async def _leave(self, turn: _Turn, cached: int, *, finished: bool) -> None:
        """Gives the slot back at once; the run's KV finds its way in the background."""
        del self._turns[turn.name]
        self._gate.release()
        if not finished:
            self._counters["aborts"] += 1
        known = turn.known
        if finished or turn.emitted:
            self._counters["reused_tokens"] += cached
            self._counters["prefilled_tokens"] += len(turn.prompt) - cached
            self._counters["decoded_tokens"] += len(turn.emitted)
            if turn.started:
                self._resident.note(turn.key, max(0, len(known) - bool(turn.emitted)))
        if turn.plan is not None and self._spill is not None:
            self._spill.settle(turn.plan, known)

    def _is_busy(self, key: SessionKey) -> bool:
        return (self._spill is not None and self._spill.is_settling(key)) or any(
            turn.key == key for turn in self._turns.values()
        )


def _template(wanted: str | None, model: VllmModel) -> ChatTemplate:
    source = model.chat_template if wanted is None else BUILT_IN.get(wanted, wanted)
    if source is None:
        raise BadInput(
            "bad_chat_template",
            "The model brings no chat template. Start with --chat-template chatml, or give one.",
            param="chat_template",
        )
    settings = model.tokenizer_config
    added = settings.get("added_tokens_decoder", {})
    specials = [entry["content"] for entry in added.values() if isinstance(entry, dict) and entry.get("special")]
    extra = [text for text in (model.token_text("bos_token"), model.token_text("eos_token")) if text]
    return ChatTemplate(
        source,
        bos=model.token_text("bos_token"),
        eos=model.token_text("eos_token"),
        specials=[*specials, *extra],
    )
