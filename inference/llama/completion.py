"""Runs one completion on llama-server: a prompt in, tokens with their text out, and what the slot holds afterwards.

llama-server's stream has three habits that end here: it sends the end-of-sequence token as an event with empty text;
it holds tokens back while their text ends inside a character and then names only the last of them; and it
reports how far the prompt has come only on request (`return_progress`), which also makes it notice within one step that
we hung up.
"""

from __future__ import annotations

import array
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from inference.http_client import HttpClient, SseReader
from inference.llama.sampling import STOP_TOKENS, public_logprobs
from inference.llama.shown_prompts import ShownPrompt
from inference.llama.vocabulary import ByteFragments
from sessions.model.errors import BadInput, Internal, SessileError, Unavailable
from sessions.model.generation import Chunk, Finish
from sessions.model.types import INTEGER_MAX, Json, Tokens


class _Progress(msgspec.Struct, frozen=True):
    total: int
    cache: int
    processed: int


class _Timings(msgspec.Struct, frozen=True):
    cache_n: int
    prompt_n: int
    prompt_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0


class _Failure(msgspec.Struct, frozen=True):
    message: str = ""
    type: str = ""


class CompletionEvent(msgspec.Struct, frozen=True, gc=False):
    """One message of llama-server about a run: an event of its stream, or the whole answer of a run without one."""

    content: str = ""
    tokens: tuple[int, ...] = ()
    stop: bool = False
    tokens_predicted: int = 0
    stop_type: str = ""
    prompt_progress: _Progress | None = None
    completion_probabilities: list[dict[str, Json]] | None = None
    timings: _Timings | None = None
    error: _Failure | None = None


_DECODER: Final = msgspec.json.Decoder(CompletionEvent)
_ENCODER: Final = msgspec.json.Encoder()
_FINAL_FIELDS: Final = ["stop", "stop_type", "tokens_predicted", "timings"]


