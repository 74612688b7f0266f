"""Runs llama.cpp behind the `Engine` port: sessions share its slots, and each session's KV stays with it.

It decides which session has which slot and what KV may be reused; llama-server batches the runs and compares token ids
before it reuses any. Between sessions nothing is reused except what a request declares shareable within its
tenant. It does not know stop strings, filters or the log.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import functools
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from inference.chat_template import ChatTemplate, template_beside, template_source
from inference.continuation import continuation_of
from inference.forecast import LoadForecast
from inference.http_client import HttpClient
from inference.kv.catalog import make_catalog
from inference.kv.cost import CostModel
from inference.kv.envelope import KvIdentity
from inference.kv.staging import StagingFolder, create_staging_folder, warn_where_small
from inference.kv.tenant_quota import KvHoldings, TenantKvQuota
from inference.kv.tiers import Tiers
from inference.llama.completion import LlamaCompletion
from inference.llama.devices import ALL
from inference.llama.eager_save import EagerSaver
from inference.llama.gguf import GgufModel, read_model
from inference.llama.grammar_guide import GrammarGuides, Guide
from inference.llama.guided_completion import make_completion
from inference.llama.options import LlamaOptions
from inference.llama.prefill import SlotPrefill, SlotRun
from inference.llama.projector import read_projector, with_projector
from inference.llama.sampling import bans_tokens, check_stop_tokens, completion_parameters, tokens_until_end
from inference.llama.scheduling import EngineRun, Scheduler
from inference.llama.schema_probe import IMPOSSIBLE, SchemaProbe
from inference.llama.scorer import PromptScorer
from inference.llama.server import BUILD, LlamaServer, make_budget
from inference.llama.shown_prompts import ImageLengths, PromptShower, ShownPrompt
from inference.llama.slot_kv import SlotKv, bytes_per_token
from inference.llama.slot_usage import SlotUsage
from inference.llama.slots import Slot, SlotTable
from inference.llama.tokenizer import LlamaTokenizer
from inference.llama.vocabulary import Vocabulary, read_vocabulary
from inference.models.memory import (
    Footprint,
    available_bytes,
    check_fits,
    check_window,
    default_window,
    gguf_kv_bytes_per_token,
)
from inference.request_checks import check_model, check_prompt, trial_request
from inference.sampling import HONOURED
from inference.tokens import as_tokens, common_prefix, names_images
from inference.warming import Warmings
from sessions.limits import Forecast, Share
from sessions.model.errors import SessileError, Unavailable
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
from sessions.model.types import INTEGER_MAX, Json, ResponseId, Sampling, SessionKey, TenantId, Tokens
from sessions.ports import Keys

log = structlog.get_logger(__name__)
__all__ = ["LlamaEngine", "LlamaOptions"]

_LAYOUT: Final = "llama-slot-1"  # a slot's file, as this build writes it
_WINDOW_UNKNOWN: Final = 8192  # where the model file does not say
_CLOSE_S: Final = 5.0  # how many seconds closing may spend on saving KV


class _Started(NamedTuple):
    """The parts of an engine that exist once it has started."""

    info: EngineInfo
    tokenizer: LlamaTokenizer
    vocabulary: Vocabulary
    staging: StagingFolder
    server: LlamaServer
    http: HttpClient
    slot_kv: SlotKv
    usage: SlotUsage
    eager_saver: EagerSaver
    prefill: SlotPrefill
    quota: TenantKvQuota
    guides: GrammarGuides
    scorer: PromptScorer
    shower: PromptShower | None


class LlamaEngine:
    """An engine that runs llama-server in this process. Implements `Engine`, `ScoresPrompts` and `ChecksSampling`,
    and so has their methods beside its own."""

    def __init__(self, options: LlamaOptions, keys: Keys | None = None, *, cost: CostModel | None = None) -> None:
        """`keys`: spilled KV is encrypted under them; None stores it plain, which is for tests."""
        self.options = options
        self._keys = keys
        self._cost = cost or CostModel()
        self._scheduler = Scheduler(SlotTable(options.slots, ranking=self._rank), options.waiting_max)
        self._table = self._scheduler.table
        self._load = LoadForecast(self._scheduler.queue, lambda: asyncio.get_running_loop().time())
        self._slot_runs: dict[SessionKey, set[SlotRun]] = {}
        self._warmings = Warmings()
        self._unavailable: SessileError | None = Unavailable("engine_unavailable", "The engine has not started yet.")
        self.holdings = KvHoldings(lambda tenant: 0 if self._started is None else self._started.quota.bytes_of(tenant))
        self._counters = dict.fromkeys(
            (
                *("prefilled_tokens", "reused_tokens", "decoded_tokens", "aborts", "guessed_tokens", "reuse_misses"),
                *("drafted_tokens", "accepted_tokens"),
            ),
            0.0,
        )
        self._shown_specials: tuple[str, ...] = ()  # special tokens that are text in answers
        self._started: _Started | None = None
        self._closed = False

    @property
    def _up(self) -> _Started:
        assert self._started is not None, "`start` comes first"
        return self._started

    @property
    def _slot_kv(self) -> SlotKv:
        return self._up.slot_kv

    @property
    def info(self) -> EngineInfo:
        return self._up.info

    @property
    def tokenizer(self) -> LlamaTokenizer:
        return self._up.tokenizer

    @property
    def socket_path(self) -> str:
        """The unix socket that llama-server listens on; benches compare with it."""
        return self._up.http.socket_path

    def stats(self) -> EngineStats:
        tiers = self._slot_kv.tiers
        counted = (self._slot_kv.counters, tiers.counters, *(tier.counters for tier in tiers.cold))
        return EngineStats(
            slots=self.options.slots,
            running=self._table.num_busy,
            waiting=self._scheduler.num_waiting,
            counters={
                **self._counters,
                "decoded_tokens": self._counters["decoded_tokens"] + self._num_decoding_tokens,
                "sheds": float(self._scheduler.num_shed),
                "preemptions": float(self._scheduler.num_preempted),
                **{name: float(value) for counters in counted for name, value in counters.items()},
            },
            gauges={"device_bytes": self._up.usage.device_bytes, **tiers.stats()},
            away=None if self._unavailable is None else self._unavailable.public_message,
        )

    @property
    def _num_decoding_tokens(self) -> int:
        """How many tokens the answers in progress have so far; `_count` adds them to the counters at the end."""
        runs = (run for slot_runs in self._slot_runs.values() for run in slot_runs)
        return sum(run.completion.emitted_tokens for run in runs if run.completion is not None)

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast:
        return self._load.forecast(key.tenant, share, new_tokens, room=True)  # a slot has its own room for KV

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None:
        self._load.expect(response_id, tenant)

    def place(self, key: SessionKey) -> KVPlace:
        tokens = max((len(slot.tokens) for slot in self._table.of(key)), default=0)
        return KVPlace("device", tokens) if tokens else self._slot_kv.tiers.catalog.place(key)

    def held_sessions(self) -> set[SessionKey]:
        slots = {slot.key for slot in self._table if slot.key is not None}
        return slots | self._slot_kv.tiers.catalog.held_sessions()

    # -- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        model = await asyncio.to_thread(read_model, self.options.model_path)
        projector = None
        if self.options.projector is not None:
            projector = await asyncio.to_thread(read_projector, self.options.projector)
            model = with_projector(model, projector)
        vocabulary = await asyncio.to_thread(read_vocabulary, model.metadata)
        template = _template(self.options.chat_template, model, vocabulary)
        template.announce()
        window = await asyncio.to_thread(_window, self.options, model)
        if self.options.checks_memory:
            await asyncio.to_thread(_check_memory, self.options, model, window)
        async with contextlib.AsyncExitStack() as undo:
            options, staging = await asyncio.to_thread(_staged, self.options)
            undo.callback(staging.close)
            dtype = "q8_0" if options.kv_dtype == "8bit" else "f16"
            identity = KvIdentity(BUILD, model.fingerprint, dtype, _LAYOUT)
            catalog = make_catalog(identity, options, staging, self._keys, self._cost, time.monotonic)
            usage = SlotUsage(self._table, catalog, bytes_per_token(model.metadata, model.architecture))
            quota = TenantKvQuota(catalog, usage, lambda tenant: self.holdings.ceiling(tenant))
            tiers = Tiers(identity, catalog, quota)
            await tiers.open()
            if options.host_bytes_max:
                warn_where_small(tiers.host.bytes_max, usage.bytes_per_token * window)
            server = LlamaServer(self.options, window, staging.path)
            http = await server.start()
            undo.push_async_callback(server.stop)
            lengths = shower = None
            if projector is not None:
                lengths = ImageLengths(http)
                await lengths.start()
                shower = PromptShower(http, vocabulary, lengths)
                await shower.start()
            fingerprint = "" if projector is None else projector.fingerprint
            tokenizer = LlamaTokenizer(http, vocabulary, template, lengths, fingerprint)
            await tokenizer.start()
            self._shown_specials = tokenizer.shown_specials
            letter = (await tokenizer.text(IMPOSSIBLE))[0]
            slot_kv = SlotKv(http, tiers, usage, worth_tokens=options.spill_tokens_min)
            prefill = SlotPrefill(
                self._scheduler,
                functools.partial(make_completion, http, vocabulary.fragments, tokenizer.text),
                slot_kv,
                SchemaProbe(letter),
                turn_opening_tokens=len(tokenizer.turn_opening),
                budget=make_budget(options),
                check=self._check_alive,
            )
            if tiers.cold:
                await prefill.measure()
            undo.pop_all()
        self._started = _Started(
            info=EngineInfo(
                model=options.model_name or model.path.stem,
                build=BUILD,
                model_fingerprint=model.fingerprint,
                context_window=window,
                slots=options.slots,
                sampling=HONOURED,
                tool_format="hermes",
                call_format=template.call_format(),
                aliases=options.model_aliases,
                foldings=template.foldings,
                thoughts=template.thoughts(),
                images=projector is not None,
            ),
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            staging=staging,
            server=server,
            http=http,
            slot_kv=slot_kv,
            usage=usage,
            eager_saver=EagerSaver(
                self._table,
                slot_kv,
                num_waiting=lambda: self._scheduler.num_waiting,
                save_idle_s=options.save_idle_s,
            ),
            prefill=prefill,
            quota=quota,
            guides=GrammarGuides(options.model_path),
            scorer=PromptScorer(
                model.path,
                vocabulary_size=vocabulary.size,
                threads=options.threads,
                kv_is_8bit=options.kv_dtype == "8bit",
            ),
            shower=shower,
        )
        self._unavailable = None

    async def close(self) -> None:
        if self._started is None or self._closed:
            return
        self._closed = True
        self._unavailable = Unavailable("engine_unavailable", "The engine has been closed.")
        self._scheduler.refuse_all(self._unavailable)
        slot_runs = [slot_run for slot_runs in self._slot_runs.values() for slot_run in slot_runs]
        for slot_run in slot_runs:
            if slot_run.completion is not None:
                slot_run.completion.close()
        preparing = [slot_run.preparing for slot_run in slot_runs if slot_run.preparing is not None]
        if preparing:
            await asyncio.wait(preparing)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CLOSE_S
        for slot in sorted(self._table, key=lambda slot: -slot.used):
            if not slot.busy and loop.time() < deadline and self._slot_kv.tiers.host.disk is not None:
                await self._slot_kv.save(slot)
        await self._up.eager_saver.close()
        await self._up.scorer.close()
        await self._slot_kv.settle()
        await self._slot_kv.tiers.close(max(0.0, deadline - loop.time()))
        await self._up.server.stop()
        await asyncio.to_thread(self._up.staging.close)

    # -- generating ------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        self._load.arrived(request.response_id)
        self._check_alive()
        check_model(self.info, request.model)
        shown = await self._shown(request)
        prompt = as_tokens(request.prompt) if shown is None else shown.tokens
        check_prompt(max(len(prompt), len(request.prompt)), request.max_tokens, self.info.context_window)
        shared_prefix = request.shared_prefix
        if shown is not None and prompt[:shared_prefix] != as_tokens(request.prompt[:shared_prefix]):
            shared_prefix = 0  # llama-server has other tokens for it
        num_prompt = len(request.prompt)
        vocabulary, prefill, eager_saver = self._up.vocabulary, self._up.prefill, self._up.eager_saver
        check_stop_tokens(request.sampling, vocabulary)
        parameters = completion_parameters(request, vocabulary.size, self._shown_specials)
        if request.priority < BACKGROUND_PRIORITY:  # else it is a summary or a title: its user has not come back
            self._slot_kv.tiers.returns.on_turn(request.key, len(prompt))
        await self._warmings.settled(request.key, prompt)  # what it brings up, and the slot, are this run's
        pauses = "json_schema" not in parameters  # what is left of a constrained answer costs a request a token
        guide: Guide | None = None
        if not pauses and (request.emitted or bans_tokens(parameters) or not await self._has_grammars()):
            guide = await self._up.guides.guide(parameters, request.emitted)
        scope = request.cache_scope
        run = EngineRun(request.key, prompt, request.priority, request.weight, pauses=pauses, scope=scope, shown=shown)
        cached_tokens: int | None = None
        a_token_each = guide is not None
        least = tokens_until_end(request) or INTEGER_MAX  # after so many tokens it continues as a request that may end
        while True:
            slot = await self._scheduler.acquire(run)
            slot_run = self._enter(slot, request.key, run)
            if run.shown is not None:
                slot_run.cached_max = num_prompt - 1  # llama-server may have more tokens for the same text
            emitted = array.array("I")
            item: Chunk | Finish | None = None
            try:
                if cached_tokens is None:
                    self._load.started(run.claim, len(prompt) - common_prefix(slot.tokens, prompt))
                completion = await prefill.begin(slot_run, run.prompt, shared_prefix, parameters, guide)
                slot_run.paused = completion is None
                eager_saver.look()  # not before its own KV is in its slot: they share the room in host memory
                item = await completion.next() if completion is not None else None
                while completion is not None and isinstance(item, Chunk):
                    if guide is None and _is_unscored(item, parameters):
                        slot_run.paused = a_token_each = True  # the same once more, and all that follows
                        break
                    if cached_tokens is None:
                        cached_tokens = item.cached_tokens
                        self._load.on_output(run.claim)
                    elif item.cached_tokens != cached_tokens:  # of a run that goes on: reported once, of its beginning
                        item = Chunk(item.tokens, item.text, item.logprobs, cached_tokens)
                    emitted.extend(item.tokens)
                    self._scheduler.on_output(run, len(item.tokens))
                    yield item
                    if (run.yields or len(emitted) >= least) and item.text and len(emitted) < request.max_tokens:
                        slot_run.paused = True
                        break
                    item = await completion.next()
            finally:
                if slot_run.paused:
                    self._load.paused(run.claim)
                else:
                    self._load.ended(run.claim, len(emitted))
                self._leave(slot_run, request.key)
            if isinstance(item, Finish):
                break
            if emitted:
                request = continuation_of(request, emitted)
                run.prompt = run.prompt + emitted
                if run.shown is not None:
                    await self._show_again(run, request)
                least = tokens_until_end(request) or INTEGER_MAX
                parameters = completion_parameters(request, vocabulary.size, self._shown_specials)
            if a_token_each:
                guide = await self._up.guides.guide(parameters, request.emitted)
        cached = min(item.cached_tokens, slot_run.cached_max) if cached_tokens is None else cached_tokens
        yield Finish(item.reason, num_prompt, cached)

    async def _has_grammars(self) -> bool:
        """Returns whether llama-server keeps formats with this model. It takes a token that begins with a space for the
        same token without it where the tokenizer puts a space before every text."""
        return not self._up.vocabulary.adds_space and await self._up.server.has_grammars()

    async def _shown(self, request: GenerationRequest) -> ShownPrompt | None:
        """Returns a request's prompt with its images; None if it names none."""
        return None if self._up.shower is None else await self._up.shower.show(request.prompt, request.images)

    async def _show_again(self, run: EngineRun, request: GenerationRequest) -> None:
        """Makes the prompt of a run, which has no slot now, anew with what it has emitted."""
        try:
            run.shown = await self._shown(request)
        except BaseException:
            self._scheduler.leave(run)
            raise
        assert run.shown is not None
        run.prompt = run.shown.tokens

    def check_sampling(self, sampling: Sampling) -> None:
        check_stop_tokens(sampling, self._up.vocabulary)
        completion_parameters(trial_request(sampling), self._up.vocabulary.size)

    async def score(self, prompt: Tokens, top: int) -> list[TokenScore]:
        self._check_alive()
        return await self._up.scorer.score(prompt, top)

    async def warm(self, key: SessionKey, prompt: Tokens, *, background: bool = False) -> bool:
        tokens = as_tokens(prompt)
        if self._unavailable is not None or len(tokens) >= self.info.context_window or key in self._warmings:
            return False
        if self.info.images and names_images(tokens):
            return False
        run = EngineRun(key, tokens, BACKGROUND_PRIORITY if background else 0)
        slot: Slot | None = None
        if tokens and not self._displaces_sooner(key):
            slot = self._scheduler.try_acquire(run, beside=background)
        if slot is None:
            if not self._table.of(key):
                await self._slot_kv.tiers.prefetch(key)
            return False
        if background:  # a turn of the session begins beside it
            return await self._warm(slot, run)
        with self._warmings.of(key, tokens):
            return await self._warm(slot, run)

    async def _warm(self, slot: Slot, run: EngineRun) -> bool:
        key, tokens = run.key, run.prompt
        slot_run = self._enter(slot, key, run)
        try:
            completion = await self._up.prefill.begin(slot_run, tokens, 0, {"n_predict": 0})
            while completion is not None and isinstance(await completion.next(), Chunk):
                continue
        except SessileError:
            return False  # a hint: the turn itself will fail
        finally:
            self._leave(slot_run, key)
        return completion is not None

    def tools_called(self, key: SessionKey, tools: Sequence[str]) -> float | None:
        num_bytes = int(self.place(key).tokens * self._up.usage.bytes_per_token)
        after_s = self._slot_kv.tiers.on_tools(key, tools, num_bytes)
        if self._unavailable is None:
            self._up.eager_saver.look()  # its slot may be the next to be given to another session now
        return after_s

    def _displaces_sooner(self, key: SessionKey) -> bool:
        """Returns whether giving the session a slot would displace a session that waits for its tools and is expected
        to return sooner."""
        if self._table.of(key):
            return False
        returns = self._slot_kv.tiers.returns
        first = next(iter(self._table.order_for_new_session()), None)
        if first is None or first.key is None or not returns.waits_for_tools(first.key):
            return False
        return returns.index(first.key, 0.0, len(first.tokens)) >= returns.index(key, 0.0, 0)

    async def release(self, key: SessionKey) -> None:
        for slot_run in self._slot_runs.get(key, ()):
            slot_run.forgotten = True
        for slot in self._table.of(key):
            self._table.forget(slot)
        await self._slot_kv.tiers.erase(key)

    async def park(self, key: SessionKey) -> None:
        for slot in self._table.of(key):
            slot.parked = True
        self._slot_kv.tiers.park(key)

    async def export_kv(self, key: SessionKey, ledger: array.array[int]) -> KVExport | None:
        for slot in self._table.of(key):
            if not slot.busy:
                await self._slot_kv.save(slot)
        return await self._slot_kv.tiers.export(key, ledger)

    async def import_kv(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        return await self._slot_kv.tiers.import_(key, chunks)

    # -- inside ------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._unavailable is not None:
            raise self._unavailable

    def _enter(self, slot: Slot, key: SessionKey, run: EngineRun) -> SlotRun:
        slot_run = SlotRun(slot, run)
        self._slot_runs.setdefault(key, set()).add(slot_run)
        return slot_run

    def _leave(self, slot_run: SlotRun, key: SessionKey) -> None:
        """Ends the run's request if it still goes on, and gives the slot back: at once, or, while KV is being moved
        into the slot, when that has ended."""
        if slot_run.preparing is not None and not slot_run.preparing.done():
            slot_run.preparing.add_done_callback(lambda _: self._give_back(slot_run, key))
        else:
            self._give_back(slot_run, key)

    def _give_back(self, slot_run: SlotRun, key: SessionKey) -> None:
        slot, completion = slot_run.slot, slot_run.completion
        slot_runs = self._slot_runs[key]
        slot_runs.remove(slot_run)
        if not slot_runs:
            del self._slot_runs[key]
        if completion is not None:
            completion.close()
            slot.tokens = completion.held
            self._count(slot_run, completion)
        if slot_run.forgotten:
            self._table.forget(slot)
        if slot_run.paused:
            self._scheduler.give_way(slot_run.run, slot)
        else:
            self._scheduler.leave(slot_run.run)
        self._slot_kv.tiers.trim(key.tenant)
        if self._unavailable is None:
            if not slot.busy:
                self._up.eager_saver.rest(slot)
            self._up.eager_saver.look()

    def _rank(self, slot: Slot) -> tuple[float, ...]:
        """Returns a slot's sort key; the smallest gives way first: parked, then least expected back, then longest
        unused."""
        if slot.key is None:
            return (0.0, 0.0, slot.used)
        index = self._slot_kv.tiers.returns.index(slot.key, 0.0, len(slot.tokens))
        return (not slot.parked, index, slot.used)

    def _count(self, slot_run: SlotRun, completion: LlamaCompletion) -> None:
        counters = self._counters
        reused = min(completion.cached_tokens, slot_run.cached_max)
        counters["prefilled_tokens"] += completion.evaluated_tokens + completion.cached_tokens - reused
        counters["reused_tokens"] += reused
        counters["decoded_tokens"] += completion.emitted_tokens
        counters["guessed_tokens"] += completion.ids_guessed
        counters["drafted_tokens"] += completion.drafted_tokens
        counters["accepted_tokens"] += completion.accepted_tokens
        counters["aborts"] += not completion.finished
        self._up.prefill.learn(completion)
        counters["reuse_misses"] += completion.finished and completion.cached_tokens < completion.reusable_tokens


def _staged(options: LlamaOptions) -> tuple[LlamaOptions, StagingFolder]:
    """Makes the folder in memory for the slots' files. If there is no memory for it, returns options without KV tiers,
    and a folder on disk that stays empty. Blocking."""
    staging = create_staging_folder(options.staging_folder) if options.host_bytes_max else None
    if staging is not None:
        return options, staging
    return options.without_spill(), StagingFolder(Path(tempfile.gettempdir()))


def _footprint(options: LlamaOptions, model: GgufModel, window: int) -> Footprint:
    kv_bytes = gguf_kv_bytes_per_token(model.metadata)
    return Footprint(
        model.size_bytes, kv_bytes if options.kv_dtype == "auto" else kv_bytes * 17 // 32, window, options.slots
    )


def _window(options: LlamaOptions, model: GgufModel) -> int:
    """Returns how many tokens a session may have; by default as many as memory allows of the model's window. Raises
    BadInput for more than the model's. Blocking."""
    own = model.context_window or _WINDOW_UNKNOWN
    window = options.context_window
    if options.cuts_window:
        window = min(window, own)
    check_window(model.path.name, window, model.context_window)
    if not window:
        on_gpu = options.gpu_layers >= ALL and options.gpu_free_bytes
        window = default_window(
            _footprint(options, model, own), options.gpu_free_bytes if on_gpu else available_bytes()
        )
    window -= window % 256  # llama.cpp pads a sequence's room upwards; then ours would be the smaller
    price = _footprint(options, model, window)
    log.info(
        "context_window_chosen",
        tokens=window,
        model_tokens=model.context_window,
        slots=options.slots,
        kv_bytes_each=price.kv_bytes_per_token,  # a token's; a name that ends in that word is redacted in the log
        kv_bytes=price.kv_bytes_per_token * window * options.slots,
    )
    return window


def _check_memory(options: LlamaOptions, model: GgufModel, window: int) -> None:
    """Raises BadInput where the model does not fit into memory, saying what would. Blocking."""
    need = _footprint(options, model, window)
    if options.gpu_layers >= ALL and options.gpu_free_bytes:
        check_fits(model.path, need, options.gpu_free_bytes, where="the GPU's memory")
    elif not options.gpu_layers:  # some layers there and some here: nobody knows how much of each
        check_fits(model.path, need, available_bytes())


def _template(name: str | None, model: GgufModel, vocabulary: Vocabulary) -> ChatTemplate:
    missing = f"The model file {model.path} has no chat template. Start with --chat-template chatml, which is built in."
    source = template_source(name, model.chat_template or template_beside(model.path), missing)
    return ChatTemplate(source, bos=vocabulary.bos_text, eos=vocabulary.eos_text, specials=vocabulary.specials)


def _is_unscored(chunk: Chunk, parameters: dict[str, Json]) -> bool:
    """Returns whether llama-server left out requested log probabilities, as it does for tokens that end inside a
    character."""
    return "n_probs" in parameters and len(chunk.logprobs) < len(chunk.tokens)
