"""Runs the rest of an answer on llama-server a request a token, each held to what its grammar allows, if it has one.

It costs a request's way for every token (a millisecond or two beside the step itself): in a fixed format after a
failure, or where llama-server itself keeps none, and where log probabilities were asked for once a character takes
several tokens, never before. The prompt is computed once: every request after the first finds all of it but the last
token in its slot.

llama-server says nothing of the probabilities of a token that ends inside a character. They are looked up: the same
place once more, with a whole character forced, shows what every token's were.
"""

from __future__ import annotations

import array
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec

from inference.http_client import HttpClient
from inference.llama.completion import CompletionEvent, LlamaCompletion, completion_error, read_event
from inference.llama.grammar_guide import LIFT, Guide
from inference.llama.sampling import SEED_BITS, STOP_TOKENS, public_logprobs
from inference.llama.shown_prompts import ShownPrompt
from inference.llama.vocabulary import ByteFragments
from sessions.model.errors import Internal, Unavailable
from sessions.model.generation import Chunk, Finish
from sessions.model.types import Json, Tokens

_FIELDS: Final = ["content", "tokens", "stop_type", "timings", "completion_probabilities"]
_LIKELY: Final = 256  # tokens that an answer's next one is nearly always among
_FORCED: Final = 5 * LIFT
_SEED_STEP: Final = 0x9E37_79B9  # a step's seed is its place's: the same one would draw the same quantile every time


def make_completion(
    http: HttpClient,
    fragments: ByteFragments,
    encode: Callable[[str], Awaitable[Tokens]],
    guide: Guide | None,
    slot_number: int,
    prompt: array.array[int],
    resident: int,
    cached_max: int,
    shown: ShownPrompt | None = None,
) -> LlamaCompletion:
    """Makes a run in a slot; with a `guide`, one that sends a request for each token."""
    if guide is None:
        return LlamaCompletion(http, fragments, encode, slot_number, prompt, resident, cached_max, shown)
    return GuidedCompletion(guide, http, fragments, encode, slot_number, prompt, resident, cached_max, shown)


class GuidedCompletion(LlamaCompletion):
    """A `LlamaCompletion` whose grammar runs in this process: it sends a request for each token, until `max_tokens` or
    the answer's end."""

    def __init__(self, guide: Guide, *given: Any) -> None:
        super().__init__(*given)
        self._guide = guide
        self._parameters: dict[str, Json] = {}
        self._left = 0
        self._hung_up = False

    @property
    def held(self) -> array.array[int]:
        if self._shown is None:
            return super().held
        return self._prompt[: self._evaluated]  # the server has made its own tokens of the answer's text

    async def open(self, parameters: dict[str, Json]) -> None:
        self._top = int(parameters.get("n_probs", 0))
        self._stop_tokens = frozenset(parameters.get(STOP_TOKENS, ()))
        self._parameters = {
            **parameters,
            "n_predict": 1,
            "id_slot": self._slot_number,
            "return_tokens": True,
            "response_fields": _FIELDS,
        }
        self._parameters.pop("json_schema", None)
        self._left = parameters["n_predict"]
        self.cached_tokens = self._resident  # until the server has said how much it reused

    def close(self) -> None:
        self._hung_up = True

    async def next(self) -> Chunk | Finish:
        while self._finish is None:
            if self._hung_up:
                raise Unavailable("engine_unavailable", "The model's engine cut an answer short.")
            if self._guide.complete or not self._left:
                return self._end("stop" if self._guide.complete else "length")
            event = await self._step()
            if event.stop_type == "eos" or event.tokens[-1] in self._stop_tokens:
                return self._end("stop")
            logprobs = self._logprobs(event)
            if self._top and not logprobs:
                logprobs = await self._look_up(event.tokens[-1])
            self._left -= 1
            self._emitted.extend(event.tokens)
            text = self._guide.accept(event.tokens[-1])
            return Chunk(event.tokens, text, logprobs, min(self.cached_tokens, self._cached_max))
        return self._finish

    async def _look_up(self, token: int) -> tuple[Json, ...]:
        """Returns the log probability of a chosen token together with those of the likeliest tokens; of all tokens if
        it is not among the likeliest."""
        whole, size = (await self._encode("a"))[-1], self._guide.vocabulary_size
        for count in (min(_LIKELY, size), size):
            event = await self._ask({"n_probs": count, "logit_bias": [[whole, _FORCED]]})
            shown = (event.completion_probabilities or [{}])[0].get("top_logprobs", [])
            for entry in shown:
                if entry["id"] == token:
                    return public_logprobs([{**entry, "top_logprobs": shown}], self._top)
        raise Internal("engine_failed", "The model's engine does not say how probable its token was.")

    async def _step(self) -> CompletionEvent:
        event = await self._ask({})
        self._evaluated = len(self._prompt)
        if not self._emitted and event.timings is not None:
            self.cached_tokens = event.timings.cache_n
            if self._shown is None:
                self.prefill_s = event.timings.prompt_ms / 1000
        return event

    async def _ask(self, more: dict[str, Json]) -> CompletionEvent:
        body = await asyncio.to_thread(self._body, more)
        status, answer = await self._http.call("POST", "/completion", body)
        if status != 200:
            raise completion_error(answer)
        return await asyncio.to_thread(read_event, answer)

    def _body(self, more: dict[str, Json]) -> bytes:
        """Returns a request's JSON. Blocking: where a grammar allows half of a large vocabulary it is megabytes."""
        prompt = self._prompt + self._emitted if self._emitted else self._prompt
        body = {
            **self._parameters,
            "seed": (self._parameters.get("seed", 0) + _SEED_STEP * len(prompt)) & SEED_BITS,
            "prompt": self._prompt_body(prompt),
            "cache_prompt": bool(self._resident or self._emitted),
            **(more or {"logit_bias": self._guide.biases()}),
        }
        return msgspec.json.encode(body)

    def _end(self, reason: Literal["stop", "length"]) -> Finish:
        self._finish = Finish(reason, len(self._prompt), self.cached_tokens)
        return self._finish
