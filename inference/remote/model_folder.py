"""Asks a server that reads a model's Hugging Face folder, as vLLM and SGLang do, which model it has, and opens the
tokenizer of our copy of that folder, which must agree with the server's.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, NamedTuple

import msgspec
import structlog

from inference.remote.dialects import ServedModel, other_tokens, read_answer, refusal, unlike
from inference.remote.options import RemoteOptions
from inference.remote.pool import RemotePool, RemoteServer
from inference.vllm.model_folder import read_vllm_model
from inference.vllm.tokenizer import VllmTokenizer, folder_template, read_tokenizer

log = structlog.get_logger(__name__)

API: Final = "server of vLLM's or SGLang's"
PROBE: Final = "Ein Fluß, 2 bridges\n\tand a 橋 🌉."
NOT_FOUND: Final = 404
SGLANG_RESERVED: Final = 6  # tokens of its window that SGLang fills neither with a prompt nor with an answer


class TokenizedText(msgspec.Struct, frozen=True):
    """The answer of a server's `/tokenize`."""

    tokens: tuple[int, ...]


class _ListedModel(msgspec.Struct, frozen=True):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: Annotated[tuple[_ListedModel, ...], msgspec.Meta(min_length=1)]


class FolderTokenizer(NamedTuple):
    """The tokenizer of a model's folder, and the ids with which the model ends an answer."""

    tokenizer: VllmTokenizer
    ends: frozenset[int]


async def listed_model(pool: RemotePool, server: RemoteServer) -> ServedModel:
    """Returns the first model that a server lists. Raises Unavailable."""
    status, answer = await pool.question(server, "GET", "/v1/models")
    if status != 200:
        raise refusal(status, server.without_key(answer))
    model = read_answer(server, answer, _Models, API).data[0]
    window = model.max_model_len or 0
    if model.owned_by == "llamacpp":
        raise unlike(server, f"{API} but llama-server: name its GGUF file with --model")
    if model.owned_by == "sglang":
        return ServedModel(model.id, max(0, window - SGLANG_RESERVED), kind="SGLang")
    return ServedModel(model.id, window, kind="vLLM")


async def open_folder_tokenizer(options: RemoteOptions) -> FolderTokenizer:
    """Reads the tokenizer of a model's folder. Raises BadInput."""
    folder = await asyncio.to_thread(read_vllm_model, options.tokenizer, weights_needed=False)
    template = folder_template(options.chat_template, folder)
    template.announce()
    tokenizer = await asyncio.to_thread(read_tokenizer, folder, template)
    await tokenizer.measure()
    ends = {*tokenizer.answer_end, tokenizer.token_id(folder.token_text("eos_token"))}
    return FolderTokenizer(tokenizer, frozenset(end for end in ends if end is not None))


async def check_folder_tokenizer(
    options: RemoteOptions, tokenizer: VllmTokenizer, pool: RemotePool, server: RemoteServer, model: str
) -> None:
    """Checks that a server's tokenizer is that of our copy of the folder. A server without `/tokenize` cannot be
    compared: the log says so. Raises BadInput, Unavailable."""
    body = msgspec.json.encode({"model": model, "prompt": PROBE, "add_special_tokens": False})
    status, answer = await pool.question(server, "POST", "/tokenize", body)
    if status == NOT_FOUND:
        reason = "The server has no /tokenize."
        log.warning("tokenizer_check_skipped", server=server.name, model=model, reason=reason)
    elif status != 200:
        raise refusal(status, server.without_key(answer))
    elif read_answer(server, answer, TokenizedText, API).tokens != tuple(await tokenizer.text(PROBE)):
        raise other_tokens(server, options.tokenizer)
