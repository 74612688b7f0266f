"""Translates runs into requests of a server, and its events into chunks.

A dialect belongs to one kind of server (`vllm_dialect`, `sglang_dialect`, `llama_dialect`). All take a prompt as token
ids and name the ids that they decoded, so that a ledger stays true whoever goes on with it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from inference.http_client import SseReader
from inference.remote.pool import RemotePool, RemoteServer
from sessions.model.errors import BadInput, Overloaded, SessileError, Unavailable
from sessions.model.generation import Chunk, EndReason, GenerationRequest, ThoughtMarks
from sessions.model.types import SessionKey
from sessions.ports import Tokenizer

NOT_FOUND: Final = 404
PROBE: Final = "Ein Fluß, 2 bridges\n\tand a 橋 🌉."  # the text by which two tokenizers are compared
_TOO_LONG: Final = ("context", "max_model_len", "maximum allowed length")  # in refusals of a prompt
_Event = TypeVar("_Event")
_Answer = TypeVar("_Answer")


class RemoteRunEnded(NamedTuple):
    reason: EndReason
    cached_tokens: int


class ServedModel(NamedTuple):
    """A server's model, as the server reports it. `images` is None if it does not say whether the model sees them.
    `kind` is the name of the server's program, if the dialect depends on it."""

    name: str
    context_window: int
    images: bool | None = None
    kind: str = ""


class TokenizedText(msgspec.Struct, frozen=True):
    """The answer of a server's `/tokenize`."""

    tokens: tuple[int, ...]


class TemplateFacts(Protocol):
    """The properties of a chat template that engines report; see `ChatTemplate`."""

    @property
    def foldings(self) -> tuple[str, ...]: ...
    def call_format(self) -> str: ...
    def thoughts(self) -> ThoughtMarks | None: ...


class TemplatedTokenizer(Tokenizer, Protocol):
    """A tokenizer that knows its chat template."""

    @property
    def template(self) -> TemplateFacts: ...


class ServerDialect(Protocol):
    """How to speak to servers of one kind. `build` names the kind; `holds_to_formats`: such a server itself makes an
    answer follow its requested format or tool call."""

    build: str
    sampling: frozenset[str]
    holds_to_formats: bool

    def probe_path(self, server: RemoteServer) -> str:
        """Returns the path, below the server's base path, that is requested to see whether the server is alive."""
        ...

    async def model_of(self, pool: RemotePool, server: RemoteServer) -> ServedModel:
        """Returns the model that a server serves. Raises Unavailable."""
        ...

    async def open_tokenizer(self, pool: RemotePool, *, images: bool) -> TemplatedTokenizer:
        """Makes the tokenizer, for a model that sees `images` or not. Raises BadInput, Unavailable."""
        ...

    async def check_tokenizer(self, pool: RemotePool, server: RemoteServer, model: str) -> None:
        """Raises BadInput where a server's token ids are not those of the tokenizer, Unavailable where it does not
        answer."""
        ...

    def check(self, request: GenerationRequest) -> None:
        """Raises BadInput for a request that such a server cannot honour."""
        ...

    def run(
        self, server: RemoteServer, model: str, request: GenerationRequest
    ) -> AsyncGenerator[Chunk | RemoteRunEnded, None]:
        """Yields chunks, then one RemoteRunEnded. Raises Unavailable where the server is gone or broke off the run."""
        ...


def read_answer(server: RemoteServer, answer: bytes, kind: type[_Answer], api: str) -> _Answer:
    """Reads a server's short answer. Raises Unavailable where such an API never answers so."""
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise unlike(server, api) from None


def unlike(server: RemoteServer, api: str) -> Unavailable:
    """Makes the error for an address where something else answers than a server with this API."""
    return Unavailable("engine_unavailable", f"What answers at {server.name} is no {api}.")


def other_tokens(server: RemoteServer, own: object) -> BadInput:
    """Makes the error for a server whose token ids mean something else in our own copy of the tokenizer."""
    what = f"The model at {server.name} tokenises otherwise than {own}: name the tokenizer of its model with --model."
    return BadInput("bad_model_file", what, param="model")


def refusal(status: int, answer: bytes, retry_after: str = "") -> SessileError:
    """Returns the error for a refused request. For status 429 and 5xx it is retryable, as another server may take the
    request. `retry_after`: the header's value; only its form in seconds is read."""
    try:
        body: Any = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = {}
    error = body.get("error", body) if isinstance(body, dict) else {}
    message = str(error.get("message", error.get("detail", "")) if isinstance(error, dict) else error)[:200]
    wait_ms = max(1, int(retry_after)) * 1000 if re.fullmatch("[0-9]{1,5}", retry_after) else None
    if status == 429:
        return Overloaded("overloaded", "The model is busy. Try again shortly.", retry_after_ms=wait_ms or 1000)
    if status in (401, 403):
        return Unavailable("engine_unavailable", "The model's server refuses the key of --engine-key-file.")
    if status < 400 or status >= 500 or status == NOT_FOUND:
        what = f"The model's server answers with {status}."
        return Unavailable("engine_unavailable", what, retry_after_ms=wait_ms)
    if any(words in message for words in _TOO_LONG):
        return BadInput("context_length_exceeded", "The prompt does not fit the model's context window.")
    return BadInput("engine_refused", f"The model's engine refused the request: {message}")


def read_event(decoder: msgspec.json.Decoder[_Event], data: bytes) -> _Event:
    """Reads the data of one event of a server's stream. Raises Unavailable for what such a server never sends."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unavailable("engine_unavailable", "The model's server sends what is no answer.") from error


async def next_event(stream: SseReader, decoder: msgspec.json.Decoder[_Event]) -> _Event | None:
    """Reads the next event of a server's stream; None at its end. Raises Unavailable."""
    while (raw := await stream.next()) is not None:
        data = raw.partition(b"data: ")[2]
        if data == b"[DONE]":
            return None
        if data:
            return read_event(decoder, data)
    return None


def cache_namespace(key: SessionKey) -> str:
    """Returns the name under which a server keeps a session's prefixes: one for each tenant."""
    return hashlib.blake2b(key.tenant.encode(), digest_size=16).hexdigest()
