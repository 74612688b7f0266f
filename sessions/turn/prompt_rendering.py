"""Two ways from a branch to the token ids of its prompt.

    JoinedPrompts   history is a sum of pieces: their ids behind one another, none computed again
    WholePrompts    the template sees the whole conversation, and may say old messages in other words than before;
                    what the engine reuses is what the new prompt and its KV have in common from the front

`Tokenizer.gap` decides which of the two a model's template needs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from itertools import chain
from operator import is_
from typing import Final, NamedTuple, Protocol

import msgspec

from sessions.model.memories import with_memories
from sessions.model.types import Item, Message, Tool, UnixMs, unpack_tokens
from sessions.ports import ChatMessage, Tokenizer
from sessions.turn.branch_tokens import BranchTokens, Packed
from sessions.turn.context_fitting import Fit, Segment
from sessions.turn.message_tokens import MessageTokens
from sessions.turn.retokenisation import shared_length

JOINED_PIECES_MIN: Final = 128  # shorter branches are joined anew at each turn


class PromptSettings(NamedTuple):
    """The instructions, memories and tools that a session's prompts begin with, and the template's hint about
    thoughts."""

    instructions: str | None
    memories: tuple[str, ...]
    tools: tuple[Tool, ...]
    thinking: str = ""  # what the chat template is told of thoughts


class PromptOpening(NamedTuple):
    """The token ids that a session's prompts begin with. The first `shared` of them, before its user's memories, are
    the same in other sessions of the tenant with equal instructions and tools."""

    tokens: array[int]
    shared: int


class PromptFrame(NamedTuple):
    """The parts of a prompt, before it is decided with which piece it begins."""

    settings: PromptSettings
    opening: PromptOpening
    branch: BranchTokens
    brought: tuple[ChatMessage, ...] = ()  # messages behind the branch, with their ids

    @property
    def head(self) -> int:
        """How many tokens come before the first piece."""
        return len(self.opening.tokens) + self.branch.summary_length


class PromptRenderer(Protocol):
    async def fit(
        self, frame: PromptFrame, fitting: partial[Fit], segments: Sequence[Segment], room: int
    ) -> tuple[Fit, array[int] | None]:
        """Fits segments (those of the branch and of the messages `brought`) into `room` tokens. Returns which one the
        prompt begins with, and the prompt if it had to be rendered to find that out. Raises BadInput
        `context_length_exceeded`."""
        ...

    async def render(
        self, frame: PromptFrame, first: int, *, end: int | None = None, answer: bool = True
    ) -> array[int]:
        """Returns the ids of a prompt from piece `first` up to `end`, with the messages `brought` behind it and, with
        `answer`, the beginning of an answer."""
        ...

    async def prefix(self, frame: PromptFrame, first: int) -> array[int]:
        """Returns the ids that the next prompt will begin with, whatever the next question is."""
        ...

    async def shared(self, frame: PromptFrame, prompt: array[int]) -> int:
        """Returns how many of a prompt's first tokens other sessions of the tenant may have, too."""
        ...


