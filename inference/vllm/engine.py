"""Runs vLLM behind the `Engine` port: sessions share its blocks, and each session's KV follows it through the tiers.

It decides who runs (`ConcurrencyGate`), what a session's blocks are called on the device (a random tag, which is the
cache salt: a deleted session's blocks can never be hit again), and what a run may be restored from (`KvOffload`). vLLM
batches, pages and evicts. An opening that sessions of a tenant have in common lies on the device once, under a tag of
its own, and once in the tiers; nothing else of two sessions is shared.

Without the connector (an unknown version of vLLM, a model whose KV is not plain blocks, no room in memory) it serves
all the same and says so: KV then lives on the device alone. It does not know stop strings, filters or the log.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, MutableMapping, Sequence
from typing import Any, Final

import msgspec
import structlog
from vllm import SamplingParams

from inference.concurrency_gate import ConcurrencyGate, GatedRun
from inference.continuation import continuation_of
from inference.forecast import LoadForecast
from inference.kv.catalog import make_catalog
from inference.kv.cost import CostModel
from inference.kv.envelope import KvIdentity
from inference.kv.staging import StagingFolder, create_staging_folder, warn_where_small
from inference.kv.tenant_quota import KvHoldings, TenantKvQuota
from inference.kv.tiers import Tiers
from inference.models.memory import check_window
from inference.request_checks import check_model, check_prompt, trial_request
from inference.sampling import HONOURED
from inference.standby import Standby
from inference.tokens import as_tokens, common_prefix, names_images
from inference.vllm.async_llm import BUILD, RunEnded, VllmCore
from inference.vllm.block_usage import BlockUsage
from inference.vllm.crash_isolation import CrashIsolation
from inference.vllm.images import SeenPrompt, VllmImages
from inference.vllm.kv_fingerprint import compute_kv_fingerprint
from inference.vllm.model_folder import VllmModel, read_vllm_model
from inference.vllm.offload import KvOffload, OffloadPlan
from inference.vllm.options import VllmOptions
from inference.vllm.run import VllmRun, can_pause, is_whole
from inference.vllm.sampling import prefill_params, sampling_params
from inference.vllm.supervisor import VllmSupervisor
from inference.vllm.tokenizer import VllmTokenizer, folder_template, read_tokenizer
from inference.vllm.worker_events import Report, WorkerEventListener, WorkerReady, WorkerUnfit
from inference.warming import Warmings
from sessions.limits import Forecast, Share
from sessions.model.errors import BadInput, EngineLost, Internal, SessileError, Unavailable
from sessions.model.generation import (
    BACKGROUND_PRIORITY,
    Chunk,
    EngineInfo,
    EngineStats,
    Finish,
    GenerationRequest,
    KVExport,
    KVPlace,
    TokenScore,
)
from sessions.model.types import OPENINGS, Json, ResponseId, Sampling, SessionKey, TenantId, Tokens
from sessions.ports import Keys

__all__ = ["VllmEngine", "VllmOptions"]

log = structlog.get_logger(__name__)

_WINDOW_UNKNOWN: Final = 8192  # where the model does not say
_CLOSE_S: Final = 5.0  # how many seconds closing may spend on saving KV
_COUNTERS: Final = ("prefilled_tokens", "reused_tokens", "decoded_tokens", "aborts", "deaths")


class _OtherKv(Exception):
    """Raised if a restarted vLLM has KV of another shape than the tiers, or cannot move KV."""


class VllmEngine:
    """An engine that runs vLLM in processes of its own. Implements `Engine`; its attributes are the parts that a run
    passes, and what is known of sessions between runs."""

    def __init__(
        self,
        options: VllmOptions,
        keys: Keys | None = None,
        core: VllmCore | None = None,
        *,
        cost: CostModel | None = None,
        environment: MutableMapping[str, str] | None = None,
    ) -> None:
        """KV that leaves the device is encrypted under `keys`; None, for tests, stores it plain. `core`: a vLLM for
        several engines one after another, for tests too. `environment` is handed to `VllmCore`."""
        self.options = options
        self._keys = keys
        self._cost = cost or CostModel()
        self._core = core or VllmCore(options, environment)
        self._gate = ConcurrencyGate(options.slots, options.waiting_max)
        self._load = LoadForecast(self._gate.queue, time.monotonic)
        self._runs: dict[str, VllmRun] = {}
        self._block_usage = self._new_block_usage()
        self._counters = dict.fromkeys(_COUNTERS, 0.0)
        self.holdings = KvHoldings(
            lambda tenant: 0 if self._offload is None else self._offload.tiers.quota.bytes_of(tenant)
        )
        self._isolation = CrashIsolation()
        self._standby = Standby(lambda: VllmCore(options, environment), self._start_alike) if options.standby else None
        self._taking_over = False
        self._supervisor = VllmSupervisor(
            self._gate, is_dead=lambda: self._core.is_dead, on_death=self._on_death, restart=self._restart
        )
        # Set by `start`:
        self._model: VllmModel
        self._tokenizer: VllmTokenizer
        self._info: EngineInfo
        self._undo: contextlib.AsyncExitStack | None = None
        self._offload: KvOffload | None = None
        self._images: VllmImages | None = None  # None for a model that sees none
        self._folder: str | None = None  # the folder that the connector writes to
        self._reports: asyncio.Queue[WorkerReady | WorkerUnfit] = asyncio.Queue()
        self._ready: list[WorkerReady] = []  # the reports of the first vLLM's workers
        self._starting = asyncio.Lock()  # one at a time: nobody else's workers report
        self._ends: tuple[int, ...] = ()
        self._score_numbers = itertools.count(1)
        self._warmings = Warmings()
        self._deleted: set[SessionKey] = set()  # while there are no tiers to erase them from

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def tokenizer(self) -> VllmTokenizer:
        return self._tokenizer

    def stats(self) -> EngineStats:
        counters = {
            **self._counters,
            "sheds": float(self._gate.num_shed),
            "preemptions": float(self._gate.num_preempted),
        }
        gauges: dict[str, float] = {}
        if self._offload is not None:
            tiers = self._offload.tiers
            gauges = tiers.stats()
            each = self._offload.block_bytes / self._offload.block_tokens
            gauges |= {
                "device_bytes": self._block_usage.total_tokens * each,
                "device_bytes_max": self._block_usage.device_tokens * each,
            }
            for counted in (self._offload.counters, tiers.counters, *(tier.counters for tier in tiers.cold)):
                counters |= {name: float(value) for name, value in counted.items()}
        unavailable = self._supervisor.unavailable
        return EngineStats(
            slots=self.options.slots,
            running=self._gate.running,
            waiting=self._gate.waiting,
            counters=counters,
            gauges=gauges,
            away=None if unavailable is None or self._taking_over else unavailable.public_message,
        )

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast:
        return self._load.forecast(key.tenant, share, new_tokens, room=True)  # vLLM finds the blocks for it

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None:
        self._load.expect(response_id, tenant)

    def place(self, key: SessionKey) -> KVPlace:
        kept = self._offload.tiers.catalog.place(key) if self._offload is not None else KVPlace("none", 0)
        resident = self._block_usage.tokens(key)
        return KVPlace("device", resident) if resident and resident >= kept.tokens else kept

    def held_sessions(self) -> set[SessionKey]:
        kept = self._offload.tiers.catalog.held_sessions() if self._offload is not None else set()
        return kept.union(self._block_usage.sessions)

    # -- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        model = await asyncio.to_thread(read_vllm_model, self.options.model_path, self.options.adapter)
        template = folder_template(self.options.chat_template, model)
        template.announce()
        tokenizer = await asyncio.to_thread(read_tokenizer, model, template)
        check_window(self.options.model_path.name, self.options.context_window, model.context_window)
        window = self.options.context_window or model.context_window or _WINDOW_UNKNOWN
        model = msgspec.structs.replace(
            model, fingerprint=compute_kv_fingerprint(model, self.options.all_engine_args, window)
        )
        async with contextlib.AsyncExitStack() as undo:
            self._offload = await self._start_core(undo, model, window)
            self._images = await asyncio.to_thread(self._core.make_images, model)
            if self._images is not None:
                tokenizer = await asyncio.to_thread(read_tokenizer, model, template, self._images)
            self._undo = undo.pop_all()
        await tokenizer.measure()
        ends = {*tokenizer.answer_end, tokenizer.token_id(model.token_text("eos_token"))}
        self._ends = tuple(sorted(end for end in ends if end is not None))
        self._model, self._tokenizer = model, tokenizer
        self._info = EngineInfo(
            model=self.options.model_name or model.name,
            build=BUILD,
            model_fingerprint=model.fingerprint,
            context_window=window,
            slots=self.options.slots,
            sampling=HONOURED,
            tool_format="hermes",
            call_format=template.call_format(),
            continues_formats=self._core.has_own_scheduler,
            kv_block_tokens=self.options.block_tokens,
            aliases=self.options.model_aliases,
            foldings=template.foldings,
            thoughts=template.thoughts(),
            images=self._images is not None,
        )
        self._supervisor.started()
        if self._standby is not None:
            self._standby.begin()

    async def close(self) -> None:
        await self._supervisor.close()
        if self._standby is not None:
            await self._standby.close()
        if self._images is not None:
            self._images.close()
        undo, self._undo = self._undo, None
        if undo is None:
            return
        await self._core.abort([run.name for run in self._runs.values()])
        await undo.aclose()

    async def _start_core(self, undo: contextlib.AsyncExitStack, model: VllmModel, window: int) -> KvOffload | None:
        """Starts vLLM, with its connector if possible, and then opens the tiers, whose identity depends on the KV of
        this vLLM. Returns None if KV cannot be moved, so that there are no tiers."""
        staging = await self._staging()
        self._folder = None if staging is None else str(staging.path)
        if staging is not None:
            undo.push_async_callback(asyncio.to_thread, staging.close)
            undo.callback(WorkerEventListener(staging.path, self._on_report).close)
        undo.push_async_callback(self._close_core)
        await self._core.start(window, self._folder, model.adapter)
        self._block_usage = self._new_block_usage(device_tokens=self._core.device_tokens)
        if staging is None:
            return None
        ready = await self._core.wait_workers(self._reports)
        if isinstance(ready, str):
            log.warning("kv_spill_disabled", reason=ready)
            return None
        if self._core.block_tokens != self.options.block_tokens:
            log.warning(
                "kv_spill_disabled",
                reason=f"vLLM makes blocks of {self._core.block_tokens} tokens, not of {self.options.block_tokens}",
                advice=f'give "block_size": {self._core.block_tokens} in --vllm-args',
            )
            return None
        self._ready = ready
        layout = f"vllm-blocks-1/{self.options.block_tokens}/{len(ready)} ranks/{ready[0].layout}"
        identity = KvIdentity(BUILD, model.fingerprint, self._core.dtype, layout)
        catalog = make_catalog(identity, self.options, staging, self._keys, self._cost, time.monotonic)
        block_bytes = sum(report.block_bytes for report in ready)
        self._block_usage = self._new_block_usage(
            device_tokens=self._core.device_tokens,
            token_bytes=block_bytes / self.options.block_tokens,
            covered=lambda key: catalog.place(key).tokens,
        )
        quota = TenantKvQuota(catalog, self._block_usage, lambda tenant: self.holdings.ceiling(tenant))
        tiers = Tiers(identity, catalog, quota)
        await tiers.open()
        if self.options.write_through:  # a snapshot is there beside the longer one that takes its place
            warn_where_small(tiers.host.bytes_max, 2 * -(-window // self.options.block_tokens) * block_bytes)
        offload = KvOffload(
            tiers,
            block_tokens=self.options.block_tokens,
            block_bytes=block_bytes,
            ranks=len(ready),
            answer_tokens=self.options.answer_tokens_saved,
            saves=self.options.write_through,
        )
        undo.push_async_callback(tiers.close, _CLOSE_S)
        undo.push_async_callback(offload.stop)
        return offload

    def _on_report(self, report: Report) -> None:
        if isinstance(report, WorkerReady | WorkerUnfit):
            self._reports.put_nowait(report)
        elif self._offload is not None:
            self._offload.on_report(report)

    async def _close_core(self) -> None:
        await self._core.close()  # whichever it is then

    # -- when vLLM dies ------------------------------------------------------------------------------------------------

    def _on_death(self) -> None:
        self._counters["deaths"] += 1
        self._isolation.suspect(run.key for run in self._runs.values())
        self._taking_over = self._standby is not None and self._standby.is_ready

    async def _restart(self, is_needed: Callable[[], bool]) -> None:
        """Cleans up after a vLLM that has died, keeps what it had written of its runs' KV, and, while `is_needed`
        returns true, starts vLLM again with the same tiers. The dead vLLM writes nothing any more when its files are
        read."""
        try:
            await self._core.reap()
            await self._adopt_runs()
            if is_needed():
                log.error("engine_died", engine="vllm")
                await self._begin_again()
        finally:
            self._taking_over = False
        await self._erase_deleted()

    async def _adopt_runs(self) -> None:
        """Makes snapshots of the KV that the dead vLLM had written during its last runs, for the sessions of those
        runs."""
        self._block_usage.clear(0)
        for run in self._runs.values():
            run.started, run.lost = False, True
        if self._offload is None:
            return
        self._offload.lose()
        for run in self._runs.values():
            plan, run.plan = run.plan, None
            if plan is not None:
                self._offload.settle(plan, run.kept)
        await self._offload.completed()

    async def _begin_again(self) -> None:
        standby = None if self._standby is None else await self._standby.take()
        if standby is not None and standby.connector_folder != self._folder:
            await standby.close()  # it reports to whom there is no more
            standby = None
        self._taking_over = standby is not None
        if standby is not None:
            self._core = standby
            log.info("standby_took_over", engine="vllm")
        else:
            try:
                await self._start_alike(self._core)
            except _OtherKv as exc:
                log.warning("kv_tiers_reopened", reason=str(exc))
                await self._start_anew()
        self._block_usage.clear(self._core.device_tokens)

    async def _start_alike(self, core: VllmCore) -> None:
        """Starts another vLLM with the tiers that are open. Raises the errors of a start, and _OtherKv."""
        async with self._starting:
            while not self._reports.empty():
                self._reports.get_nowait()
            await core.start(self._info.context_window, self._folder, self._model.adapter)
            if self._offload is None:
                return
            ready = await core.wait_workers(self._reports)
            if ready != self._ready:
                raise _OtherKv(ready if isinstance(ready, str) else "its blocks are others than before")

    async def _start_anew(self) -> None:
        """Starts vLLM and opens the tiers again; of the snapshots, those on disk are found again."""
        before, self._undo = self._undo, None
        if before is not None:
            await before.aclose()
        self._offload = None
        async with self._starting, contextlib.AsyncExitStack() as undo:
            self._offload = await self._start_core(undo, self._model, self._info.context_window)
            self._undo = undo.pop_all()

    async def _erase_deleted(self) -> None:
        while self._deleted and self._offload is not None:
            try:
                await self._offload.tiers.erase(self._deleted.pop())
            except Exception:  # no reason to keep vLLM from whoever is there
                log.exception("kv_erasure_failed")

    async def _staging(self) -> StagingFolder | None:
        if not self.options.spill:
            return None
        if not self._core.is_known_version:
            log.warning("kv_spill_disabled", reason=f"the connector was never tried with {BUILD}")
            return None
        return await asyncio.to_thread(create_staging_folder, self.options.staging_folder)

    # -- generating ------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        self._load.arrived(request.response_id)
        prompt = as_tokens(request.prompt)
        if (refused := self._supervisor.refusal) is not None:
            raise refused
        check_prompt(len(prompt), request.max_tokens, self._info.context_window)
        check_model(self._info, request.model)
        self._params(request)  # what cannot be honoured is refused before it waits
        await self._warmings.settled(request.key, prompt)  # what it brings up is this run's
        answer = self._answer(request, prompt)
        async with self._isolation.of(request.key) as passed, contextlib.aclosing(answer) as items:
            async for item in items:
                passed()
                yield item

    async def _answer(
        self, request: GenerationRequest, prompt: array.array[int]
    ) -> AsyncGenerator[Chunk | Finish, None]:
        """Yields a whole answer from as many runs as it takes: a run that is to make room stops behind a token, and a
        later run goes on from its KV."""
        turn = GatedRun(request.key.tenant, request.priority, request.weight, len(prompt), pauses=can_pause(request))
        given, cached, decoded = len(prompt), -1, 0
        await self._gate.acquire(turn)
        try:
            if self._offload is not None and request.priority < BACKGROUND_PRIORITY:  # else its user has not come back
                self._offload.tiers.returns.on_turn(request.key, len(prompt))
            self._load.started(turn.claim, len(prompt) - min(len(prompt), self.place(request.key).tokens))
            seen = await self._seen(request, prompt)
            prompt = seen.tokens
            while True:
                run = self._enter(request.key, prompt, request.cache_scope, seen)
                outputs = self._stream(run, self._params(request), request.shared_prefix, request.priority)
                async with contextlib.aclosing(self._output(run, outputs)) as items:
                    async for item in items:
                        if isinstance(item, Finish):
                            yield Finish(item.reason, given, item.cached_tokens if cached < 0 else cached)
                            return
                        if cached < 0:
                            cached = item.cached_tokens
                            self._load.on_output(turn.claim)
                        elif item.cached_tokens != cached:  # of a run that goes on: reported once, of its beginning
                            item = Chunk(item.tokens, item.text, item.logprobs, cached_tokens=cached)
                        decoded += len(item.tokens)
                        self._gate.on_output(turn, len(item.tokens))
                        yield item
                        if turn.yields and is_whole(item) and len(run.emitted) < request.max_tokens:
                            run.paused = True
                            break
                self._load.paused(turn.claim)
                self._gate.give_way(turn)
                await self._gate.acquire(turn)
                prompt, request = run.known, continuation_of(request, run.emitted)
        finally:
            self._load.ended(turn.claim, decoded)
            self._gate.leave(turn)

    async def _seen(self, request: GenerationRequest, prompt: array.array[int]) -> SeenPrompt:
        if self._images is None:
            return SeenPrompt(prompt, (), -1)
        return await self._images.show(request.key, prompt, request.images)

    def check_sampling(self, sampling: Sampling) -> None:
        self._params(trial_request(sampling))

    async def score(self, prompt: Tokens, top: int) -> list[TokenScore]:
        if (refused := self._supervisor.refusal) is not None:
            raise refused
        # One token is decoded behind the prompt, for which vLLM wants room.
        check_prompt(len(prompt), 1, self._info.context_window)
        return await self._core.score(f"score-{next(self._score_numbers)}", list(prompt), top)

    def _params(self, request: GenerationRequest) -> SamplingParams:
        return sampling_params(
            request,
            max_tokens=min(request.max_tokens, self._info.context_window - len(request.prompt)),
            vocabulary_size=self._tokenizer.vocabulary_size,
            end_tokens=self._ends,
            transfer={},
            special_tags=self._tokenizer.shows_specials,
            replays_grammars=self._core.has_own_scheduler,
        )

    async def _output(
        self, run: VllmRun, items: AsyncGenerator[Chunk | RunEnded, None]
    ) -> AsyncGenerator[Chunk | Finish, None]:
        """Yields the chunks of a run and, at its end, a Finish. Raises EngineLost or Unavailable if the run was cut
        short."""
        cached = 0
        reason = "abort"
        try:
            async with contextlib.aclosing(items) as outputs:
                async for item in outputs:
                    cached = self._cached(run, item.cached_tokens)
                    if isinstance(item, RunEnded):
                        reason = item.reason
                    else:
                        run.emitted.extend(item.tokens)
                        if cached != item.cached_tokens:
                            item = Chunk(item.tokens, item.text, item.logprobs, cached_tokens=cached)
                        yield item
        finally:
            await self._leave(run, cached, finished=reason != "abort")
        if reason == "abort":
            self._check(run)
            raise Unavailable("engine_unavailable", "The model's engine cut an answer short.")
        yield Finish("stop" if reason == "stop" else "length", len(run.prompt), cached)

    async def warm(self, key: SessionKey, prompt: Tokens, *, background: bool = False) -> bool:
        tokens = as_tokens(prompt)
        idle = self._gate.running < self._gate.slots and not self._gate.waiting
        free = self._supervisor.unavailable is None and key not in self._isolation
        if not free or not 0 < len(tokens) < self._info.context_window or key in self._warmings:
            return False
        if self._images is not None and names_images(tokens):
            return False
        if not idle or self._displaces_sooner(key):
            if self._offload is not None and not self._block_usage.tokens(key):
                await self._offload.tiers.prefetch(key)
            return False
        if background:  # a turn of the session begins beside it
            return await self._warm(key, tokens, BACKGROUND_PRIORITY)
        with self._warmings.of(key, tokens):
            return await self._warm(key, tokens, 0)

    async def _warm(self, key: SessionKey, tokens: array.array[int], priority: int) -> bool:
        turn = GatedRun(key.tenant, priority, 1.0, len(tokens), pauses=False)
        await self._gate.acquire(turn)
        run = self._enter(key, tokens)
        cached = 0
        try:
            stream = self._stream(run, prefill_params({}), 0, priority, ahead=True)
            async with contextlib.aclosing(stream) as outputs:
                async for item in outputs:
                    cached = self._cached(run, item.cached_tokens)
        except SessileError:
            return False  # a hint: the turn itself will fail
        finally:
            try:
                await self._leave(run, cached, finished=True)
            finally:
                self._gate.leave(turn)
        return True

    def tools_called(self, key: SessionKey, tools: Sequence[str]) -> float | None:
        offload = self._offload
        if offload is None:
            return None
        num_bytes = self._block_usage.tokens(key) // self.options.block_tokens * offload.block_bytes
        after_s = offload.tiers.on_tools(key, tools, num_bytes)
        oldest = self._block_usage.first_to_go(key)
        if oldest is not None and self._index(oldest) > self._index(key):
            self._block_usage.demote(key)  # it is in host memory, or on its way there
            offload.counters["demotions"] += 1
        return after_s

    def _displaces_sooner(self, key: SessionKey) -> bool:
        """Returns whether running the session would evict the KV of a session that waits for its tools and is expected
        to return sooner."""
        oldest = self._block_usage.first_to_go(key)
        if self._offload is None or oldest is None or not self._offload.tiers.returns.waits_for_tools(oldest):
            return False
        return self._index(oldest) >= self._index(key)

    def _index(self, key: SessionKey) -> float:
        assert self._offload is not None
        return self._offload.tiers.returns.index(key, 0.0, self._block_usage.tokens(key))

    async def release(self, key: SessionKey) -> None:
        self._block_usage.forget(key)
        if self._images is not None:
            self._images.forget(key)
        if key.session == OPENINGS:
            self._block_usage.forget_openings(key.tenant)
        self._isolation.forget(key)
        for run in self._runs.values():
            if run.key == key or (key.session == OPENINGS and run.key.tenant == key.tenant):
                run.started = False  # nothing of it counts as resident
        if self._offload is not None:
            self._offload.forget(key)
            await self._offload.tiers.erase(key)
        elif self._supervisor.restarting:
            self._deleted.add(key)

    async def park(self, key: SessionKey) -> None:
        self._block_usage.park(key)
        if self._offload is not None:
            self._offload.tiers.park(key)

    async def export_kv(self, key: SessionKey, ledger: array.array[int]) -> KVExport | None:
        offload = self._offload
        if offload is None:
            return None
        await offload.settled(key)  # vLLM may die meanwhile, and leave none
        runs = [r for r in self._runs.values() if r.key == key and common_prefix(r.prompt, ledger) == len(r.prompt)]
        run = max(runs, key=lambda run: common_prefix(run.known, ledger), default=None)
        if run is not None and run.plan is not None:
            await offload.cut(run.plan, run.kept)
        return await offload.tiers.export(key, ledger)

    async def import_kv(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        return await self._offload.tiers.import_(key, chunks) if self._offload is not None else 0

    # -- inside ------------------------------------------------------------------------------------------

    def _enter(
        self, key: SessionKey, prompt: array.array[int], scope: bytes = b"", seen: SeenPrompt | None = None
    ) -> VllmRun:
        images, named = (seen.images, seen.named) if seen is not None else ((), -1)
        run = VllmRun(key, secrets.token_hex(8), prompt, scope, images, named)
        self._runs[run.name] = run
        return run

    async def _stream(
        self, run: VllmRun, params: SamplingParams, shared_prefix: int, priority: int, *, ahead: bool = False
    ) -> AsyncGenerator[Chunk | RunEnded, None]:
        """Yields a run's output. The caller must call `_leave` afterwards, also if this raises."""
        self._check(run)
        tag = self._block_usage.tag(run.key)
        transfer: dict[str, Any] = {}
        if self._offload is not None:
            opening, opening_blocks = "", 0
            if self._core.has_own_scheduler:
                opening, opening_blocks = self._block_usage.share(run.key, run.prompt, shared_prefix)
            run.plan = await self._offload.plan(
                run.name,
                run.key,
                run.kept,
                shared_prefix,
                params.max_tokens or 1,
                resident=self._block_usage.resident(run.key),
                scope=run.scope,
                ahead=ahead,
            )
            self._check(run)
            transfer = self._transfer(run.plan, tag) | {"opening": opening, "opening_blocks": opening_blocks}
            params.extra_args = {**(params.extra_args or {}), "kv_transfer_params": transfer}
        run.started = self._block_usage.stays(run.key, tag)
        core = self._core
        stream = core.run(run.name, run.prompt.tolist(), tag, params, priority, run.images)
        async with contextlib.aclosing(stream) as outputs:
            try:
                async for item in outputs:
                    if run.plan is not None and self._offload is not None:
                        await self._offload.on_output(run.plan, item.cached_tokens, len(run.prompt))
                    yield item
            except (BadInput, Internal):  # vLLM refused it: the connector never hears of it and closes no file
                plan, run.plan = run.plan, None
                if plan is not None and self._offload is not None:
                    self._block_usage.return_notices(transfer["forget"], transfer["retire"])
                    await self._offload.abandon(plan)
                raise
            except EngineLost:
                if core.dead and core is self._core:
                    self._supervisor.mark_dead()
                raise

    def _check(self, run: VllmRun) -> None:
        """Raises EngineLost if the vLLM on which the run began has died, or the error with which all turns are refused
        at present."""
        self._supervisor.check()
        if run.lost:
            raise EngineLost("engine_lost", "The model's engine has died.")

    def _transfer(self, plan: OffloadPlan, tag: str) -> dict[str, Json]:
        assert self._offload is not None
        return self._offload.transfer(plan, tag, *self._block_usage.take_notices(tag))

    def _cached(self, run: VllmRun, reported: int) -> int:
        """Returns how many tokens of the run's prompt were cached. `reported` is vLLM's number, which is too high if a
        load failed."""
        if run.plan is not None and run.plan.bad_reason:
            return min(reported, run.plan.resident_tokens)
        return reported

    async def _leave(self, run: VllmRun, cached: int, *, finished: bool) -> None:
        """Ends a run; its KV is saved in the background."""
        del self._runs[run.name]
        if not finished and not run.paused:
            self._counters["aborts"] += 1
        known = run.known
        if finished or run.emitted:
            self._counters["reused_tokens"] += cached
            self._counters["prefilled_tokens"] += len(run.prompt) - cached
            self._counters["decoded_tokens"] += len(run.emitted)
            if run.started:
                self._block_usage.note(run.key, max(0, len(known) - bool(run.emitted)))
        if run.plan is not None and self._offload is not None:
            self._offload.settle(run.plan, run.kept)

    def _new_block_usage(self, **known: Any) -> BlockUsage:
        return BlockUsage(self.options.block_tokens, self._is_busy, **known)

    def _is_busy(self, key: SessionKey) -> bool:
        return (self._offload is not None and self._offload.is_settling(key)) or any(
            run.key == key for run in self._runs.values()
        )
