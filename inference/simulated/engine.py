"""The simulated engine: continuous batching in lockstep, prefix reuse per session, text that is a pure function.

One timer drives all streams: a step is planned, lasts as long as `SimulatedOptions` says, and then gives every
stream that decoded in it one token. Invariants: at most `slots` streams run; a stream that leaves (end, abort, error)
frees its slot in the same call; what a stream computed goes back to the device memory of its session.

Who runs next, and who makes room, is `inference.fair_queue`'s to say. A stream that makes room keeps its KV as long as
the device memory does, and is computed again otherwise. Prompts in flight may push the device memory out, and answers
in flight may exceed it by what they add. To make an engine misbehave, subclass it: `step_s`, `draw` and `crash` are
made for that.

It knows no clock but the running loop's and no chance at all.
"""

from __future__ import annotations

import array
import asyncio
import hashlib
import zlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final

import msgspec
import structlog

from inference.fair_queue import FairQueue, SlotClaim
from inference.forecast import LoadForecast
from inference.kv.envelope import (
    KvIdentity,
    SnapshotRefused,
    check_manifest,
    decode_header,
    encode_header,
    make_manifest,
)
from inference.request_checks import check_model, check_prompt
from inference.simulated.kv import DeviceMemory, longest_shared
from inference.simulated.options import SimulatedOptions
from inference.simulated.tokenizer import SimulatedTokenizer
from inference.simulated.vocabulary import FIRST_WORD, TOKEN_BYTES, answer_length, hash_token, hash_tokens, next_token
from inference.tokens import Utf8Stream, as_tokens
from sessions.limits import Forecast, Share
from sessions.model.errors import Overloaded, SessileError, Unavailable
from sessions.model.generation import Chunk, EngineInfo, EngineStats, Finish, GenerationRequest, KVExport, KVPlace
from sessions.model.types import ResponseId, Sampling, SessionKey, TenantId, Tokens

__all__ = ["SimulatedEngine", "SimulatedOptions", "SimulatedStream"]

_DRAWN_BY: Final = ("top_p", "frequency_penalty", "presence_penalty", "logit_bias")
log = structlog.get_logger(__name__)

BUILD = "simulated/1"
_COUNTERS = (
    "prefilled_tokens",
    "reused_tokens",
    "decoded_tokens",
    "steps",
    "aborts",
    "sheds",
    "imports",
    "imports_refused",
    "preemptions",
)
_WORD_TEXT = tuple(piece.decode() if token >= FIRST_WORD else "" for token, piece in enumerate(TOKEN_BYTES))