class JoinedPrompts:
    """Renders a prompt by joining the ids of its pieces."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._joined: _JoinedPrompt | None = None

    async def fit(
        self, frame: PromptFrame, fitting: partial[Fit], segments: Sequence[Segment], room: int
    ) -> tuple[Fit, array[int] | None]:
        return fitting(segments), None

    async def render(
        self, frame: PromptFrame, first: int, *, end: int | None = None, answer: bool = True
    ) -> array[int]:
        prompt = self._join(frame.opening.tokens, frame.branch, first, end)
        for message in frame.brought:
            prompt.extend(await self._tokenizer.message(message))
        if answer:
            prompt.extend(self._tokenizer.answer_opening)
        return prompt

    async def prefix(self, frame: PromptFrame, first: int) -> array[int]:
        return await self.render(frame, first, answer=False)

    async def shared(self, frame: PromptFrame, prompt: array[int]) -> int:
        return frame.opening.shared

    def _join(self, opening: array[int], branch: BranchTokens, first: int, end: int | None) -> array[int]:
        """Returns the ids of the opening and of a branch from piece `first` on. For a long branch, ids that the last
        prompt also had are not joined again."""
        prompt = array("I")
        if end is not None or branch.summary or branch.pinned or len(branch.pieces) - first < JOINED_PIECES_MIN:
            self._joined = None if end is None else self._joined
            prompt.extend(opening)
            prompt.frombytes(branch.packed(first, end))
            return prompt
        packed, joined = tuple(packed for _, packed in branch.pieces), self._joined
        if joined is None or not joined.begins(opening, first, packed):
            joined = _JoinedPrompt(opening, first, packed[:first], opening.tobytes())
        ids = b"".join((joined.ids, *chain.from_iterable(packed[len(joined.pieces) :])))
        self._joined = _JoinedPrompt(opening, first, packed, ids)
        prompt.frombytes(ids)
        return prompt


class _JoinedPrompt(NamedTuple):
    """The last prompt of a long branch without its answer. The next prompt begins with it."""

    opening: array[int]
    first: int
    pieces: tuple[Packed, ...]  # of the whole branch
    ids: bytes

    def begins(self, opening: array[int], first: int, pieces: tuple[Packed, ...]) -> bool:
        """Returns whether a prompt of this opening, and of these pieces from `first` on, begins with this prompt."""
        same = self.opening is opening and self.first == first and len(self.pieces) <= len(pieces)
        return same and all(map(is_, self.pieces, pieces))


class WholePrompts:
    """Renders a prompt from all its messages at once."""

    def __init__(self, tokenizer: Tokenizer, messages: MessageTokens) -> None:
        self._tokenizer = tokenizer
        self._messages = messages

    async def fit(
        self, frame: PromptFrame, fitting: partial[Fit], segments: Sequence[Segment], room: int
    ) -> tuple[Fit, array[int] | None]:
        """Fits by rendering, since only that shows how long a prompt is: while the prompt is too long, it fits again
        with the segments counted as longer."""
        while True:
            fitted = fitting(segments)
            prompt = await self.render(frame, fitted.first)
            if len(prompt) <= room:
                return fitted, prompt
            pinned = frame.branch.pinned
            kept = [each for index, each in enumerate(segments) if index >= fitted.first or index in pinned]
            missing = len(prompt) - frame.head - sum(each.length for each in kept)
            more = max(1, -(-missing // max(1, len(kept))))
            segments = [msgspec.structs.replace(each, length=each.length + more) for each in segments]

    async def render(
        self, frame: PromptFrame, first: int, *, end: int | None = None, answer: bool = True
    ) -> array[int]:
        """Renders the prompt. It names the day of its newest question, so that it depends on the log alone."""
        settings, branch = frame.settings, frame.branch
        messages = list[ChatMessage]()
        if branch.summarised is not None:
            messages.append(_with_ids(branch.summarised, branch.summary))
        at = 0
        for index, (segment, packed) in enumerate(branch.pieces[:end]):
            items = branch.path[at : at + segment.items]
            at += segment.items
            if index >= first or index in branch.pinned:
                message = self._messages.as_message(items)
                ids = self._messages.text_ids(items, message.text, packed)
                messages.append(msgspec.structs.replace(message, tokens=ids))
        messages.extend(frame.brought)
        instructions = with_memories(settings.instructions, settings.memories)
        day = _newest_question(branch.path)
        conversation = self._tokenizer.conversation
        thinking = settings.thinking
        return array(
            "I", await conversation(instructions, settings.tools, messages, day, answer=answer, thinking=thinking)
        )

    async def prefix(self, frame: PromptFrame, first: int) -> array[int]:
        path = frame.branch.path
        answered = not path or (isinstance(path[-1], Message) and path[-1].role == "assistant")
        return await self.render(frame, first, answer=not answered)

    async def shared(self, frame: PromptFrame, prompt: array[int]) -> int:
        settings = frame.settings._replace(memories=())
        alone = PromptFrame(settings, frame.opening, BranchTokens((), path=frame.branch.path))
        return shared_length(prompt, await self.render(alone, 0, answer=False))


def _with_ids(message: ChatMessage, packed: Packed) -> ChatMessage:
    return msgspec.structs.replace(message, tokens=unpack_tokens(b"".join(packed)))


def _newest_question(path: Sequence[Item]) -> UnixMs:
    """Returns the time of the newest question of a branch; 0 if it has none."""
    times = (item.created_at for item in reversed(path) if isinstance(item, Message) and item.role == "user")
    return next(times, UnixMs(0))
