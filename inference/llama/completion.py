"""One run on the server: a prompt in, tokens with their text out, and what the slot holds when it is over.

llama-server's stream has three habits that end here: it sends the end-of-sequence token as an event with empty text;
it holds tokens back while their text ends inside a character and then names only the last of them; and it
tells how far the prompt has come only when asked (`return_progress`), which also makes it notice within one step that
we hung up.
"""

from __future__ import annotations

import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec

from inference.llama.http import EventStream, HttpClient
from inference.llama.sampling import public_logprobs
from inference.llama.vocabulary import Fragments
from sessions.errors import BadInput, Internal, SessileError, Unavailable
from sessions.ports import Chunk, Finish
from sessions.types import Json, Tokens


class _Progress(msgspec.Struct, frozen=True):
    cache: int
    processed: int


class _Timings(msgspec.Struct, frozen=True):
    cache_n: int
    prompt_n: int


class _Failure(msgspec.Struct, frozen=True):
    message: str = ""
    type: str = ""


class _Event(msgspec.Struct, frozen=True, gc=False):
    content: str = ""
    tokens: tuple[int, ...] = ()
    stop: bool = False
    tokens_predicted: int = 0
    stop_type: str = ""
    prompt_progress: _Progress | None = None
    completion_probabilities: list[dict[str, Json]] | None = None
    timings: _Timings | None = None
    error: _Failure | None = None


_DECODER: Final = msgspec.json.Decoder(_Event)
_ENCODER: Final = msgspec.json.Encoder()
_FINAL_FIELDS: Final = ["stop", "stop_type", "tokens_predicted", "timings"]


class Completion:
    """One request to /completion. Use `run` once; afterwards, however it ended, `held` says what the slot
    holds for certain."""

    def __init__(
        self,
        http: HttpClient,
        fragments: Fragments,
        encode: Callable[[str], Awaitable[Tokens]],
        slot_number: int,
        prompt: array.array[int],
        resident: int,
    ) -> None:
        """`resident`: how many leading tokens of `prompt` the slot holds before the run; 0 forbids any reuse."""
        self._http = http
        self._fragments = fragments
        self._encode = encode
        self._slot_number = slot_number
        self._prompt = prompt
        self._emitted: array.array[int] = array.array("I")
        self._resident = resident
        self._evaluated = resident
        self._stream: EventStream | None = None
        self.cached_tokens = 0
        self.ids_guessed = 0

    @property
    def held(self) -> array.array[int]:
        if not self._emitted:
            return self._prompt[: self._evaluated]
        return self._prompt + self._emitted[:-1]  # from the last one nothing has been computed yet

    @property
    def evaluated_tokens(self) -> int:
        return max(0, self._evaluated - self.cached_tokens)

    @property
    def emitted_tokens(self) -> int:
        return len(self._emitted)

    def hang_up(self) -> None:
        """Ends the run from outside: whoever reads it gets Unavailable."""
        if self._stream is not None:
            self._stream.close()

    async def run(self, parameters: dict[str, Json]) -> AsyncIterator[Chunk | Finish]:
        """Closing this iterator closes the connection; the server drops the run within one step."""
        top = int(parameters.get("n_probs", 0))
        body = _ENCODER.encode(
            {
                **parameters,
                "prompt": self._prompt.tolist(),
                "id_slot": self._slot_number,
                "cache_prompt": self._resident > 0,
                "stream": True,
                "return_tokens": True,
                "return_progress": True,
                "response_fields": _FINAL_FIELDS,
            }
        )
        status, answer, self._stream = await self._http.stream("/completion", body)
        try:
            if status != 200:
                raise _error(answer)
            seen = 0
            silent: tuple[int, ...] = ()  # tokens without text: the last may prove to be the end of sequence
            while True:
                event = await self._next_event(self._stream)
                if event.prompt_progress is not None:
                    self.cached_tokens = event.prompt_progress.cache
                    self._evaluated = event.prompt_progress.processed
                elif event.stop:
                    if silent and event.stop_type != "eos":
                        self._emitted.extend(silent)
                        yield Chunk(silent, "")
                    yield self._finish(event)
                    return
                else:
                    self._evaluated = len(self._prompt)
                    count = event.tokens_predicted - seen
                    seen = event.tokens_predicted
                    if not event.content:
                        silent += event.tokens
                        continue
                    tokens = silent + await self._ids(event, count)
                    silent = ()
                    self._emitted.extend(tokens)
                    yield Chunk(tokens, event.content, self._logprobs(event, top))
        finally:
            self._stream.close()

    async def _next_event(self, stream: EventStream) -> _Event:
        while True:
            raw = await stream.next()
            if raw is None:
                raise Unavailable("engine_unavailable", "The model's engine cut an answer short.")
            _, mark, data = raw.partition(b"data: ")
            if not mark:
                if raw.startswith(b"error: "):
                    raise _error(raw[7:])
                continue  # a comment that keeps the connection alive
            event = _DECODER.decode(data)
            if event.error is not None:
                raise _error(data)
            return event

    async def _ids(self, event: _Event, count: int) -> tuple[int, ...]:
        """The ids behind an event's text, `count` of them; the event itself names the last."""
        if count <= 1:
            return event.tokens
        found = self._fragments.recover(event.content, count, event.tokens[-1])
        if len(found) == 1:
            return found[0]
        self.ids_guessed += count
        return found[0] if found else tuple(await self._encode(event.content))

    def _logprobs(self, event: _Event, top: int) -> tuple[Json, ...]:
        if not top or not event.completion_probabilities:
            return ()
        return public_logprobs(event.completion_probabilities, top)

    def _finish(self, event: _Event) -> Finish:
        if event.timings is not None:
            self.cached_tokens = event.timings.cache_n
        self._evaluated = len(self._prompt)
        reason = "stop" if event.stop_type in ("eos", "word") else "length"
        return Finish("stop" if reason == "stop" else "length", len(self._prompt), self.cached_tokens)


def _error(answer: bytes) -> SessileError:
    """llama-server's error object as one of ours."""
    try:
        failure = msgspec.json.decode(answer, type=_Event).error or _Failure()
    except msgspec.DecodeError:
        failure = _Failure()
    if failure.type == "exceed_context_size_error":
        return BadInput("context_length_exceeded", "The prompt does not fit the model's context window.")
    if failure.type == "invalid_request_error":
        return BadInput("engine_refused", f"The model's engine refused the request: {failure.message[:200]}")
    if failure.type == "unavailable_error":
        return Unavailable("engine_unavailable", "The model's engine is not ready.")
    return Internal("engine_failed", "The model's engine failed.")
