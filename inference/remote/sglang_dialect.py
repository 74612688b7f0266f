"""Speaks to SGLang's own server: its native `/generate` with token ids both ways, streamed.

An event brings all ids so far, or only the new ones, as the server is started; `_IdReader` reads both by the count
beside them. The text is made here, from the ids: SGLang's own text loses a character that a continued answer had half.
Its prefix cache is kept apart by tenant (`extra_key`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from inference.remote.dialects import RemoteRunEnded, cache_namespace, next_event, refusal
from inference.remote.folder_dialect import FolderDialect
from inference.remote.options import RemoteOptions
from inference.remote.pool import RemotePool, RemoteServer
from inference.tokens import Utf8Stream
from inference.vllm.tokenizer import VllmTokenizer
from sessions.model.errors import BadInput, SessileError, Unavailable
from sessions.model.generation import Chunk, EndReason, GenerationRequest
from sessions.model.types import Json, Tokens

NO_IDS: Final = "The model's server names no token ids: SGLang does from 0.5.3 on."
REPEAT_PENALTY_MAX: Final = 2.0
_NEUTRAL: Final[dict[str, Json]] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
_SEED_BITS: Final = 0x7FFF_FFFF
_CHARACTER_TOKENS: Final = 8  # at least as many as can share a character
_BAD_REQUEST, _BUSY, _QUEUE_FULL = 400, 429, 503
_NO_NUMBERS: Final = "NaN happened"  # in the place of a stop string, of which we send none


class _End(msgspec.Struct, frozen=True):
    type: str = ""
    matched: Any = None
    message: str | None = None
    status_code: int | None = None


class _Meta(msgspec.Struct, frozen=True):
    finish_reason: _End | None = None
    completion_tokens: int = 0
    cached_tokens: int = 0


class _Event(msgspec.Struct, frozen=True):
    output_ids: tuple[int, ...] | None = None
    meta_info: _Meta = _Meta()
    error: Any = None


class _Recommended(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parameters in a model's `generation_config.json`, as its authors recommend them."""

    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: int | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=REPEAT_PENALTY_MAX)] | None = None


_DECODER: Final = msgspec.json.Decoder(_Event)
_ENCODER: Final = msgspec.json.Encoder()


class SglangDialect(FolderDialect):
    """Talks to SGLang's server. Implements `ServerDialect`."""

    build = "remote-sglang/1"

    def __init__(self, options: RemoteOptions) -> None:
        super().__init__(options)
        self._hidden: frozenset[int] = frozenset()  # special tokens, unless they are text
        self._defaults: dict[str, Json] = {}

    async def open_tokenizer(self, pool: RemotePool, *, images: bool) -> VllmTokenizer:
        self._defaults = await asyncio.to_thread(_recommended, self._options.tokenizer)
        tokenizer = await super().open_tokenizer(pool, images=images)
        self._hidden = frozenset() if tokenizer.shows_specials else tokenizer.special_ids
        return tokenizer

    def check(self, request: GenerationRequest) -> None:
        self._body(request)

    async def run(
        self, server: RemoteServer, model: str, request: GenerationRequest
    ) -> AsyncGenerator[Chunk | RemoteRunEnded, None]:
        body = _ENCODER.encode(self._body(request))
        status, answer, stream = await server.http.stream(f"{server.path}/generate", body)
        try:
            if status != 200:
                raise refusal(status, server.without_key(answer), stream.header("retry-after"))
            ids, cached = _IdReader(request.prompt), 0
            text = Utf8Stream(self._pieces(request.emitted[-_CHARACTER_TOKENS:]))
            stops = self._stops(request)  # SGLang looks at none of them if it is to ignore the model's end
            while (event := await next_event(stream, _DECODER)) is not None:
                end = event.meta_info.finish_reason
                if event.error is not None or (end is not None and (end.type == "abort" or end.matched == _NO_NUMBERS)):
                    raise _failure(server, event, begun=ids.count > 0)
                if event.output_ids is None:
                    raise BadInput("engine_refused", NO_IDS)
                tokens, reason = _ended(ids.new(event.output_ids, event.meta_info.completion_tokens), end, stops)
                cached = min(event.meta_info.cached_tokens, len(request.prompt))
                if tokens:
                    yield Chunk(tokens, "".join(map(text.feed, self._pieces(tokens))), cached_tokens=cached)
                if reason is not None:
                    yield RemoteRunEnded(reason, cached)
                    return
            raise Unavailable("engine_unavailable", "The model's server cut an answer short.")
        finally:
            stream.close()

    def _pieces(self, tokens: Tokens) -> list[bytes]:
        """Returns the bytes of each token in an answer's text."""
        assert self._tokenizer is not None
        pieces = self._tokenizer.pieces(tokens)
        return [b"" if token in self._hidden else piece for token, piece in zip(tokens, pieces, strict=True)]

    def _body(self, request: GenerationRequest) -> dict[str, Json]:
        penalty = request.sampling.repeat_penalty
        if penalty is not None and penalty > REPEAT_PENALTY_MAX:
            what = f"SGLang takes a repeat_penalty of at most {REPEAT_PENALTY_MAX:g}."
            raise BadInput("unsupported_parameter", what, param="repeat_penalty")
        parameters: dict[str, Json] = {
            **_NEUTRAL,
            **self._defaults,
            **self._parameters(request, min_tokens="min_new_tokens"),
            "max_new_tokens": request.max_tokens,
            "sampling_seed": request.seed & _SEED_BITS,
            "stop": [],
        }
        if parameters["top_k"] < 1:
            parameters["top_k"] = -1
        if (schema := self._schema(request)) is not None:
            parameters["json_schema"] = _ENCODER.encode(schema).decode()
        return {
            "input_ids": list(request.prompt),
            "sampling_params": parameters,
            "stream": True,
            "extra_key": cache_namespace(request.key),
        }