class LlamaCompletion:
    """One request to /completion: `open`, then `next` until it returns the Finish, then `close`. After that, however it
    ended, `held` has the tokens that the slot certainly holds. The attributes are updated as the answer's stream is
    read."""

    def __init__(
        self,
        http: HttpClient,
        fragments: ByteFragments,
        encode: Callable[[str], Awaitable[Tokens]],
        slot_number: int,
        prompt: array.array[int],
        resident: int,
        cached_max: int = INTEGER_MAX,
        shown: ShownPrompt | None = None,
    ) -> None:
        """`resident`: how many leading tokens of `prompt` the slot holds before the run; 0 forbids any reuse.
        `cached_max`: the most tokens that may be reported as cached, because others in the slot were computed for this
        same run. `shown`: what `prompt` is a part of, if that names images."""
        self._http = http
        self._fragments = fragments
        self._encode = encode
        self._slot_number = slot_number
        self._prompt = prompt
        self._emitted: array.array[int] = array.array("I")
        self._resident = resident
        self._evaluated = resident
        self._stream: SseReader | None = None
        self._finish: Finish | None = None
        self._predicted = 0
        self._silent: tuple[int, ...] = ()  # tokens without text: the last may prove to be the end of sequence
        self._top = 0
        self._stop_tokens: frozenset[int] = frozenset()
        self._cached_max = cached_max
        self._shown = shown
        self._is_shifted = False  # whether the server has another number of tokens for the same prompt
        self.cached_tokens = 0
        self.prefill_s = (
            0.0  # as the server measured it, once the run is over; 0 with images, which take their own time
        )
        self.ids_guessed = 0
        self.drafted_tokens = 0  # tried ahead by speculation, known once the run is over; and how many of them held
        self.accepted_tokens = 0

    @property
    def held(self) -> array.array[int]:
        if self._is_shifted:
            return array.array("I")
        if not self._emitted:
            return self._prompt[: self._evaluated]
        return self._prompt + self._emitted[:-1]  # from the last one nothing has been computed yet

    @property
    def evaluated_tokens(self) -> int:
        return max(0, self._evaluated - self.cached_tokens)

    @property
    def reusable_tokens(self) -> int:
        """How many tokens the server should have reused: all resident ones, except that it computes at least one."""
        return min(self._resident, len(self._prompt) - 1)

    @property
    def finished(self) -> bool:
        return self._finish is not None

    @property
    def emitted_tokens(self) -> int:
        return len(self._emitted)

    async def open(self, parameters: dict[str, Json]) -> None:
        """Sends the request. The caller calls `close` in any case."""
        self._top = int(parameters.get("n_probs", 0))
        self._stop_tokens = frozenset(parameters.get(STOP_TOKENS, ()))
        body = _ENCODER.encode(
            {
                **parameters,
                "prompt": self._prompt_body(self._prompt),
                "id_slot": self._slot_number,
                "cache_prompt": self._resident > 0,
                "stream": True,
                "return_tokens": True,
                "return_progress": True,
                "response_fields": _FINAL_FIELDS,
            }
        )
        status, answer, self._stream = await self._http.stream("/completion", body)
        if status != 200:
            raise completion_error(answer)

    def _prompt_body(self, prompt: array.array[int]) -> Json:
        return prompt.tolist() if self._shown is None else self._shown.body(prompt)

    def close(self) -> None:
        """Hangs up, so that the server drops the run within one step. Another task may call this: whoever waits in
        `next` then gets Unavailable. Idempotent."""
        if self._stream is not None:
            self._stream.close()

    async def next(self) -> Chunk | Finish:
        """Returns the next chunk; at last, once, a Finish."""
        if self._finish is not None:
            return self._finish
        while True:
            event = await self._next_event()
            if event.prompt_progress is not None:
                if self._shown is not None:
                    self._is_shifted = event.prompt_progress.total != len(self._prompt)
                self.cached_tokens = event.prompt_progress.cache
                self._evaluated = event.prompt_progress.processed
            elif event.stop:
                self._evaluated = len(self._prompt)
                if event.timings is not None:
                    self.cached_tokens = event.timings.cache_n
                    if self._shown is None:
                        self.prefill_s = event.timings.prompt_ms / 1000
                    self.drafted_tokens = event.timings.draft_n
                    self.accepted_tokens = event.timings.draft_n_accepted
                ended = event.stop_type == "eos"
                self._finish = Finish("stop" if ended else "length", len(self._prompt), self.cached_tokens)
                if self._silent and not ended:
                    self._emitted.extend(self._silent)
                    return Chunk(self._silent, "", cached_tokens=min(self.cached_tokens, self._cached_max))
                return self._finish
            else:
                self._evaluated = len(self._prompt)
                count = event.tokens_predicted - self._predicted
                self._predicted = event.tokens_predicted
                if self._stop_tokens and event.tokens and event.tokens[-1] in self._stop_tokens:
                    return self._stop()
                if not event.content:
                    self._silent += event.tokens
                    continue
                tokens = event.tokens if count <= 1 else await self._ids(event, count)
                if self._silent:
                    tokens, self._silent = self._silent + tokens, ()
                self._emitted.extend(tokens)
                cached_tokens = min(self.cached_tokens, self._cached_max)
                return Chunk(tokens, event.content, self._logprobs(event), cached_tokens)

    def _stop(self) -> Chunk | Finish:
        """Ends the run at a stop token, whose text is not shown; the server computes no further."""
        self._finish = Finish("stop", len(self._prompt), self.cached_tokens)
        self.close()
        if not self._silent:
            return self._finish
        self._emitted.extend(self._silent)
        return Chunk(self._silent, "", cached_tokens=min(self.cached_tokens, self._cached_max))

    async def _next_event(self) -> CompletionEvent:
        stream = self._stream
        assert stream is not None
        while True:
            raw = await stream.next()
            if raw is None:
                raise Unavailable("engine_unavailable", "The model's engine cut an answer short.")
            _, mark, data = raw.partition(b"data: ")
            if not mark:
                if raw.startswith(b"error: "):
                    raise completion_error(raw[7:])
                continue  # a comment that keeps the connection alive
            event = _DECODER.decode(data)
            if event.error is not None:
                raise completion_error(data)
            return event

    async def _ids(self, event: CompletionEvent, count: int) -> tuple[int, ...]:
        """Returns the `count` token ids behind an event's text; the event itself names only the last."""
        found = self._fragments.recover(event.content, count, event.tokens[-1])
        if len(found) == 1:
            return found[0]
        self.ids_guessed += count
        usual = tuple(await self._encode(event.content))
        return usual if usual in found or not found else found[0]

    def _logprobs(self, event: CompletionEvent) -> tuple[Json, ...]:
        if not self._top or not event.completion_probabilities:
            return ()
        return public_logprobs(event.completion_probabilities, self._top)


def read_event(answer: bytes) -> CompletionEvent:
    """Decodes the answer of a run that is not streamed."""
    return _DECODER.decode(answer)


def completion_error(answer: bytes) -> SessileError:
    """Returns llama-server's error object as one of our errors."""
    try:
        failure = msgspec.json.decode(answer, type=CompletionEvent).error or _Failure()
    except msgspec.DecodeError:
        failure = _Failure()
    if failure.type == "exceed_context_size_error":
        return BadInput("context_length_exceeded", "The prompt does not fit the model's context window.")
    if failure.type == "invalid_request_error":
        return BadInput("engine_refused", f"The model's engine refused the request: {failure.message[:200]}")
    if failure.type == "unavailable_error":
        return Unavailable("engine_unavailable", "The model's engine is not ready.")
    return Internal("engine_failed", "The model's engine failed.")
