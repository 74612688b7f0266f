"""llama.cpp behind the `Engine` port: sessions share its slots, and each session's KV stays with it.

It decides which session has which slot and what KV may be reused; llama-server batches the runs and compares token ids
before it reuses any. Between sessions nothing is reused except what a request declares shareable within its
tenant. It does not know stop strings, filters or the log.
"""

from __future__ import annotations

import array
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from inference.llama.completion import Completion
from inference.llama.gguf import Model, read_model
from inference.llama.options import LlamaOptions
from inference.llama.sampling import HONOURED, completion_parameters
from inference.llama.scheduling import Scheduler
from inference.llama.server import BUILD, LlamaServer
from inference.llama.slots import Slot, SlotTable
from inference.llama.template import BUILT_IN, ChatTemplate
from inference.llama.tokenizer import LlamaTokenizer
from inference.llama.vocabulary import Vocabulary, read_vocabulary
from inference.tokens import as_tokens, common_prefix
from sessions.errors import BadInput, SessileError, Unavailable
from sessions.ports import Chunk, EngineInfo, EngineStats, Finish, GenerationRequest, KVPlace
from sessions.types import SessionKey, Tokens

__all__ = ["LlamaEngine", "LlamaOptions"]


class LlamaEngine:
    """Implements `Engine`."""

    def __init__(self, options: LlamaOptions) -> None:
        self.options = options
        self._scheduler = Scheduler(SlotTable(options.slots), options.waiting_max)
        self._table = self._scheduler.table
        self._running: dict[Slot, Completion] = {}
        self._gone: SessileError | None = Unavailable("engine_unavailable", "The engine has not started yet.")
        self._counters = dict.fromkeys(
            ("prefilled_tokens", "reused_tokens", "decoded_tokens", "aborts", "guessed_tokens", "reuse_misses"),
            0.0,
        )
        # Set by `start`:
        self._model: Model
        self._vocabulary: Vocabulary
        self._server: LlamaServer | None = None
        self._tokenizer: LlamaTokenizer
        self._info: EngineInfo

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def tokenizer(self) -> LlamaTokenizer:
        return self._tokenizer

    def stats(self) -> EngineStats:
        return EngineStats(
            slots=self.options.slots,
            running=self._table.num_busy,
            waiting=self._scheduler.num_waiting,
            counters={**self._counters, "sheds": float(self._scheduler.num_shed)},
        )

    def place(self, key: SessionKey) -> KVPlace:
        tokens = max((len(slot.tokens) for slot in self._table.of(key)), default=0)
        return KVPlace("device" if tokens else "none", tokens)

    # -- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        model = await asyncio.to_thread(read_model, self.options.model_path)
        vocabulary = await asyncio.to_thread(read_vocabulary, model.metadata)
        template = _template(self.options.chat_template, model, vocabulary)
        window = min(self.options.context_window, model.context_window or self.options.context_window)
        window -= window % 256  # llama.cpp pads a sequence's room upwards; then ours would be the smaller
        server = LlamaServer(self.options, window, Path("/dev/shm"))
        http = await server.start()
        try:
            tokenizer = LlamaTokenizer(http, vocabulary, template, model.fingerprint)
            await tokenizer.start()
        except BaseException:
            await server.stop()
            raise
        self._model, self._vocabulary, self._server, self._tokenizer = model, vocabulary, server, tokenizer
        self._http = http
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
        for run in self._running.values():
            run.close()
        await server.stop()

    # -- generating ------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        prompt = as_tokens(request.prompt)
        self._check(prompt, request.max_tokens)
        parameters = completion_parameters(request, self._vocabulary_size)
        slot = await self._scheduler.acquire(request.key, prompt, request.priority)
        try:
            run = await self._begin(slot, request.key, prompt, request.shared_prefix, parameters)
            item = await run.next()
            while type(item) is Chunk:
                yield item
                item = await run.next()
        finally:
            self._end(slot)
        yield item

    async def warm(self, key: SessionKey, prompt: Tokens) -> None:
        tokens = as_tokens(prompt)
        if self._gone is not None or not 0 < len(tokens) < self._info.context_window:
            return
        slot = self._scheduler.try_acquire(key, tokens)
        if slot is None:
            return
        try:
            run = await self._begin(slot, key, tokens, 0, {"n_predict": 0})
            while type(await run.next()) is Chunk:
                continue
        except SessileError:
            return  # a hint: the turn itself will be told
        finally:
            self._end(slot)

    async def release(self, key: SessionKey) -> None:
        for slot in self._table.of(key):
            self._table.forget(slot)

    async def park(self, key: SessionKey) -> None:
        for slot in self._table.of(key):
            slot.parked = True

    async def export_kv(self, key: SessionKey) -> AsyncIterator[bytes] | None:
        return None

    async def import_kv(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        return 0

    # -- inside ------------------------------------------------------------------------------------------

    @property
    def _vocabulary_size(self) -> int:
        return len(self._model.metadata.get("tokenizer.ggml.tokens", ()))

    def _check(self, prompt: array.array[int], max_tokens: int) -> None:
        if self._gone is not None:
            raise self._gone
        if not prompt:
            raise BadInput("empty_prompt", "There is nothing to answer: the prompt has no tokens.")
        if len(prompt) + bool(max_tokens) > self._info.context_window:
            raise BadInput(
                "context_length_exceeded",
                f"The prompt has {len(prompt)} tokens; this model takes {self._info.context_window} together with"
                " the answer.",
            )

    def _claim(self, slot: Slot, key: SessionKey, prompt: array.array[int], shared_prefix: int) -> int:
        """Makes the slot `key`'s. Returns how many tokens of `prompt` it may reuse."""
        before, held = slot.key, slot.tokens
        self._table.assign(slot, key)
        if before == key:
            return common_prefix(held, prompt)
        if before is not None and before.tenant == key.tenant and shared_prefix:
            shared = common_prefix(held, prompt)
            return shared if shared <= shared_prefix else 0
        return 0

    async def _begin(
        self,
        slot: Slot,
        key: SessionKey,
        prompt: array.array[int],
        shared_prefix: int,
        parameters: dict[str, object],
    ) -> Completion:
        """Starts a run in a busy slot. `_end` comes next, also when this fails."""
        resident = self._claim(slot, key, prompt, shared_prefix)
        if self._gone is not None:
            raise self._gone
        slot.tokens = prompt[:resident]  # what it holds beyond that is lost from here on
        run = Completion(self._http, self._vocabulary.fragments, self._tokenizer.text, slot.number, prompt, resident)
        self._running[slot] = run
        await run.open(parameters)
        return run

    def _end(self, slot: Slot) -> None:
        """Hangs up if the run goes on, notes what the slot holds now, and gives it back."""
        run = self._running.pop(slot, None)
        if run is not None:
            run.close()
            if slot.key is not None:  # else the session was deleted meanwhile
                slot.tokens = run.held
                slot.version += 1
            counters = self._counters
            counters["prefilled_tokens"] += run.evaluated_tokens
            counters["reused_tokens"] += run.cached_tokens
            counters["decoded_tokens"] += run.emitted_tokens
            counters["guessed_tokens"] += run.ids_guessed
            counters["aborts"] += not run.finished
            counters["reuse_misses"] += run.finished and run.cached_tokens < run.reusable_tokens
        self._scheduler.release(slot)


def _template(wanted: str | None, model: Model, vocabulary: Vocabulary) -> ChatTemplate:
    source = model.chat_template if wanted is None else BUILT_IN.get(wanted, wanted)
    if source is None:
        raise BadInput(
            "bad_chat_template",
            f"The model file {model.path} has no chat template. Start with --chat-template chatml, which is built in.",
            param="chat_template",
        )
    return ChatTemplate(source, bos=vocabulary.bos_text, eos=vocabulary.eos_text, specials=vocabulary.specials)