class _IdReader:
    """Reads the new ids from each event of an answer: those behind the `count` that earlier events brought.

        cumulative     [7] of 1    [7, 8, 9] of 3       -> (7,)  (8, 9)
        incremental    [7] of 1       [8, 9] of 3       -> (7,)  (8, 9)

    Some releases put the last ids of the prompt before an answer's first ones: these are dropped.
    """

    def __init__(self, prompt: Tokens) -> None:
        self._prompt = prompt
        self._num_before = 0  # ids of the prompt before those of the answer
        self.count = 0

    def new(self, ids: tuple[int, ...], total: int) -> tuple[int, ...]:
        """Returns the new ids of an event with these `ids`, after which the answer has `total`. Raises Unavailable
        where some are missing, as in releases that lose them when they are busy."""
        if self.count == 0 and 0 < (before := len(ids) - total) <= len(self._prompt):
            self._num_before = before if tuple(self._prompt[-before:]) == ids[:before] else 0
        if len(ids) >= self._num_before + total:
            new = ids[self._num_before + self.count : self._num_before + total]
        else:
            new = ids
        self.count += len(new)
        if self.count != total:
            raise Unavailable("engine_unavailable", "The model's server lost tokens of an answer.")
        return new


def _ended(
    tokens: tuple[int, ...], end: _End | None, stops: frozenset[int]
) -> tuple[tuple[int, ...], EndReason | None]:
    """Returns an event's new ids up to what ends the answer, and why it ends; None if it goes on. The model may have
    ends that only the server knows."""
    stop = next((at for at, token in enumerate(tokens) if token in stops), None)
    if stop is not None:
        return tokens[:stop], "stop"
    if end is None:
        return tokens, None
    if end.type == "length":
        return tokens, "length"
    return tokens[:-1] if tokens[-1:] == (end.matched,) else tokens, "stop"


def _failure(server: RemoteServer, event: _Event, *, begun: bool) -> SessileError:
    """Returns the error for an answer that a server refuses or breaks off with this event."""
    end = event.meta_info.finish_reason
    if end is not None and end.type == "abort":
        status, message = end.status_code, end.message
    elif end is not None:
        status, message = None, None
    else:
        error = event.error if isinstance(event.error, dict) else {"message": event.error}
        status, message = error.get("code"), error.get("message")
        status = status if isinstance(status, int) else _BAD_REQUEST
    if begun or status is None:
        return Unavailable("engine_unavailable", "The model's server broke an answer off.")
    answer = _ENCODER.encode({"error": {"message": str(message or "")}})
    return refusal(_BUSY if status == _QUEUE_FULL else status, server.without_key(answer))


def _recommended(folder: Path) -> dict[str, Json]:
    """Returns the parameters that a model's authors recommend for a request that leaves them out, which vLLM's server
    reads by itself. Blocking. Raises BadInput that names the file."""
    file = folder / "generation_config.json"
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_Recommended) if file.is_file() else _Recommended()
    except (OSError, msgspec.DecodeError) as error:
        what = f"{file} cannot be read ({error}). Fetch it anew, or leave it out."
        raise BadInput("bad_model_file", what, param="model") from error
    return msgspec.to_builtins(found)  # type: ignore[no-any-return]
