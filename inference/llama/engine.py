"""llama.cpp behind the `Engine` port: sessions share its slots, and each session's KV stays with it.

It decides which session has which slot and what KV may be reused; llama-server batches the runs and compares token ids
before it reuses any. Between sessions nothing is reused except what a request declares shareable within its
tenant. It does not know stop strings, filters or the log.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from inference.brownout_engine import check_model
from inference.chat_template import BUILT_IN, ChatTemplate
from inference.forecast import LoadForecast
from inference.kv.cost import CostModel
from inference.kv.disk import DiskTier
from inference.kv.envelope import KvIdentity
from inference.kv.staging import StagingFolder, create_staging_folder
from inference.kv.stats import tier_stats
from inference.kv.tenant_quota import TenantKvQuota
from inference.kv.tiers import Tiers
from inference.llama.completion import LlamaCompletion
from inference.llama.eager_save import EagerSaver
from inference.llama.gguf import GgufModel, read_model
from inference.llama.http import HttpClient
from inference.llama.options import LlamaOptions
from inference.llama.prefill import SlotPrefill, SlotRun
from inference.llama.sampling import HONOURED, completion_parameters
from inference.llama.scheduling import EngineRun, Scheduler, continuation_of
from inference.llama.schema_probe import IMPOSSIBLE, SchemaProbe
from inference.llama.server import BUILD, LlamaServer, piece_tokens
from inference.llama.slot_kv import SlotKv, bytes_per_token
from inference.llama.slot_usage import SlotUsage
from inference.llama.slots import Slot, SlotTable
from inference.llama.tokenizer import LlamaTokenizer
from inference.llama.vocabulary import Vocabulary, read_vocabulary
from inference.tokens import as_tokens, common_prefix
from sessions.limits import Forecast, Share
from sessions.model.errors import BadInput, SessileError, Unavailable
from sessions.model.generation import Chunk, EngineInfo, EngineStats, Finish, GenerationRequest, KVExport, KVPlace
from sessions.model.types import ResponseId, SessionKey, TenantId, Tokens
from sessions.ports import Keys

__all__ = ["LlamaEngine", "LlamaOptions"]


log = logging.getLogger(__name__)

_LAYOUT: Final = "llama-slot-1"  # a slot's file, as this build writes it
_WINDOW_UNKNOWN: Final = 8192  # where the model file does not say
_CLOSE_S: Final = 5.0  # how long closing may save KV for


class LlamaEngine:
    """Implements `Engine`."""

    def __init__(self, options: LlamaOptions, keys: Keys | None = None, *, cost: CostModel | None = None) -> None:
        """`keys`: spilled KV is encrypted under them; None stores it plain, which is for tests."""
        self.options = options
        self._keys = keys
        self._cost = cost or CostModel()
        self._scheduler = Scheduler(SlotTable(options.slots, ranking=self._rank), options.waiting_max)
        self._table = self._scheduler.table
        self._load = LoadForecast(self._scheduler.queue, lambda: asyncio.get_running_loop().time())
        self._turns: dict[SessionKey, set[SlotRun]] = {}
        self._gone: SessileError | None = Unavailable("engine_unavailable", "The engine has not started yet.")
        self.holdings = TenantKvQuota()
        self._counters = dict.fromkeys(
            ("prefilled_tokens", "reused_tokens", "decoded_tokens", "aborts", "guessed_tokens", "reuse_misses"),
            0.0,
        )
        # Set by `start`:
        self._model: GgufModel
        self._vocabulary: Vocabulary
        self._staging: StagingFolder
        self._server: LlamaServer | None = None
        self._http: HttpClient
        self._residency: SlotKv
        self._saves_ahead: EagerSaver
        self._prefill: SlotPrefill
        self._tokenizer: LlamaTokenizer
        self._info: EngineInfo

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def tokenizer(self) -> LlamaTokenizer:
        return self._tokenizer

    @property
    def address(self) -> tuple[str, int]:
        """Where llama-server listens, on loopback: for comparisons."""
        return self._http.host, self._http.port

    def stats(self) -> EngineStats:
        tiers = self._residency.tiers
        counted = (self._residency.counters, tiers.counters, *(tier.counters for tier in tiers.cold))
        return EngineStats(
            slots=self.options.slots,
            running=self._table.num_busy,
            waiting=self._scheduler.num_waiting,
            counters={
                **self._counters,
                "sheds": float(self._scheduler.num_shed),
                "preemptions": float(self._scheduler.num_preempted),
                **{name: float(value) for counters in counted for name, value in counters.items()},
            },
            gauges=tier_stats(tiers),
            away=None if self._gone is None else self._gone.public_message,
        )

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast:
        return self._load.forecast(key.tenant, share, new_tokens, room=True)  # a slot has its own room for KV

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None:
        self._load.expect(response_id, tenant)

    def place(self, key: SessionKey) -> KVPlace:
        tokens = max((len(slot.tokens) for slot in self._table.of(key)), default=0)
        return KVPlace("device", tokens) if tokens else self._residency.tiers.place(key)

    def held_sessions(self) -> set[SessionKey]:
        slots = {slot.key for slot in self._table if slot.key is not None}
        return slots | self._residency.tiers.held_sessions()

    # -- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        model = await asyncio.to_thread(read_model, self.options.model_path)
        vocabulary = await asyncio.to_thread(read_vocabulary, model.metadata)
        template = _template(self.options.chat_template, model, vocabulary)
        window = min(self.options.context_window, model.context_window or _WINDOW_UNKNOWN)
        window -= window % 256  # llama.cpp pads a sequence's room upwards; then ours would be the smaller
        async with contextlib.AsyncExitStack() as undo:
            options, staging = await asyncio.to_thread(_staged, self.options)
            undo.callback(staging.close)
            tiers = self._tiers(options, model, staging)
            await tiers.open()
            server = LlamaServer(self.options, window, staging.path)
            http = await server.start()
            undo.push_async_callback(server.stop)
            tokenizer = LlamaTokenizer(http, vocabulary, template)
            await tokenizer.start()
            letter = (await tokenizer.text(IMPOSSIBLE))[0]
            undo.pop_all()
        self._model, self._vocabulary, self._staging, self._server = model, vocabulary, staging, server
        self._http, self._tokenizer = http, tokenizer
        self._residency = SlotKv(
            http,
            tiers,
            worth_tokens=self.options.spill_tokens_min,
            bytes_per_token=bytes_per_token(model.metadata, model.architecture),
        )
        self._saves_ahead = EagerSaver(
            self._table,
            self._residency,
            num_waiting=lambda: self._scheduler.num_waiting,
            save_idle_s=self.options.save_idle_s,
        )
        self._prefill = SlotPrefill(
            self._scheduler,
            http,
            self._residency,
            tokenizer,
            vocabulary.fragments,
            SchemaProbe(letter),
            piece_tokens(self.options),
            always=not self.options.gpu_layers,
            check=self._check_alive,
        )
        if tiers.cold:
            await self._prefill.measure()
        SlotUsage(self._table, self._residency, self._rank).join(self.holdings)
        self._info = EngineInfo(
            model=self.options.model_name or model.path.stem,
            build=BUILD,
            model_fingerprint=model.fingerprint,
            context_window=window,
            slots=self.options.slots,
            sampling=HONOURED,
            tool_format="hermes" if tokenizer.renders_tools else "none",
        )
        self._gone = None

    async def close(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        self._gone = Unavailable("engine_unavailable", "The engine has been closed.")
        self._scheduler.refuse_all(self._gone)
        turns = [turn for turns in self._turns.values() for turn in turns]
        for turn in turns:
            if turn.run is not None:
                turn.run.close()
        preparing = [turn.preparing for turn in turns if turn.preparing is not None]
        if preparing:
            await asyncio.wait(preparing)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CLOSE_S
        for slot in sorted(self._table, key=lambda slot: -slot.used):
            if not slot.busy and loop.time() < deadline and self._residency.tiers.disk is not None:
                await self._residency.save(slot)
        await self._saves_ahead.close()
        await self._residency.settle()
        await self._residency.tiers.close(max(0.0, deadline - loop.time()))
        await server.stop()
        await asyncio.to_thread(self._staging.close)

    def _tiers(self, options: LlamaOptions, model: GgufModel, staging: StagingFolder) -> Tiers:
        identity = KvIdentity(BUILD, model.fingerprint, "f16", _LAYOUT)
        folder, keys = options.disk_folder, self._keys
        disk = DiskTier(folder, options.disk_bytes_max, identity, keys) if folder is not None else None
        shared = None
        if options.redis_url:
            from inference.kv.redis import RedisTier  # its client is not loaded where nobody wants it

            shared = RedisTier(options.redis_url, options.redis_bytes_max, identity, keys)
        host_bytes_max = staging.bound_bytes(options.host_bytes_max)
        return Tiers(
            identity, staging.path, host_bytes_max, disk, shared=shared, cost=self._cost, holdings=self.holdings
        )

    # -- generating ------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        self._load.arrived(request.response_id)
        prompt = as_tokens(request.prompt)
        self._check(prompt, request.max_tokens)
        check_model(self._info, request.model)
        parameters = completion_parameters(request, self._vocabulary_size)
        self._residency.tiers.turn(request.key, len(prompt))
        pauses = "json_schema" not in parameters  # a grammar cannot be set to where an answer is
        claim = EngineRun(request.key, prompt, request.priority, request.weight, pauses=pauses)
        cached_tokens: int | None = None
        while True:
            slot = await self._scheduler.acquire(claim)
            turn = self._enter(slot, request.key, claim)
            said = array.array("I")
            item: Chunk | Finish | None = None
            try:
                if cached_tokens is None:
                    self._load.started(claim.claim, len(prompt) - common_prefix(slot.tokens, prompt))
                run = await self._prefill.begin(turn, claim.prompt, request.shared_prefix, parameters)
                turn.paused = run is None
                self._saves_ahead.look()  # not before its own KV is in its slot: they share the room in host memory
                item = await run.next() if run is not None else None
                while run is not None and isinstance(item, Chunk):
                    if cached_tokens is None:
                        cached_tokens = item.cached_tokens
                        self._load.on_output(claim.claim)
                    elif item.cached_tokens != cached_tokens:  # of a run that goes on: said once, of its beginning
                        item = Chunk(item.tokens, item.text, item.logprobs, cached_tokens)
                    said.extend(item.tokens)
                    self._scheduler.on_output(claim, len(item.tokens))
                    yield item
                    if claim.yields and item.text and len(said) < request.max_tokens:
                        turn.paused = True
                        break
                    item = await run.next()
            finally:
                if turn.paused:
                    self._load.paused(claim.claim)
                else:
                    self._load.ended(claim.claim, len(said))
                self._leave(turn, request.key)
            if isinstance(item, Finish):
                break
            if not said:
                continue
            claim.prompt = claim.prompt + said
            request = continuation_of(request, said)
            parameters = completion_parameters(request, self._vocabulary_size)
        cached = min(item.cached_tokens, turn.cached_max) if cached_tokens is None else cached_tokens
        yield Finish(item.reason, len(prompt), cached)

    async def warm(self, key: SessionKey, prompt: Tokens) -> None:
        tokens = as_tokens(prompt)
        if self._gone is not None or len(tokens) >= self._info.context_window:
            return
        claim = EngineRun(key, tokens)
        slot = self._scheduler.try_acquire(claim) if tokens else None
        if slot is None:
            if not self._table.of(key):
                await self._residency.tiers.prefetch(key)
            return
        turn = self._enter(slot, key, claim)
        try:
            run = await self._prefill.begin(turn, tokens, 0, {"n_predict": 0})
            while run is not None and isinstance(await run.next(), Chunk):
                continue
        except SessileError:
            return  # a hint: the turn itself will be told
        finally:
            self._leave(turn, key)

    async def release(self, key: SessionKey) -> None:
        for turn in self._turns.get(key, ()):
            turn.forgotten = True
        for slot in self._table.of(key):
            self._table.forget(slot)
        await self._residency.tiers.erase(key)

    async def park(self, key: SessionKey) -> None:
        for slot in self._table.of(key):
            slot.parked = True
        self._residency.tiers.park(key)

    async def export_kv(self, key: SessionKey, ledger: array.array[int]) -> KVExport | None:
        for slot in self._table.of(key):
            if not slot.busy:
                await self._residency.save(slot)
        return await self._residency.tiers.export(key, ledger)

    async def import_kv(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        return await self._residency.tiers.import_(key, chunks)

    # -- inside ------------------------------------------------------------------------------------------

    @property
    def _vocabulary_size(self) -> int:
        return len(self._model.metadata.get("tokenizer.ggml.tokens", ()))

    def _check_alive(self) -> None:
        if self._gone is not None:
            raise self._gone

    def _check(self, prompt: array.array[int], max_tokens: int) -> None:
        self._check_alive()
        if not prompt:
            raise BadInput("empty_prompt", "There is nothing to answer: the prompt has no tokens.")
        if len(prompt) + bool(max_tokens) > self._info.context_window:
            raise BadInput(
                "context_length_exceeded",
                f"The prompt has {len(prompt)} tokens; this model takes {self._info.context_window} together with"
                " the answer.",
            )

    def _enter(self, slot: Slot, key: SessionKey, claim: EngineRun) -> SlotRun:
        turn = SlotRun(slot, claim)
        self._turns.setdefault(key, set()).add(turn)
        return turn

    def _leave(self, turn: SlotRun, key: SessionKey) -> None:
        """Hangs up if the run goes on, and gives the slot back, at once or when its KV is in order."""
        if turn.preparing is not None and not turn.preparing.done():
            turn.preparing.add_done_callback(lambda _: self._give_back(turn, key))
        else:
            self._give_back(turn, key)

    def _give_back(self, turn: SlotRun, key: SessionKey) -> None:
        slot, run = turn.slot, turn.run
        turns = self._turns[key]
        turns.remove(turn)
        if not turns:
            del self._turns[key]
        if run is not None:
            run.close()
            slot.tokens = run.held
            self._count(turn, run)
        if turn.forgotten:
            self._table.forget(slot)
        if turn.paused:
            self._scheduler.give_way(turn.claim, slot)
        else:
            self._scheduler.leave(turn.claim)
        self._residency.tiers.trim(key.tenant)
        if self._gone is None:
            if not slot.busy:
                self._saves_ahead.rest(slot)
            self._saves_ahead.look()

    def _rank(self, slot: Slot) -> tuple[float, ...]:
        """Smaller gives its slot up first: parked, then who is least expected back, then the longest unused."""
        if slot.key is None:
            return (0.0, 0.0, slot.used)
        index = self._residency.tiers.returns.index(slot.key, 0.0, len(slot.tokens))
        return (not slot.parked, index, slot.used)

    def _count(self, turn: SlotRun, run: LlamaCompletion) -> None:
        counters = self._counters
        reused = min(run.cached_tokens, turn.cached_max)
        counters["prefilled_tokens"] += run.evaluated_tokens + run.cached_tokens - reused
        counters["reused_tokens"] += reused
        counters["decoded_tokens"] += run.emitted_tokens
        counters["guessed_tokens"] += run.ids_guessed
        counters["aborts"] += not run.finished
        self._prefill.learn(run)
        counters["reuse_misses"] += run.finished and run.cached_tokens < run.reusable_tokens


def _staged(options: LlamaOptions) -> tuple[LlamaOptions, StagingFolder]:
    """A folder for the slots' files. Where it cannot be in memory it stays empty: nothing is spilled. Blocking."""
    staging = create_staging_folder(options.staging_folder) if options.host_bytes_max else None
    if staging is not None:
        return options, staging
    return options.without_spill(), StagingFolder(Path(tempfile.gettempdir()))


def _template(wanted: str | None, model: GgufModel, vocabulary: Vocabulary) -> ChatTemplate:
    source = model.chat_template if wanted is None else BUILT_IN.get(wanted, wanted)
    if source is None:
        raise BadInput(
            "bad_chat_template",
            f"The model file {model.path} has no chat template. Start with --chat-template chatml, which is built in.",
            param="chat_template",
        )
    return ChatTemplate(source, bos=vocabulary.bos_text, eos=vocabulary.eos_text, specials=vocabulary.specials)
