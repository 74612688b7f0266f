"""The tokenizer of a GGUF model: llama.cpp encodes, our scaffold says what is encoded.

Special tokens are parsed in scaffold strings only. Scaffold and openings are tokenised once and kept; what people and
models write goes to the server's /tokenize, which answers without waiting for the engine's steps.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from inference.chat_template import ChatTemplate, call_text
from inference.http_client import HttpClient
from inference.llama.vocabulary import Vocabulary
from sessions.model.errors import Internal
from sessions.model.types import Tokens, Tool
from sessions.ports import ChatMessage

_OPENINGS_MAX: Final = 256
_ANCHOR: Final = "\n"  # SentencePiece puts its space before this and not before the text


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]


_DECODER: Final = msgspec.json.Decoder(_Tokenized)


class LlamaTokenizer:
    """Implements `Tokenizer`. `start` comes first."""

    def __init__(self, http: HttpClient, vocabulary: Vocabulary, template: ChatTemplate) -> None:
        self._http = http
        self._vocabulary = vocabulary
        self._template = template
        digest = hashlib.blake2b(f"{vocabulary.digest}\0{template.source}".encode(), digest_size=12)
        self._fingerprint = f"gguf-{digest.hexdigest()}"
        self._scaffold: dict[str, tuple[int, ...]] = {}
        self._openings: OrderedDict[tuple[str | None, bytes], tuple[int, ...]] = OrderedDict()
        self._anchor: tuple[int, ...] = ()

    async def start(self) -> None:
        if self._vocabulary.adds_space:
            self._anchor = await self._encode(_ANCHOR, special=False)
        scaffold = self._template.scaffold
        for around in scaffold.roles.values():
            for piece in (around.before, around.after):
                self._scaffold[piece] = await self._encode(piece, special=True)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def renders_tools(self) -> bool:
        return self._template.scaffold.tools

    @property
    def answer_opening(self) -> Tokens:
        return self._scaffold[self._template.scaffold.answer_opening]

    @property
    def turn_opening(self) -> Tokens:
        """What stands before a user's words: every conversation has it after its opening."""
        return self._scaffold[self._template.scaffold.roles["user"].before]

    @property
    def answer_closing(self) -> Tokens:
        return self._scaffold[self._template.scaffold.answer_closing]

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens:
        name = (instructions, msgspec.json.encode(tools))
        known = self._openings.get(name)
        if known is not None:
            self._openings.move_to_end(name)
            return known
        tokens: list[int] = []
        for piece, special in self._template.opening(instructions, tools):
            tokens += await self._encode(piece, special=special)
        bos = self._vocabulary.bos_id
        if self._vocabulary.adds_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        made = self._openings[name] = tuple(tokens)
        while len(self._openings) > _OPENINGS_MAX:
            self._openings.popitem(last=False)
        return made

    async def message(self, message: ChatMessage) -> Tokens:
        around = self._template.scaffold.roles[message.role]
        calls = (call_text(name, arguments) for _, name, arguments in message.calls)
        text = "\n".join([message.text, *calls] if message.text else calls)
        return (*self._scaffold[around.before], *await self.text(text), *self._scaffold[around.after])

    async def text(self, text: str) -> Tokens:
        if not self._anchor:
            return await self._encode(text, special=False)
        tokens = await self._encode(_ANCHOR + text, special=False)
        if tokens[: len(self._anchor)] != self._anchor:
            return await self._encode(text, special=False)
        return tokens[len(self._anchor) :]

    async def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        if not text:
            return ()
        body = msgspec.json.encode({"content": text, "add_special": False, "parse_special": special})
        status, answer = await self._http.call("POST", "/tokenize", body)
        if status != 200:
            raise Internal("tokenizer_failed", "The model's tokenizer failed.")
        return _DECODER.decode(answer).tokens
