"""Whole prompts of tokenizers whose pieces are only ever concatenated (`Tokenizer.gap` is None)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sessions.model.types import Tokens, Tool
from sessions.ports import ChatMessage


class PieceTokenizer(Protocol):
    """The part of a `Tokenizer` that makes pieces."""

    @property
    def answer_opening(self) -> Tokens: ...
    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens: ...
    async def message(self, message: ChatMessage) -> Tokens: ...


async def summed_pieces(
    tokenizer: PieceTokenizer,
    instructions: str | None,
    tools: Sequence[Tool],
    messages: Sequence[ChatMessage],
    *,
    answer: bool,
) -> Tokens:
    """Returns the ids of a whole conversation as `Tokenizer.conversation` does, by adding its pieces up."""
    tokens = [*await tokenizer.opening(instructions, tools)]
    for message in messages:
        tokens += await tokenizer.message(message)
    return (*tokens, *tokenizer.answer_opening) if answer else tuple(tokens)
