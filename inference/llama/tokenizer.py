"""The tokenizer of a GGUF model: llama.cpp encodes, our scaffold says what is encoded.

Special tokens are parsed in scaffold strings only. Scaffold and openings are tokenised once and kept; what people and
models write goes to the server's /tokenize, which answers without waiting for the engine's steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from inference.chat_template import ChatTemplate
from inference.llama.shown_prompts import Calls, ImageLengths
from inference.llama.vocabulary import Vocabulary
from inference.template_tokenizer import ANCHOR, TemplateTokenizer
from sessions.model.errors import Internal
from sessions.model.generation import TokenizerInfo
from sessions.model.types import Tokens
from sessions.turn.images import PATCH, ImageName


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]


_DECODER: Final = msgspec.json.Decoder(_Tokenized)


class LlamaTokenizer(TemplateTokenizer):
    """Tokenizes with llama-server. Implements `Tokenizer`. `start` comes first."""

    def __init__(
        self,
        http: Calls,
        vocabulary: Vocabulary,
        template: ChatTemplate,
        lengths: ImageLengths | None = None,
        projector: str = "",
    ) -> None:
        """`lengths`: those of images, if the model sees any. `projector`: the fingerprint of what it sees them with."""
        seen = f"\0{projector}" if projector else ""
        digest = hashlib.blake2b(f"{vocabulary.digest}\0{template.source}{seen}".encode(), digest_size=12)
        bos = vocabulary.bos_id if vocabulary.adds_bos else None
        super().__init__(template, f"gguf-{digest.hexdigest()}", () if bos is None else (bos,))
        self.shown_specials = tuple(mark for mark in template.shown_specials if mark in vocabulary.specials)
        self._http = http
        self._vocabulary = vocabulary
        self._lengths = lengths
        self.sees = lengths is not None
        self._anchor: tuple[int, ...] = ()

    @property
    def about(self) -> TokenizerInfo:
        vocabulary = self._vocabulary
        named = ((vocabulary.bos_text, vocabulary.bos_id), (vocabulary.eos_text, vocabulary.eos_id))
        return TokenizerInfo(
            vocabulary_size=vocabulary.size,
            bos_token=vocabulary.bos_text or None,
            eos_token=vocabulary.eos_text or None,
            chat_template=self.template.source,
            special_ids={text: token for text, token in named if text and token is not None},
            ends=vocabulary.control_ids,
        )

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        return [self._vocabulary.pieces[token] if token < PATCH else b"" for token in tokens]

    async def start(self) -> None:
        if self._vocabulary.adds_space:
            self._anchor = await self._encode(ANCHOR, special=False)
        for around in self.template.scaffold.roles.values():
            for piece in (around.before, around.after):
                self._scaffold[piece] = await self._encode(piece, special=True)
        await self.measure()

    async def text(self, text: str) -> Tokens:
        if not self._anchor:
            return await self._encode(text, special=False)
        tokens = await self._encode(ANCHOR + text, special=False)
        if tokens[: len(self._anchor)] != self._anchor:
            return await self._encode(text, special=False)
        return tokens[len(self._anchor) :]

    async def image_length(self, image: ImageName) -> int:
        assert self._lengths is not None
        return await self._lengths.length(image)

    async def _opening_piece(self, piece: str, *, special: bool) -> Tokens:
        return await self._encode(piece, special=special)

    async def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        if not text:
            return ()
        body = msgspec.json.encode({"content": text, "add_special": False, "parse_special": special})
        status, answer = await self._http.call("POST", "/tokenize", body)
        if status != 200:
            raise Internal("tokenizer_failed", "The model's tokenizer failed.")
        return _DECODER.decode(answer).tokens
