"""Speaks to llama-server: `/completion` with token ids both ways, as our own engine does over its socket.

Its slots are its own to give out: it takes the one whose tokens have most in common with the prompt.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from inference.chat_template import ChatTemplate, template_beside, template_source
from inference.llama.completion import LlamaCompletion
from inference.llama.gguf import read_model
from inference.llama.sampling import check_stop_tokens, completion_parameters
from inference.llama.tokenizer import LlamaTokenizer
from inference.llama.vocabulary import Vocabulary, read_vocabulary
from inference.remote.dialects import (
    NOT_FOUND,
    PROBE,
    RemoteRunEnded,
    ServedModel,
    TokenizedText,
    other_tokens,
    read_answer,
    refusal,
    unlike,
)
from inference.remote.options import RemoteOptions
from inference.remote.pool import RemotePool, RemoteServer
from inference.sampling import HONOURED, unfit_continuation
from sessions.model.generation import Chunk, Finish, GenerationRequest

ANY_SLOT: Final = -1
_API: Final = "llama-server"
_SPELLING_BYTES: Final = ("gpt2", "llama")  # kinds of tokenizers, as GGUF files name them


class _Settings(msgspec.Struct, frozen=True):
    n_ctx: int = 0


class _Properties(msgspec.Struct, frozen=True):
    model_path: str
    model_alias: str = ""
    default_generation_settings: _Settings = _Settings()


class LlamaDialect:
    """Talks to llama-server. Implements `ServerDialect`."""

    build = "remote-llama/1"
    sampling = HONOURED
    holds_to_formats = False

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        self._vocabulary: Vocabulary | None = None
        self._tokenizer: LlamaTokenizer | None = None
        self._spells_bytes = False  # of each token the file says the bytes

    def probe_path(self, server: RemoteServer) -> str:
        return "/health"

    async def model_of(self, pool: RemotePool, server: RemoteServer) -> ServedModel:
        status, answer = await pool.question(server, "GET", "/props")
        if status == NOT_FOUND:
            raise unlike(server, f"{_API}: name the Hugging Face folder of the server's model with --model")
        if status != 200:
            raise refusal(status, server.without_key(answer))
        props = read_answer(server, answer, _Properties, _API)
        name = props.model_alias if props.model_alias != props.model_path else ""
        name = name or props.model_path.rpartition("/")[2].removesuffix(".gguf")
        return ServedModel(name, props.default_generation_settings.n_ctx)

    async def open_tokenizer(self, pool: RemotePool, *, images: bool) -> LlamaTokenizer:
        file = await asyncio.to_thread(read_model, self._options.tokenizer)
        vocabulary = self._vocabulary = await asyncio.to_thread(read_vocabulary, file.metadata)
        self._spells_bytes = file.metadata.get("tokenizer.ggml.model") in _SPELLING_BYTES
        missing = f"{file.path} has no chat template. Start with --chat-template chatml, which is built in."
        source = template_source(self._options.chat_template, file.chat_template or template_beside(file.path), missing)
        template = ChatTemplate(source, bos=vocabulary.bos_text, eos=vocabulary.eos_text, specials=vocabulary.specials)
        template.announce()
        self._tokenizer = LlamaTokenizer(pool, vocabulary, template)
        await self._tokenizer.start()
        return self._tokenizer

    async def check_tokenizer(self, pool: RemotePool, server: RemoteServer, model: str) -> None:
        assert self._vocabulary is not None
        if not self._spells_bytes:
            return
        text = PROBE + self._vocabulary.eos_text
        body = msgspec.json.encode({"content": text, "add_special": False, "parse_special": True})
        status, answer = await pool.question(server, "POST", "/tokenize", body)
        if status != 200:
            raise refusal(status, server.without_key(answer))
        ids, size = read_answer(server, answer, TokenizedText, _API).tokens, self._vocabulary.size
        said = b"".join(self._vocabulary.pieces[token] for token in ids if token < size)
        if said.lstrip() != text.encode():
            raise other_tokens(server, self._options.tokenizer)

    def check(self, request: GenerationRequest) -> None:
        assert self._vocabulary is not None
        check_stop_tokens(request.sampling, self._vocabulary)
        parameters = completion_parameters(request, self._vocabulary.size)
        if "json_schema" in parameters and request.emitted:
            raise unfit_continuation()

    async def run(
        self, server: RemoteServer, model: str, request: GenerationRequest
    ) -> AsyncGenerator[Chunk | RemoteRunEnded, None]:
        assert self._vocabulary is not None and self._tokenizer is not None
        completion = LlamaCompletion(
            server.http, self._vocabulary.fragments, self._tokenizer.text, ANY_SLOT, array("I", request.prompt), 1
        )
        try:
            await completion.open(completion_parameters(request, self._vocabulary.size, self._tokenizer.shown_specials))
            while not isinstance(item := await completion.next(), Finish):
                yield item
            yield RemoteRunEnded(item.reason, item.cached_tokens)
        finally:
            completion.close()
