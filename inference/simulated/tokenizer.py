"""The simulated engine's tokenizer: reversible, with a chat template made of special tokens.

Words of the vocabulary are one token, everything else one token a byte. Special tokens have no spelling, so no text
can ever become one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import msgspec

from inference.simulated.vocabulary import BEGIN, CALL, END, ROLE, TOKEN_BYTES, TOOLS, WORD_IDS
from sessions.model.types import Tokens, Tool
from sessions.ports import ChatMessage

_PIECES = re.compile(r" ?[a-z]+|[^a-z ]+| +?")
_TEMPLATE = "begin; role text end; tools; call id name arguments"


def _encode(text: str) -> list[int]:
    tokens: list[int] = []
    for piece in _PIECES.findall(text):
        word = WORD_IDS.get(piece)
        if word is None:
            tokens.extend(piece.encode("utf-8", "surrogatepass"))
        else:
            tokens.append(word)
    return tokens


class SimulatedTokenizer:
    """Implements `Tokenizer`. Never waits for anything."""

    def __init__(self) -> None:
        digest = hashlib.blake2b(b"\0".join(TOKEN_BYTES) + _TEMPLATE.encode(), digest_size=8)
        self._fingerprint = f"sim-{digest.hexdigest()}"

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def starts(self) -> Tokens:
        return (BEGIN,)

    @property
    def answer_opening(self) -> Tokens:
        return (ROLE["assistant"],)

    @property
    def answer_closing(self) -> Tokens:
        return (END,)

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens:
        tokens = [BEGIN]
        if instructions is not None:
            tokens += [ROLE["system"], *_encode(instructions), END]
        for tool in tools:
            tokens += [TOOLS, *_encode(msgspec.json.encode(tool).decode()), END]
        return tuple(tokens)

    async def message(self, message: ChatMessage) -> Tokens:
        tokens = [ROLE[message.role]]
        if message.call_id is not None:
            tokens += [CALL, *_encode(f"{message.call_id} {message.name or ''}\n")]
        tokens += _encode(message.text)
        for call in message.calls:
            tokens += [CALL, *_encode("\n".join(call))]
        tokens.append(END)
        return tuple(tokens)

    async def text(self, text: str) -> Tokens:
        return tuple(_encode(text))
