"""The simulated engine's tokenizer: reversible, with a chat template made of special tokens.

Words of the vocabulary are one token, everything else one token a byte. Special tokens have no spelling, so no text
can ever become one.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from inference.simulated.vocabulary import BEGIN, CALL, END, ROLE, TOKEN_BYTES, TOOLS, WORD_IDS
from inference.summed_pieces import PieceTokenizer
from sessions.model.generation import TokenizerInfo
from sessions.model.types import Tokens, Tool
from sessions.ports import ChatMessage
from sessions.turn.images import NAME_IDS, PATCH, ImageName, image_ids, named_parts, patches_of

_PIECES = re.compile(r" ?[a-z]+|[^a-z ]+| +?")
_TEMPLATE = "begin; role text end; tools; call id name arguments"
_PIECE_BEGIN = re.compile(r" |(?<=[a-z])[^a-z]")  # a place that always begins one
_INLINE_CHARS_MAX: Final = 8_192  # encoded in a millisecond or so


def _encode(text: str) -> list[int]:
    tokens: list[int] = []
    for piece in _PIECES.findall(text):
        word = WORD_IDS.get(piece)
        if word is None:
            tokens.extend(piece.encode("utf-8", "surrogatepass"))
        else:
            tokens.append(word)
    return tokens


class SimulatedTokenizer(PieceTokenizer):
    """A tokenizer over the simulated vocabulary. Implements `Tokenizer`."""

    starts: Tokens = (BEGIN,)
    answer_opening: Tokens = (ROLE["assistant"],)
    answer_closing: Tokens = (END,)
    about = TokenizerInfo(vocabulary_size=len(TOKEN_BYTES), ends=frozenset({END}))

    def __init__(self, *, images: bool = False) -> None:
        digest = hashlib.blake2b(b"\0".join(TOKEN_BYTES) + _TEMPLATE.encode(), digest_size=8)
        self.fingerprint = f"sim-{digest.hexdigest()}{'-images' if images else ''}"
        self._lock = asyncio.Lock()

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens:
        tokens = [BEGIN]
        if instructions is not None:
            tokens += [ROLE["system"], *await self._in_parts(instructions), END]
        for tool in tools:
            tokens += [TOOLS, *await self._in_parts(msgspec.json.encode(tool).decode()), END]
        return tuple(tokens)

    async def message(self, message: ChatMessage) -> Tokens:
        tokens = [ROLE[message.role]]
        if message.call_id is not None:
            tokens += [CALL, *await self._in_parts(f"{message.call_id} {message.name or ''}\n")]
        for part in named_parts(message):
            if isinstance(part, ImageName):
                tokens += image_ids(part.sha256, max(NAME_IDS, patches_of(part)))
            else:
                tokens += await self._in_parts(part)
        for call in message.calls:
            tokens += [CALL, *await self._in_parts("\n".join(call))]
        tokens.append(END)
        return tuple(tokens)

    async def text(self, text: str) -> Tokens:
        return tuple(await self._in_parts(text))

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        return [TOKEN_BYTES[token] if token < PATCH else b"" for token in tokens]

    async def _in_parts(self, text: str) -> list[int]:
        """Tokenizes a long text in parts, so that other tasks run in between; under a lock, so that these do not
        tokenize other long texts."""
        if len(text) <= _INLINE_CHARS_MAX:
            return _encode(text)
        tokens: list[int] = []
        begin = 0
        async with self._lock:
            while cut := _PIECE_BEGIN.search(text, begin + _INLINE_CHARS_MAX):
                tokens += _encode(text[begin : cut.start()])
                begin = cut.start()
                await asyncio.sleep(0)
            return tokens + _encode(text[begin:])
