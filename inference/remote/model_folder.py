"""Asks a server that reads a model's Hugging Face folder, as vLLM and SGLang do, which model it has, and opens the
tokenizer of our copy of that folder, which must agree with the server's.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from inference.remote.dialects import ServedModel, refusal
from inference.remote.options import RemoteOptions
from inference.remote.pool import RemotePool, RemoteServer
from inference.vllm.model_folder import read_vllm_model
from inference.vllm.tokenizer import VllmTokenizer, folder_template, read_tokenizer
from sessions.model.errors import BadInput, Unavailable

log = structlog.get_logger(__name__)

PROBE: Final = "Ein Fluß, 2 bridges\n\tand a 橋 🌉."
NOT_FOUND: Final = 404
SGLANG_RESERVED: Final = 6  # tokens of its window that SGLang fills neither with a prompt nor with an answer


class FolderTokenizer(NamedTuple):
    """The tokenizer of a model's folder, and the ids with which the model ends an answer."""

    tokenizer: VllmTokenizer
    ends: frozenset[int]


async def listed_model(pool: RemotePool, server: RemoteServer) -> ServedModel:
    """Returns the first model that a server lists. Raises Unavailable."""
    status, answer = await pool.question(server, "GET", "/v1/models")
    if status != 200:
        raise refusal(status, server.without_key(answer))
    first = msgspec.json.decode(answer)["data"][0]
    name, window = str(first["id"]), int(first.get("max_model_len") or 0)
    if first.get("owned_by") == "sglang":
        return ServedModel(name, max(0, window - SGLANG_RESERVED), kind="SGLang")
    return ServedModel(name, window, kind="vLLM")


async def open_folder_tokenizer(options: RemoteOptions, pool: RemotePool, model: str) -> FolderTokenizer:
    """Reads the tokenizer of a model's folder and checks that a server's is the same. A server without `/tokenize`
    cannot be compared: the log says so. Raises BadInput, Unavailable."""
    folder = await asyncio.to_thread(read_vllm_model, options.tokenizer, weights_needed=False)
    template = folder_template(options.chat_template, folder)
    template.announce()
    tokenizer = await asyncio.to_thread(read_tokenizer, folder, template)
    await tokenizer.measure()
    body = msgspec.json.encode({"model": model, "prompt": PROBE, "add_special_tokens": False})
    status, answer = await pool.call("POST", "/tokenize", body)
    if status == NOT_FOUND:
        log.warning("tokenizer_check_skipped", model=model, reason="The server has no /tokenize.")
    elif status != 200:
        raise refusal(status, pool.servers[0].without_key(answer))
    elif _token_ids(answer) != tuple(await tokenizer.text(PROBE)):
        raise BadInput(
            "bad_model_file",
            f"The servers' model {model!r} tokenises otherwise than {options.tokenizer}: name the folder of that model"
            " with --model.",
            param="model",
        )
    ends = {*tokenizer.answer_end, tokenizer.token_id(folder.token_text("eos_token"))}
    return FolderTokenizer(tokenizer, frozenset(end for end in ends if end is not None))


def _token_ids(answer: bytes) -> tuple[int, ...]:
    try:
        body: Any = msgspec.json.decode(answer)
        return tuple(body["tokens"])
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise Unavailable("engine_unavailable", "The model's server answers /tokenize with no tokens.") from error
