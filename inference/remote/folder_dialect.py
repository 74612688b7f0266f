"""Speaks to servers that read a model's Hugging Face folder, as vLLM's and SGLang's do: which model they have, whether
the tokenizer of our copy of that folder is theirs, and the parameters that they share.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec
import structlog

from inference.remote.dialects import (
    NOT_FOUND,
    PROBE,
    ServedModel,
    TokenizedText,
    other_tokens,
    read_answer,
    refusal,
    unlike,
)
from inference.remote.options import RemoteOptions
from inference.remote.pool import RemotePool, RemoteServer
from inference.sampling import HONOURED, direct_parameters, output_schema, token_biases, unfit_continuation
from inference.vllm.model_folder import read_vllm_model
from inference.vllm.tokenizer import VllmTokenizer, folder_template, read_tokenizer
from sessions.model.generation import GenerationRequest
from sessions.model.types import Json

log = structlog.get_logger(__name__)

_API: Final = "server of vLLM's or SGLang's"
SGLANG_RESERVED: Final = 6  # tokens of its window that SGLang fills neither with a prompt nor with an answer


class _ListedModel(msgspec.Struct, frozen=True):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: Annotated[tuple[_ListedModel, ...], msgspec.Meta(min_length=1)]


class FolderDialect:
    """The part of a dialect that vLLM's and SGLang's servers have in common."""

    sampling = HONOURED - {"logprobs", "top_logprobs"}  # their log probabilities name no ids
    holds_to_formats = False

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        self._tokenizer: VllmTokenizer | None = None
        self._ends: frozenset[int] = frozenset()  # ids with which the model ends an answer

    def probe_path(self, server: RemoteServer) -> str:
        return "/health"

    async def model_of(self, pool: RemotePool, server: RemoteServer) -> ServedModel:
        """Returns the first model that a server lists. Raises Unavailable."""
        status, answer = await pool.question(server, "GET", "/v1/models")
        if status != 200:
            raise refusal(status, server.without_key(answer))
        model = read_answer(server, answer, _Models, _API).data[0]
        window = model.max_model_len or 0
        if model.owned_by == "llamacpp":
            raise unlike(server, f"{_API} but llama-server: name its GGUF file with --model")
        if model.owned_by == "sglang":
            return ServedModel(model.id, max(0, window - SGLANG_RESERVED), kind="SGLang")
        return ServedModel(model.id, window, kind="vLLM")

    async def open_tokenizer(self, pool: RemotePool, *, images: bool) -> VllmTokenizer:
        folder = await asyncio.to_thread(read_vllm_model, self._options.tokenizer, weights_needed=False)
        template = folder_template(self._options.chat_template, folder)
        template.announce()
        tokenizer = self._tokenizer = await asyncio.to_thread(read_tokenizer, folder, template)
        await tokenizer.measure()
        ends = {*tokenizer.answer_end, tokenizer.token_id(folder.token_text("eos_token"))}
        self._ends = frozenset(end for end in ends if end is not None)
        return tokenizer

    async def check_tokenizer(self, pool: RemotePool, server: RemoteServer, model: str) -> None:
        """Checks that a server's tokenizer is that of our copy of the folder. A server without `/tokenize` cannot be
        compared: the log says so. Raises BadInput, Unavailable."""
        assert self._tokenizer is not None
        body = msgspec.json.encode({"model": model, "prompt": PROBE, "add_special_tokens": False})
        status, answer = await pool.question(server, "POST", "/tokenize", body)
        if status == NOT_FOUND:
            reason = "The server has no /tokenize."
            log.warning("tokenizer_check_skipped", server=server.name, model=model, reason=reason)
        elif status != 200:
            raise refusal(status, server.without_key(answer))
        elif read_answer(server, answer, TokenizedText, _API).tokens != tuple(await self._tokenizer.text(PROBE)):
            raise other_tokens(server, self._options.tokenizer)

    def _stops(self, request: GenerationRequest) -> frozenset[int]:
        """Returns the ids that end an answer."""
        ends = frozenset[int]() if request.sampling.ignore_eos else self._ends
        return ends.union(request.sampling.stop_token_ids)

    def _parameters(self, request: GenerationRequest, *, min_tokens: str) -> dict[str, Json]:
        """Returns the sampling parameters that both kinds of servers name alike, except for the one that the server
        calls `min_tokens`. Raises BadInput."""
        assert self._tokenizer is not None
        sampling = request.sampling
        parameters: dict[str, Json] = {
            **direct_parameters(request, repeat_penalty="repetition_penalty"),
            "stop_token_ids": sorted(self._stops(request)),
            "ignore_eos": sampling.ignore_eos,
        }
        if sampling.min_tokens:  # of the whole answer: what an earlier run decoded counts
            parameters[min_tokens] = min(max(0, sampling.min_tokens - len(request.emitted)), request.max_tokens)
        if sampling.logit_bias:
            biases = token_biases(sampling.logit_bias, self._tokenizer.vocabulary_size)
            parameters["logit_bias"] = {str(token): bias for token, bias in biases}
        return parameters

    def _schema(self, request: GenerationRequest) -> Json | None:
        """Returns the schema of the requested format; None for free text. Raises BadInput."""
        schema = output_schema(request)
        if schema is not None and request.emitted:
            raise unfit_continuation()
        return schema
