"""What tokenizers of real models share: the scaffold of a chat template, and openings that are tokenised once and kept.

Special tokens are parsed in scaffold strings only; how a string becomes tokens is the engine's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from inference.chat_template import ChatTemplate, call_text
from sessions.model.types import Tokens, Tool
from sessions.ports import ChatMessage

ANCHOR: Final = "\n"  # SentencePiece puts its space before this and not before the text
OPENINGS_MAX: Final = 256


class TemplateTokenizer(ABC):
    """Implements `Tokenizer` but for `text`, `about` and `pieces`.

    `starts`: the tokens that every conversation begins with."""

    def __init__(self, template: ChatTemplate, fingerprint: str, starts: tuple[int, ...]) -> None:
        self.template = template
        self._fingerprint = fingerprint
        self._starts = starts
        self._scaffold: dict[str, tuple[int, ...]] = {}  # the tokens of each of its pieces
        self._openings: OrderedDict[tuple[str | None, bytes], tuple[int, ...]] = OrderedDict()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def starts(self) -> Tokens:
        return self._starts

    @property
    def answer_opening(self) -> Tokens:
        return self._scaffold[self.template.scaffold.answer_opening]

    @property
    def answer_closing(self) -> Tokens:
        return self._scaffold[self.template.scaffold.answer_closing]

    @property
    def turn_opening(self) -> Tokens:
        """What stands before a user's words: every conversation has it after its opening."""
        return self._scaffold[self.template.scaffold.roles["user"].before]

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens:
        name = (instructions, msgspec.json.encode(tools))
        known = self._openings.get(name)
        if known is not None:
            self._openings.move_to_end(name)
            return known
        tokens: list[int] = []
        for piece, special in self.template.opening(instructions, tools):
            tokens += await self._opening_piece(piece, special=special)
        if self._starts and tuple(tokens[:1]) != self._starts:
            tokens[:0] = self._starts
        made = self._openings[name] = tuple(tokens)
        while len(self._openings) > OPENINGS_MAX:
            self._openings.popitem(last=False)
        return made

    async def message(self, message: ChatMessage) -> Tokens:
        around = self.template.scaffold.roles[message.role]
        calls = [call_text(name, arguments) for _, name, arguments in message.calls]
        content = await self._content(message.text, calls)
        return (*self._scaffold[around.before], *content, *self._scaffold[around.after])

    @abstractmethod
    async def text(self, text: str) -> Tokens: ...

    @abstractmethod
    async def _opening_piece(self, piece: str, *, special: bool) -> Tokens: ...

    async def _content(self, text: str, calls: list[str]) -> Tokens:
        return await self.text("\n".join([text, *calls] if text else calls))
