"""Embeddings from a server that speaks OpenAI's API.

Inputs go in pieces of `PIECE_INPUTS`, one after the other, at most `concurrency` requests at a time for all tenants
together, tried once more where the server says that it is busy. What comes back is checked: as many vectors as inputs,
each of the dimensions that the file says, and brought to length 1. What is said of a failure has no address, header or
error of theirs.
"""

from __future__ import annotations

import asyncio
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from inference.embedding.frames import embeddings_unavailable
from inference.embedding.models_file import EndpointModel
from inference.tools.outbound import ToolHttpClient, ToolUnanswered, ToolUnreached
from inference.tools.secrets import header_values
from sessions.model.errors import BadInput, Overloaded
from sessions.model.types import TenantId
from sessions.public_addresses import AddressRules
from sessions.retrieval.embedding import EmbeddingInput, EmbeddingModel, Embeddings, Ranking, TokenSpans

log = structlog.get_logger(__name__)

PIECE_INPUTS: Final = 64
WAITING_MAX: Final = 256
ATTEMPTS: Final = 2
PAUSE_S: Final = 0.5
_ANSWER_BYTES_MAX: Final = 64 << 20
_BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_PIECE: Final = re.compile(r"\w{1,4}|[^\w\s]")  # no tokenizer that we know of makes more of a text


class EndpointEmbedder:
    """An embedding model of the file, computed by an external server. Usable while its client is open."""

    def __init__(
        self,
        name: str,
        given: EndpointModel,
        client: ToolHttpClient,
        rules: AddressRules,
        environment: Mapping[str, str],
    ) -> None:
        self.model: EmbeddingModel = given.about(name)
        self._given = given
        self._client = client
        self._rules = rules
        self._environment = environment
        self._room = asyncio.Semaphore(given.concurrency)
        self._waiting = 0

    async def embed(self, tenant: TenantId, inputs: Sequence[EmbeddingInput], dimensions: int | None) -> Embeddings:
        pieces = [inputs[at : at + PIECE_INPUTS] for at in range(0, len(inputs), PIECE_INPUTS)]
        answers = [await self._embed(piece, dimensions) for piece in pieces]
        return Embeddings(
            tuple(vector for each in answers for vector in each.vectors), sum(each.tokens for each in answers)
        )

    async def rank(self, tenant: TenantId, query: str, documents: Sequence[str]) -> Ranking:
        raise BadInput("unsupported_parameter", f"{self.model.name} ranks no documents.", param="model")

    async def decode(self, tenant: TenantId, inputs: Sequence[EmbeddingInput]) -> list[str]:
        texts = [input_ for input_ in inputs if isinstance(input_, str)]
        if len(texts) < len(inputs):
            what = f"{self.model.name} is sent texts: its token ids mean nothing here."
            raise BadInput("invalid_request", what, param="input")
        return texts

    async def split(self, tenant: TenantId, text: str) -> TokenSpans:
        spans = [match.span() for match in _PIECE.finditer(text)]
        return TokenSpans(tuple(begin for begin, _ in spans), tuple(end for _, end in spans))

    async def _embed(self, inputs: Sequence[EmbeddingInput], dimensions: int | None) -> Embeddings:
        body: dict[str, Any] = {
            "model": self._given.model or self.model.name,
            "input": [each if isinstance(each, str) else list(each) for each in inputs],
            "encoding_format": "float",
        }
        if dimensions is not None and self.model.resizes:
            body["dimensions"] = dimensions
        answer = await self._ask(body)
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            if [row["index"] for row in rows] != list(range(len(inputs))):
                raise ValueError("another number of vectors than of inputs")
            vectors = tuple(_unit(row["embedding"], dimensions or self.model.dimensions) for row in rows)
            tokens = int((answer.get("usage") or {}).get("prompt_tokens") or 0)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._nonsense(error) from error
        return Embeddings(vectors, tokens)

    async def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        if self._waiting >= WAITING_MAX:
            raise Overloaded("embeddings_full", "Too many texts wait to be embedded.", retry_after_ms=2_000)
        self._waiting += 1
        try:
            async with self._room:
                return await self._tried(msgspec.json.encode(body))
        finally:
            self._waiting -= 1

    async def _tried(self, body: bytes) -> dict[str, Any]:
        given = self._given
        try:
            given_headers = await asyncio.to_thread(header_values, given.headers, self._environment)
        except (OSError, ValueError) as error:
            log.error("embedding_secret_missing", model=self.model.name, error=str(error))
            raise embeddings_unavailable("The embedding model's server cannot be called.") from error
        why = "does not answer"
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(PAUSE_S)
            try:
                answer = await self._client.send(
                    "POST",
                    f"{given.url.rstrip('/')}/embeddings",
                    self._rules,
                    body=body,
                    headers={**given_headers.values, "content-type": "application/json"},
                    timeout_s=given.timeout_s,
                    bytes_max=_ANSWER_BYTES_MAX,
                )
            except (ToolUnreached, ToolUnanswered) as error:
                why = str(error)
                continue
            if answer.status in _BUSY:
                why = f"answers {answer.status}"
                continue
            if answer.status == 400:
                raise BadInput("invalid_request", "The embedding model's server refuses these inputs.", param="input")
            if answer.status != 200 or answer.cut:
                why = f"answers {answer.status}"
                break
            try:
                return msgspec.json.decode(answer.body, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise self._nonsense(error) from error
        log.warning("embedding_server_failed", model=self.model.name, reason=why)
        raise embeddings_unavailable("The embedding model's server does not answer as it should.")

    def _nonsense(self, error: Exception) -> Exception:
        log.warning("embedding_server_failed", model=self.model.name, reason=f"what it answers is none: {error!r}")
        return embeddings_unavailable("The embedding model's server does not answer as it should.")


def _unit(values: Sequence[float], dimensions: int) -> bytes:
    """Returns a vector scaled to length 1, as bytes. Raises ValueError if it has another number of dimensions than
    `dimensions`."""
    if len(values) != dimensions:
        raise ValueError(f"a vector of {len(values)} dimensions")
    length = math.sqrt(sum(value * value for value in values))
    if not math.isfinite(length) or length < 1e-12:
        raise ValueError("a vector without a length")
    return array("f", [value / length for value in values]).tobytes()
