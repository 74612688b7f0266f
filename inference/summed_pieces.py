"""Holds what tokenizers have in common that concatenate pieces only (`Tokenizer.gap` is None)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from sessions.model.types import Tokens, Tool, UnixMs
from sessions.ports import ChatMessage


class PieceTokenizer(ABC):
    """A tokenizer whose prompts are the sums of their pieces. The server's own texts have no special tokens."""

    @property
    @abstractmethod
    def answer_opening(self) -> Tokens: ...

    @property
    def gap(self) -> int | None:
        return None

    @abstractmethod
    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens: ...

    @abstractmethod
    async def message(self, message: ChatMessage) -> Tokens: ...

    @abstractmethod
    async def text(self, text: str) -> Tokens: ...

    async def scaffold(self, text: str) -> Tokens:
        return await self.text(text)

    async def conversation(
        self,
        instructions: str | None,
        tools: Sequence[Tool],
        messages: Sequence[ChatMessage],
        at: UnixMs,
        *,
        answer: bool,
        thinking: str = "",
    ) -> Tokens:
        tokens = [*await self.opening(instructions, tools)]
        for message in messages:
            tokens += await self.message(message)
        return (*tokens, *self.answer_opening) if answer else tuple(tokens)