@dataclass(slots=True, eq=False, repr=False)
class SimulatedStream:
    """One generation inside the engine. Mutable, and the engine's own; subclasses may read it in `draw`.
    Its fields are what the engine counts of a generation, and the parts of its request."""

    key: SessionKey
    tokens: array.array[int]  # the prompt and what was decoded since
    max_tokens: int  # 0: prefill only
    priority: InitVar[int]
    weight: InitVar[float] = 1.0
    claim: SlotClaim[SimulatedStream] = field(init=False)
    prompt_tokens: int = field(init=False)
    ends_after: int = -1  # decoded tokens after which the answer ends by itself; -1: never
    salt: int = 0
    state: int = 0  # hash of `tokens`, valid once the prompt is prefilled
    utf8: Utf8Stream = field(default_factory=Utf8Stream)
    unfinished: bytes = b""  # bytes in `utf8` of a character that is not complete yet
    begun: bool = False
    cached_tokens: int = 0
    prefill_left: int = 0
    prefill_now: int = 0  # how many of them the present step computes
    decoding: bool = False  # takes part in the step that is under way
    decoded: int = 0
    outbox: deque[Chunk | Finish] = field(default_factory=deque)
    stalled: bool = False
    forgotten: bool = False  # the session was deleted: keep nothing
    scope: bytes = b""  # the request's `cache_scope`
    error: SessileError | None = None
    waiter: asyncio.Future[None] | None = None

    def __post_init__(self, priority: int, weight: float) -> None:
        self.prompt_tokens = count = len(self.tokens)
        self.claim = SlotClaim(self, tenant=self.key.tenant, priority=priority, weight=weight, prompt_tokens=count)

    def wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class SimulatedEngine:
    """An engine that only simulates a model. Implements `Engine`; `crash`, `lose` and `recover` let tests make it fail.
    It has as many methods as a real engine: slots, steps and KV memory are simulated, too."""

    def __init__(self, options: SimulatedOptions | None = None) -> None:
        self.options = options or SimulatedOptions()
        self._tokenizer = SimulatedTokenizer(images=self.options.images)
        self._memory = DeviceMemory(self.options.kv_tokens_max)
        weights = f"-{self.options.weights}" if self.options.weights else ""
        self._fingerprint = f"{self._tokenizer.fingerprint}{weights}"
        self._identity = KvIdentity(BUILD, self._fingerprint, "none", "tokens")
        self._info = EngineInfo(
            model=self.options.model,
            build=BUILD,
            model_fingerprint=self._fingerprint,
            context_window=self.options.context_window,
            slots=self.options.slots,
            sampling=frozenset({"temperature", "seed", "ignore_eos", "min_tokens", *_DRAWN_BY}),
            tool_format="hermes" if self.options.tools else "none",
            aliases=self.options.model_aliases,
            images=self.options.images,
        )
        self._queue: FairQueue[SimulatedStream] = FairQueue(self.options.slots, self.options.waiting_max)
        self._load = LoadForecast(self._queue, lambda: asyncio.get_running_loop().time())
        self._running: dict[SimulatedStream, None] = {}  # in order of admission
        self._waiting: dict[SimulatedStream, None] = {}
        self._running_tokens = 0
        self._step_timer: asyncio.TimerHandle | None = None
        self._step_due = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unavailable: SessileError | None = Unavailable("engine_unavailable", "The engine has not started yet.")
        self._lost: SessileError | None = None
        self._counters = dict.fromkeys(_COUNTERS, 0.0)

    # -- what it is ------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def tokenizer(self) -> SimulatedTokenizer:
        return self._tokenizer

    def stats(self) -> EngineStats:
        return EngineStats(
            slots=self.options.slots,
            running=len(self._running),
            waiting=len(self._waiting),
            counters={**self._counters, "evictions": float(self._memory.evictions)},
            away=None if self._away is None else self._away.public_message,
        )

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast:
        room = not self._running or new_tokens <= self.options.kv_tokens_max - self._running_tokens
        return self._load.forecast(key.tenant, share, new_tokens, room=room)

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None:
        self._load.expect(response_id, tenant)

    def place(self, key: SessionKey) -> KVPlace:
        held = self._memory.longest(key)
        running = max((len(s.tokens) - s.prefill_left for s in self._of(key)), default=0)
        tokens = max(running, len(held) if held is not None else 0)
        return KVPlace("device" if tokens else "none", tokens)

    def held_sessions(self) -> set[SessionKey]:
        return {*self._memory.sessions, *(stream.key for stream in self._running)}

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._unavailable = None

    async def close(self) -> None:
        self.crash(Unavailable("engine_unavailable", "The engine has been closed."))

    def crash(self, error: SessileError) -> None:
        """Ends every stream with `error` and refuses later ones with it, as an engine that died does."""
        self._unavailable = error
        self._break_off(self._running, error)
        self._break_off(self._waiting, error)

    def lose(self, error: SessileError) -> None:
        """Simulates the death of an engine's process: running streams end with `error`, waiting ones go on waiting, and
        all KV is lost, until `recover` is called."""
        if self._unavailable is None:
            self._lost = error
            self._break_off(self._running, error)
            self._memory.shrink_to(0)

    def recover(self) -> None:
        """Simulates the restart of an engine that was lost."""
        self._lost = None
        self._plan()

    def _break_off(self, streams: dict[SimulatedStream, None], error: SessileError) -> None:
        if self._step_timer is not None:
            self._step_timer.cancel()
            self._step_timer = None
        for stream in streams:
            self._queue.leave(stream.claim)
            stream.error = error
            stream.wake()
        streams.clear()
        self._running_tokens = 0

    # -- generating ----------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        self._load.arrived(request.response_id)
        check_model(self.info, request.model)
        stream = SimulatedStream(
            request.key, as_tokens(request.prompt), request.max_tokens, request.priority, request.weight
        )
        mean = self.options.answer_tokens_mean
        sampling = request.sampling
        if mean and not sampling.ignore_eos:
            base = hash_tokens(stream.tokens[: stream.prompt_tokens - len(request.emitted)])
            length = max(answer_length(base, mean), sampling.min_tokens or 0)
            stream.ends_after = max(0, length - len(request.emitted))
        stream.salt = self._salt(sampling, request.seed)
        stream.scope = request.cache_scope
        stream.utf8 = Utf8Stream(TOKEN_BYTES[token] for token in request.emitted[-4:])
        stream.unfinished = stream.utf8.pending
        self._submit(stream)
        loop = asyncio.get_running_loop()
        try:
            while True:
                while stream.outbox:
                    item = stream.outbox.popleft()
                    if stream.stalled:
                        stream.stalled = False
                        self._plan()
                    yield item
                    if type(item) is Finish:
                        return
                if stream.error is not None:
                    raise stream.error
                stream.waiter = loop.create_future()
                await stream.waiter
        finally:
            self._leave(stream)

    async def warm(self, key: SessionKey, prompt: Tokens, *, background: bool = False) -> bool:
        """Prefills `prompt` with the lowest priority, and waits until that is done. Returns whether it was; False if
        the engine refused it or failed."""
        stream = SimulatedStream(key, as_tokens(prompt), 0, 1_000_000)
        try:
            self._submit(stream)
        except SessileError:
            return False  # a hint that came at a bad time; the turn itself will fail
        try:
            while not stream.outbox and stream.error is None:
                await self._arrival(stream)
            return stream.error is None
        finally:
            self._leave(stream)

    def tools_called(self, key: SessionKey, tools: Sequence[str]) -> float | None:
        return None  # it has no tier to bring anything back from

    async def release(self, key: SessionKey) -> None:
        self._memory.erase(key)
        for stream in self._of(key):
            stream.forgotten = True

    async def park(self, key: SessionKey) -> None:
        self._memory.park(key)

    async def export_kv(self, key: SessionKey, ledger: array.array[int]) -> KVExport | None:
        written = [stream.tokens[:-1] for stream in self._of(key) if self.options.block_access and stream.decoded]
        held = longest_shared(ledger, [*self._memory.of(key), *written])
        if held is None:
            return None
        digest = hashlib.blake2b(held.tobytes(), digest_size=16).digest()
        return KVExport(held, _chunks(encode_header(make_manifest(key, self._identity, held, digest, 0, b""))))

    async def import_kv(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        data = b""
        async for chunk in chunks:
            data += chunk
        try:
            decoded = decode_header(data)
            if decoded is None or decoded[1] != len(data):
                raise SnapshotRefused("truncated" if decoded is None else "too_long")
            held = check_manifest(decoded[0], key, self._identity)
        except SnapshotRefused as exc:
            log.info("snapshot_import_refused", reason=exc.reason)
            self._counters["imports_refused"] += 1
            return 0
        if self._unavailable is not None:
            return 0
        self._memory.put(key, held)
        self._counters["imports"] += 1
        return len(held)

    # -- made for subclasses -----------------------------------------------------------------------------

    def step_s(self, decoding: int, prefill_tokens: int) -> float:
        """Returns how many seconds a step lasts."""
        o = self.options
        return o.step_base_s + o.step_per_stream_s * decoding + prefill_tokens / o.prefill_tokens_per_s

    def draw(self, stream: SimulatedStream) -> int | None:
        """Returns the next token of a stream, None at the end of the answer."""
        if stream.decoded == stream.ends_after:
            return None
        return next_token(stream.state, stream.salt, stream.tokens[-1], stream.unfinished)

    # -- inside ----------------------------------------------------------------------------------------

    @property
    def _away(self) -> SessileError | None:
        """Returns the error with which the engine refuses to compute at present; None if it runs."""
        return self._unavailable or self._lost

    def _salt(self, sampling: Sampling, seed: int) -> int:
        temperature = self.options.temperature if sampling.temperature is None else sampling.temperature
        drawn = 0 if temperature == 0 else seed * 2 + 1
        named = {name: getattr(sampling, name) for name in _DRAWN_BY if getattr(sampling, name)}
        if temperature == 0 or named.get("top_p") == 1:
            named.pop("top_p", None)  # the likeliest token is within it
        if named:  # what they would do to the odds, another draw does here
            drawn ^= zlib.crc32(msgspec.json.encode(named, order="deterministic")) << 1
        return (drawn ^ (self.options.weights << 33)) & 0xFFFF_FFFF_FFFF_FFFF

    def _of(self, key: SessionKey) -> list[SimulatedStream]:
        return [stream for stream in self._running if stream.key == key]

    async def _arrival(self, stream: SimulatedStream) -> None:
        stream.waiter = asyncio.get_running_loop().create_future()
        await stream.waiter

    def _submit(self, stream: SimulatedStream) -> None:
        if self._unavailable is not None:
            raise self._unavailable
        check_prompt(stream.prompt_tokens, stream.max_tokens, self.options.context_window)
        busy = len(self._running) + len(self._waiting) >= self.options.slots
        if busy and self._queue.is_full(stream.key.tenant):
            self._counters["sheds"] += 1
            raise Overloaded("overloaded", "The model is busy. Try again shortly.", retry_after_ms=1000)
        self._queue.join(stream.claim)
        self._waiting[stream] = None
        self._plan()

    def _admit(self) -> None:
        """Gives slots to the next streams, while there are free slots or a running stream makes room."""
        while (claim := self._queue.first()) is not None:
            stream = claim.holder
            room = self.options.kv_tokens_max - self._running_tokens
            if len(self._running) < self.options.slots and (not self._running or len(stream.tokens) <= room):
                self._queue.start(claim)
                self._begin(stream)
                continue
            victim = self._queue.victim(claim)
            if victim is None:
                return  # its turn comes when others end; nobody overtakes it meanwhile
            self._make_room(victim)

    def _make_room(self, victim: SlotClaim[SimulatedStream]) -> None:
        """Pauses a stream between two steps; it will go on where it was."""
        self._queue.make_room(victim)
        self._put_away(victim.holder)
        self._waiting[victim.holder] = None
        self._load.paused(victim)
        self._counters["preemptions"] += 1

    def _begin(self, stream: SimulatedStream) -> None:
        """Gives a slot to a stream, which is new or goes on after a pause."""
        del self._waiting[stream]
        held = self._memory.take(stream.key, stream.tokens, stream.scope)
        # The last token of a prompt is always computed: its logits are what the first answer token is drawn from.
        cached_tokens = min(held, len(stream.tokens) - 1)
        if not stream.begun:
            stream.begun = True
            stream.cached_tokens = cached_tokens
            self._load.started(stream.claim, len(stream.tokens) - cached_tokens)
        stream.prefill_left = len(stream.tokens) - cached_tokens
        stream.state = hash_tokens(stream.tokens)
        self._running[stream] = None
        self._running_tokens += len(stream.tokens)
        self._memory.shrink_to(max(0, self.options.kv_tokens_max - self._running_tokens))
        self._counters["reused_tokens"] += cached_tokens

    def _plan(self) -> None:
        """Starts the next step, unless one is under way or there is nothing to do."""
        if self._step_timer is not None or self._loop is None or self._away is not None:
            return
        self._admit()
        decoding = prefill_tokens = 0
        filling: list[SimulatedStream] = []
        for stream in self._running:
            stream.prefill_now = 0
            stream.decoding = False
            if stream.stalled:
                continue
            if stream.prefill_left:
                filling.append(stream)
            else:
                stream.decoding = True
                decoding += 1
        if len(filling) > 1:  # the chunk goes to who would be served first
            filling.sort(key=lambda each: self._queue.order(each.claim))
        for stream in filling:
            stream.prefill_now = min(stream.prefill_left, self.options.prefill_chunk_tokens - prefill_tokens)
            prefill_tokens += stream.prefill_now
        if decoding or prefill_tokens:
            now = self._loop.time()
            # Steps follow each other without the loop's own delay, but time that was lost is not caught up.
            begin = self._step_due if now - self._step_due < self.options.step_base_s else now
            self._step_due = begin + self.step_s(decoding, prefill_tokens)
            self._step_timer = self._loop.call_at(self._step_due, self._step)

    def _step(self) -> None:
        """Ends a step: what was planned has now been computed."""
        self._step_timer = None
        self._counters["steps"] += 1
        for stream in tuple(self._running):
            if stream.prefill_now:
                stream.prefill_left -= stream.prefill_now
                self._counters["prefilled_tokens"] += stream.prefill_now
                stream.prefill_now = 0
                stream.decoding = not stream.prefill_left
            if stream.decoding:
                self._advance(stream)
        self._plan()

    def _advance(self, stream: SimulatedStream) -> None:
        token = self.draw(stream) if stream.max_tokens else None
        if token is None:
            self._finish(stream, "stop")
            return
        stream.tokens.append(token)
        stream.state = hash_token(token, stream.state)
        stream.decoded += 1
        self._running_tokens += 1
        self._queue.served(stream.claim, 1)
        if stream.decoded == 1:
            self._load.on_output(stream.claim)
        self._counters["decoded_tokens"] += 1
        text = _WORD_TEXT[token]
        if not text or stream.unfinished:
            text = stream.utf8.feed(TOKEN_BYTES[token])
            stream.unfinished = stream.utf8.pending
        stream.outbox.append(Chunk((token,), text, cached_tokens=stream.cached_tokens))
        if stream.decoded == stream.max_tokens or len(stream.tokens) >= self.options.context_window:
            self._finish(stream, "length")
            return
        stream.stalled = len(stream.outbox) >= self.options.unread_chunks_max
        stream.wake()

    def _finish(self, stream: SimulatedStream, reason: str) -> None:
        done = Finish("stop" if reason == "stop" else "length", stream.prompt_tokens, stream.cached_tokens)
        stream.outbox.append(done)
        self._retire(stream)
        stream.wake()

    def _leave(self, stream: SimulatedStream) -> None:
        """Ends a stream whose reader has left."""
        if stream in self._waiting:
            del self._waiting[stream]
            self._queue.leave(stream.claim)
            self._load.ended(stream.claim, 0)
            self._counters["aborts"] += 1
        elif stream in self._running:
            self._retire(stream)
            self._counters["aborts"] += 1
            self._plan()

    def _retire(self, stream: SimulatedStream) -> None:
        """Frees the slot of a stream that has ended."""
        self._queue.leave(stream.claim)
        self._load.ended(stream.claim, stream.decoded)
        self._put_away(stream)

    def _put_away(self, stream: SimulatedStream) -> None:
        """Takes a stream out of its slot, and gives its KV back to the device memory of its session."""
        del self._running[stream]
        self._running_tokens -= len(stream.tokens)
        if stream.forgotten:
            return
        computed = len(stream.tokens) - stream.prefill_left
        if stream.decoded and not stream.prefill_left:
            computed -= 1  # the last token was drawn, but nothing has been computed from it yet
        self._memory.put(stream.key, stream.tokens[:computed], stream.scope)
        self._memory.shrink_to(max(0, self.options.kv_tokens_max - self._running_tokens))


async def _chunks(data: bytes, size: int = 1 << 20) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
