"""The engine that runs already: turns go to servers of one model, found by their addresses.

A session goes to the same server while that lives, so the server's own prefix cache has its turns. One that fails
before it said anything is passed over; where it breaks an answer off, the run ends with EngineLost, and its actor has
the answer gone on with, from the same tokens, at the next. Who runs is `ConcurrencyGate`'s to say, so that tenants
share the servers fairly.

KV is the servers' business: `place` knows none, nothing is exported, and what a deleted session left in their caches
goes when they need the room.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

import structlog

from inference.concurrency_gate import ConcurrencyGate, GatedRun
from inference.remote.dialects import RemoteRunEnded, ServedModel, ServerDialect, TemplatedTokenizer
from inference.remote.options import RemoteOptions
from inference.remote.pool import RemotePool, RemoteServer
from inference.request_checks import check_model, check_prompt, trial_request
from sessions.limits import Forecast, Share
from sessions.model.errors import BadInput, EngineLost, Overloaded, SessileError, Unavailable
from sessions.model.generation import Chunk, EngineInfo, EngineStats, Finish, GenerationRequest, KVExport, KVPlace
from sessions.model.types import ResponseId, Sampling, SessionKey, TenantId, Tokens

log = structlog.get_logger(__name__)


class RemoteEngine:
    """An engine whose model runs on other servers. Implements `Engine`. `start` comes first."""

    def __init__(self, options: RemoteOptions, clock: Callable[[], float] | None = None) -> None:
        """`clock` returns monotonic seconds; None: the running loop's clock."""
        self.options = options
        servers = [RemoteServer(url, options.key) for url in options.urls]
        self._pool = RemotePool(servers, clock or _loop_time, away_s=options.away_s, answer_s=options.answer_s)
        self._dialect = _dialect_of(options)
        self._gate = ConcurrencyGate(options.slots, options.waiting_max)
        self._counters: Counter[str] = Counter()
        self._model = ""  # the servers' name of it
        self._kind = ""  # of all servers
        self._info: EngineInfo | None = None
        self._tokenizer: TemplatedTokenizer | None = None
        self._closed: Unavailable | None = None

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None
        return self._info

    @property
    def tokenizer(self) -> TemplatedTokenizer:
        assert self._tokenizer is not None
        return self._tokenizer

    async def start(self) -> None:
        """Connects to the servers. Raises Unavailable where none answers, BadInput where they serve several models, or
        another than `--model`, or are of several kinds."""
        served = await self._served()
        self._kind = served[0].kind
        kinds = sorted({model.kind for model in served})
        if len(kinds) > 1:
            what = f"engine_url: the servers are of several kinds, {' and '.join(kinds)}: name those of one kind."
            raise BadInput("invalid_setting", what, param="engine_url")
        if kinds == ["SGLang"]:
            from inference.remote.sglang_dialect import SglangDialect

            self._dialect = SglangDialect(self.options)
        names = sorted({model.name for model in served})
        if len(names) > 1:
            what = f"engine_url: the servers have several models, {' and '.join(names)}: name those of one model."
            raise BadInput("invalid_setting", what, param="engine_url")
        self._model = names[0]
        windows = [model.context_window for model in served if model.context_window]
        wanted = self.options.context_window
        if not windows and not wanted:
            raise BadInput("invalid_setting", "The servers do not say their window: give --context.", param="context")
        if windows and wanted > min(windows):
            what = f"--context {wanted} is beyond the window of the servers: at most {min(windows)}."
            raise BadInput("invalid_setting", what, param="context")
        images = self._sees(served)
        self._tokenizer = await self._dialect.open_tokenizer(self._pool, images=images)
        for server in self._pool.servers:
            if server.is_checked:
                await self._dialect.check_tokenizer(self._pool, server, self._model)
        template = self._tokenizer.template
        self._info = EngineInfo(
            model=self.options.model_name or self._model,
            build=self._dialect.build,
            model_fingerprint=f"remote-{self._model}",
            context_window=wanted or min(windows),
            slots=self.options.slots,
            sampling=self._dialect.sampling,
            tool_format="engine" if self._dialect.holds_to_formats else "hermes",
            call_format=template.call_format(),
            aliases=self.options.model_aliases,
            foldings=template.foldings,
            thoughts=template.thoughts(),
            images=images,
        )

    def _sees(self, served: Sequence[ServedModel]) -> bool:
        """Returns whether the model sees images: as the options say, else if each server that says something of it
        says so. Only providers of chat take them."""
        if not self.options.chat_model:
            return False
        known = [model.images for model in served if model.images is not None]
        return self.options.images if self.options.images is not None else bool(known) and all(known)

    async def close(self) -> None:
        self._closed = Unavailable("engine_unavailable", "The engine has been closed.")
        self._gate.refuse_all(self._closed)

    # -- generating ------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        if self._closed is not None:
            raise self._closed
        check_prompt(len(request.prompt), request.max_tokens, self.info.context_window)
        check_model(self.info, request.model)
        self._dialect.check(request)
        turn = GatedRun(request.key.tenant, request.priority, request.weight, len(request.prompt), pauses=False)
        await self._gate.acquire(turn)
        room = self.info.context_window - len(request.prompt)
        try:
            async with contextlib.aclosing(self._output(request)) as items:
                async for item in items:
                    if isinstance(item, Chunk):
                        room -= len(item.tokens)
                        self._gate.on_output(turn, len(item.tokens))
                        self._counters["decoded_tokens"] += len(item.tokens)
                        yield item
                        if room >= 0:
                            continue
                        item = RemoteRunEnded("length", item.cached_tokens)  # a provider may keep to no limit
                    self._counters["prefilled_tokens"] += len(request.prompt) - item.cached_tokens
                    self._counters["reused_tokens"] += item.cached_tokens
                    yield Finish(item.reason, len(request.prompt), item.cached_tokens)
                    return
        finally:
            self._gate.leave(turn)

    def check_sampling(self, sampling: Sampling) -> None:
        self._dialect.check(trial_request(sampling))

    async def _output(self, request: GenerationRequest) -> AsyncGenerator[Chunk | RemoteRunEnded, None]:
        """Runs a request on the first server that answers and has room. Raises Unavailable where none answers,
        Overloaded where those that do are busy, with the shortest wait."""
        name = f"{request.key.tenant}\0{request.key.session}".encode()
        refusal: Unavailable | None = None
        busy: list[Overloaded] = []
        for server in self._pool.in_order(name):
            begun = False
            try:
                if not server.is_checked:
                    await self._check(server)
                async with contextlib.aclosing(self._dialect.run(server, self._model, request)) as items:
                    while (item := await self._next(server, items)) is not None:
                        if not begun:
                            self._pool.answered(server)
                        begun = True
                        yield item
                return
            except Overloaded as error:
                busy.append(error)
            except Unavailable as error:
                self._counters["failures"] += 1
                if begun or not server.is_checked or not await self._lives(server):
                    self._pool.failed(server, error.public_message)
                else:
                    log.warning("remote_engine_refused", server=server.name, reason=error.public_message)
                    refusal = error
                if begun:
                    what = "The model's server has gone in the middle of an answer."
                    raise EngineLost("engine_lost", what) from error
        if busy:
            raise min(busy, key=lambda error: error.retry_after_ms or 0)
        raise refusal or Unavailable("engine_unavailable", "None of the model's servers answers.")

    async def _check(self, server: RemoteServer) -> None:
        """Checks that a server that did not answer before has the model of the others: it may have been started with
        another one, and most take any token ids. Raises Unavailable."""
        try:
            model = await self._dialect.model_of(self._pool, server)
            if (model.name, model.kind) != (self._model, self._kind):
                raise Unavailable("engine_unavailable", f"The server has another model, {model.name}.")
            await self._dialect.check_tokenizer(self._pool, server, self._model)
        except BadInput as error:
            raise Unavailable("engine_unavailable", error.public_message) from error
        server.is_checked = True

    async def _next(
        self, server: RemoteServer, items: AsyncGenerator[Chunk | RemoteRunEnded, None]
    ) -> Chunk | RemoteRunEnded | None:
        """Returns the next item of a run; None after the last. Waits as long as the server answers probes, because it
        sends nothing while it computes a long prompt. Raises Unavailable if a probe fails."""
        coming = asyncio.ensure_future(anext(items, None))
        try:
            while not (await asyncio.wait((coming,), timeout=self.options.silence_s))[0]:
                await self._probe(server)
            return coming.result()
        finally:
            if not coming.done():
                coming.cancel()
                await asyncio.wait((coming,))

    async def _lives(self, server: RemoteServer) -> bool:
        """Returns whether a server that failed at one request answers a probe; if it does, it does not count as
        away."""
        try:
            await self._probe(server)
        except Unavailable:
            return False
        return True

    async def _probe(self, server: RemoteServer) -> None:
        status, _ = await self._pool.question(server, "GET", self._dialect.probe_path(server))
        if status >= 500:
            raise Unavailable("engine_unavailable", f"The model's server answers with {status}.")

    async def _served(self) -> list[ServedModel]:
        """Returns the models of the servers that answer. Raises Unavailable that names all of them where none does."""
        found = await asyncio.gather(
            *(self._dialect.model_of(self._pool, server) for server in self._pool.servers), return_exceptions=True
        )
        served, reason = [], ""
        for server, model in zip(self._pool.servers, found, strict=True):
            if isinstance(model, ServedModel):
                served.append(model)
                server.is_checked = True
            elif isinstance(model, SessileError):
                reason = model.public_message
                self._pool.failed(server, reason)
            else:
                raise model
        if not served:
            names = ", ".join(server.name for server in self._pool.servers)
            what = f"No server of the model answers at {names} (--engine-url). {reason}"
            raise Unavailable("engine_unavailable", what)
        return served

    # -- what is the servers' own business -------------------------------------------------------------

    async def warm(self, key: SessionKey, prompt: Tokens, *, background: bool = False) -> bool:
        return False

    def tools_called(self, key: SessionKey, tools: Sequence[str]) -> float | None:
        return None

    async def release(self, key: SessionKey) -> None: ...

    async def park(self, key: SessionKey) -> None: ...

    def place(self, key: SessionKey) -> KVPlace:
        return KVPlace("none", 0)

    def held_sessions(self) -> set[SessionKey]:
        return set()

    async def export_kv(self, key: SessionKey, ledger: array[int]) -> KVExport | None:
        return None

    async def import_kv(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        async for _ in chunks:
            pass
        return 0

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast | None:
        """Returns a forecast that says that the queue is full, or None: other servers' pace is not known."""
        full = self._gate.is_full(key.tenant)
        return Forecast(position=1, wait_s=0.0, ttft_s=0.0, tpot_s=0.0, full=True) if full else None

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None: ...

    def stats(self) -> EngineStats:
        away = self._pool.away
        return EngineStats(
            slots=self._gate.slots,
            running=self._gate.running,
            waiting=self._gate.waiting,
            counters={**{name: float(count) for name, count in self._counters.items()}, "sheds": self._gate.num_shed},
            gauges={"servers_away": float(len(away))},
            away="None of the model's servers answers." if len(away) == len(self._pool.servers) else None,
        )


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _dialect_of(options: RemoteOptions) -> ServerDialect:
    """Returns the dialect of the servers: that of a provider with a chat model's name, else llama-server's if the
    tokenizer's path is a GGUF file, else vLLM's, which `start` replaces if the servers say that they are SGLang's."""
    if options.chat_model:
        from inference.remote.chat_dialect import ChatDialect

        return ChatDialect(options)
    if options.tokenizer.suffix == ".gguf":
        from inference.remote.llama_dialect import LlamaDialect

        return LlamaDialect(options)
    from inference.remote.vllm_dialect import VllmDialect

    return VllmDialect(options)
