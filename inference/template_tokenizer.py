"""What tokenizers of real models share: the scaffold of a chat template, and openings that are tokenised once and kept.

Special tokens are parsed in scaffold strings only; how a string becomes tokens is the engine's.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from inference.chat_template import ChatTemplate
from inference.summed_pieces import PieceTokenizer
from inference.whole_conversation import Piece, call_text
from sessions.model.errors import BadInput
from sessions.model.types import Role, Tokens, Tool, UnixMs
from sessions.ports import ChatMessage
from sessions.turn.images import MARK, NAME_IDS, ImageName, image_ids, split_names, without_names

ANCHOR: Final = "\n"  # SentencePiece puts its space before this and not before the text
OPENINGS_MAX: Final = 256
SCAFFOLD_MAX: Final = 4096  # strings of scaffold whose tokens are kept
RENDERED_INLINE_MAX: Final = 100_000  # code points; longer conversations are rendered in a thread


class TemplateTokenizer(PieceTokenizer):
    """Implements `Tokenizer` except `text`, `about` and `pieces`.

    `starts`: the tokens that every conversation begins with. A tokenizer of a model that `sees` images has
    `image_length` too."""

    sees = False

    def __init__(self, template: ChatTemplate, fingerprint: str, starts: tuple[int, ...]) -> None:
        self.template = template
        self._fingerprint = f"{fingerprint}-whole" if template.whole else fingerprint
        self._gap: int | None = None
        self._starts = starts
        self._scaffold: dict[str, tuple[int, ...]] = {}  # the tokens of each of its pieces
        self._between: OrderedDict[str, tuple[int, ...]] = OrderedDict()  # the tokens of pieces of whole conversations
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
        """The tokens before a user's words; in every conversation they follow the instructions and tools."""
        return self._scaffold[self.template.scaffold.roles["user"].before]

    @property
    def gap(self) -> int | None:
        return self._gap

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens:
        name = (instructions, msgspec.json.encode(tools))
        known = self._openings.get(name)
        if known is not None:
            self._openings.move_to_end(name)
            return known
        tokens: list[int] = []
        for piece, special in self.template.opening(instructions, tools):
            tokens += await self._opening_piece(piece, special=special)
        made = self._openings[name] = self._begun(tokens)
        while len(self._openings) > OPENINGS_MAX:
            self._openings.popitem(last=False)
        return made

    async def message(self, message: ChatMessage) -> Tokens:
        around = self.template.scaffold.roles[message.role]
        calls = [call_text(name, arguments) for _, name, arguments in message.calls]
        content = await self._content(message, calls)
        return (*self._scaffold[around.before], *content, *self._scaffold[around.after])

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
        if not self.template.whole:
            return await super().conversation(instructions, tools, messages, at, answer=answer)
        if self.sees:
            instructions, tools, messages = _without_forged_names(instructions, tools, messages)
        conversation = self.template.conversation
        render = partial(conversation, instructions, tools, messages, at, answer=answer, thinking=thinking)
        length = len(instructions or "") + sum(len(message.text) for message in messages)
        pieces = await asyncio.to_thread(render) if length > RENDERED_INLINE_MAX else render()
        tokens: list[int] = []
        for piece in pieces:
            tokens += await self._piece(piece)
        return self._begun(tokens)

    async def measure(self) -> None:
        """Counts the tokens that a template adds around a message, if it renders whole conversations only. Called
        once."""
        if not self.template.whole:
            return
        roles: tuple[Role, ...] = ("user", "assistant", "user")
        talk = [ChatMessage(role=role, text="", tokens=()) for role in roles]
        try:
            whole = await self.conversation(None, (), talk, UnixMs(0), answer=True)
        except BadInput:  # it takes one message
            whole = await self.conversation(None, (), talk[:1], UnixMs(0), answer=True)
            talk = talk[:1]
        self._gap = max(1, -(-(len(whole) - len(await self.opening(None, ()))) // len(talk)))

    async def _piece(self, piece: Piece) -> Tokens:
        if piece.tokens is not None:
            return piece.tokens
        if self.sees and MARK in piece.text:
            return await self._with_images(piece)
        if not piece.special:
            return await self.text(piece.text)
        tokens = self._between.get(piece.text)
        if tokens is None:
            tokens = tuple(await self._opening_piece(piece.text, special=True))
        self._between[piece.text] = tokens
        self._between.move_to_end(piece.text)
        while len(self._between) > SCAFFOLD_MAX:
            self._between.popitem(last=False)
        return tokens

    async def scaffold(self, text: str) -> Tokens:
        return await self._piece(Piece(text, True))

    def _begun(self, tokens: list[int]) -> tuple[int, ...]:
        """Returns the tokens of a conversation, with those in front that every conversation begins with; these are
        added unless the tokens have them already."""
        if self._starts and tuple(tokens[:1]) != self._starts:
            return (*self._starts, *tokens)
        return tuple(tokens)

    @abstractmethod
    async def text(self, text: str) -> Tokens: ...

    @abstractmethod
    async def _opening_piece(self, piece: str, *, special: bool) -> Tokens: ...

    async def _content(self, message: ChatMessage, calls: list[str]) -> Tokens:
        text = "\n".join([message.text, *calls] if message.text else calls)
        return await self._piece(Piece(text if message.names_images else without_names(text), False))

    async def _with_images(self, piece: Piece) -> Tokens:
        """Returns the tokens of a piece that names images."""
        tokens: list[int] = []
        for part in split_names(piece.text):
            if isinstance(part, ImageName):
                tokens += image_ids(part.sha256, max(NAME_IDS, await self.image_length(part)))
            else:
                tokens += await self._piece(Piece(without_names(part), piece.special))
        return tokens

    async def image_length(self, image: ImageName) -> int:
        """Returns how many tokens an image takes."""
        raise NotImplementedError


def _without_forged_names(
    instructions: str | None, tools: Sequence[Tool], messages: Sequence[ChatMessage]
) -> tuple[str | None, Sequence[Tool], Sequence[ChatMessage]]:
    """Returns the parts of a conversation, in which only messages that may name images do."""
    if MARK.encode() in (encoded := msgspec.json.encode(tools)):
        tools = msgspec.json.decode(without_names(encoded.decode()), type=tuple[Tool, ...])
    honest = [message if message.names_images else _without_names(message) for message in messages]
    return None if instructions is None else without_names(instructions), tools, honest


def _without_names(message: ChatMessage) -> ChatMessage:
    texts = (message.text, message.thoughts, *(text for call in message.calls for text in call))
    if not any(MARK in text for text in texts):
        return message
    calls = tuple(
        (call_id, without_names(name), without_names(arguments)) for call_id, name, arguments in message.calls
    )
    text, thoughts = without_names(message.text), without_names(message.thoughts)
    return msgspec.structs.replace(message, text=text, thoughts=thoughts, calls=calls)
