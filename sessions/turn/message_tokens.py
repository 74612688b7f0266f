"""The token ids of a session's messages, each tokenised once.

A message's ids are journaled with it, and an answer's ids are the ones that the engine made. A message is tokenised
again, and its ids are then kept, only if they have another tokenizer's fingerprint, or it was rewritten (a retraction,
a text cut inside a token).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import is_
from typing import NamedTuple

import msgspec

from sessions.machine import item_tree
from sessions.machine.state import Compaction, State, compaction_of, stands_below
from sessions.model.errors import BadInput
from sessions.model.generation import EngineInfo
from sessions.model.types import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemId,
    Message,
    Tokens,
    pack_tokens,
    unpack_tokens,
)
from sessions.ports import ChatMessage, Tokenizer
from sessions.turn.branch_tokens import (
    BranchTokens,
    Packed,
    Pieces,
    answer_message,
    group_by_message,
    join_output,
    piece_behind,
    pinned_pieces,
    segment_of,
    summary_message,
)
from sessions.turn.context_fitting import PINNED_SHARE
from sessions.turn.images import prompt_text
from sessions.turn.past_texts import name_of


class _Settled(NamedTuple):
    """The branch that was requested last, with its pieces. The next branch takes over as many of them as the two
    share."""

    items: tuple[Item, ...]
    names: tuple[ItemId, ...]
    pieces: Pieces


class _Made(NamedTuple):
    """Ids that were made here because those in the log are not usable. They are valid while the items are the same
    objects (text may be retracted), and so is the call that an output answers (it may be deleted)."""

    items: tuple[Item, ...]
    name: str | None
    packed: Packed


class MessageTokens:
    """The token ids of one session's messages, as the pieces of its branches."""

    def __init__(self, state: State, tokenizer: Tokenizer, engine: EngineInfo) -> None:
        self._state = state
        self._tokenizer = tokenizer
        self._engine = engine
        self._made: dict[tuple[ItemId, ...], _Made] = {}
        self._answer_opening, self._answer_closing = map(
            pack_tokens, (tokenizer.answer_opening, tokenizer.answer_closing)
        )
        self._settled = _Settled((), (), ())
        self._text_ids: dict[ItemId, tuple[Item, Tokens | None]] = {}  # of answers in channels

    async def branch(self, leaf: ItemId | None) -> BranchTokens:
        """Returns the tokens of the branch that ends in `leaf`."""
        state = self._state
        path = self._path(leaf)
        pieces = await self.pieces(path)
        compaction = compaction_of(state, leaf) if state.compactions else None
        if compaction is None and not state.pinned:
            return BranchTokens(pieces, path=tuple(path))
        base, summary, summarised = 0, Packed(), None
        if compaction is not None:
            base = piece_behind(pieces, compaction.count)
            summary = await self._summary(compaction) if base else summary
            summarised = summary_message(compaction.summary.text, compaction.model) if base else None
        pinned = self._pinned(path, pieces) if state.pinned else ()
        if sum(map(len, summary)) // 4 > self._engine.context_window // 2:  # of a model with a larger window
            base, summary, summarised = 0, Packed(), None
        return BranchTokens(pieces, base, summary, pinned, tuple(path), summarised)

    def _pinned(self, path: list[Item], pieces: Pieces) -> tuple[int, ...]:
        """Returns the indices of the pinned pieces that prompts keep. If there is no room for all, these are only the
        newest."""
        room, kept = self._engine.context_window // PINNED_SHARE, list[int]()
        for index in reversed(pinned_pieces(path, pieces, self._state.pinned)):
            room -= pieces[index][0].length
            if room < 0:
                break
            kept.append(index)
        return tuple(reversed(kept))

    def rendered(self, item: Item, leaf: ItemId | None = None) -> ChatMessage:
        """Returns a message or tool output in the form for the chat template. `leaf` is the item below which it will
        be, if it is not in the tree yet. Raises BadInput for a call, which is only rendered as part of an answer."""
        match item:
            case Message():
                thoughts = item.reasoning if self._takes_thoughts_apart else ""
                if item.images:
                    text = prompt_text(item.content, sees=self._engine.images)
                    return ChatMessage(role=item.role, text=text, thoughts=thoughts, names_images=True)
                return ChatMessage(role=item.role, text=self._with_thoughts(item), thoughts=thoughts)
            case FunctionCallOutput():
                name = name_of(self._state, item.call_id, item.parent_id or leaf)
                return ChatMessage(role="tool", text=item.output, call_id=item.call_id, name=name)
            case FunctionCall():
                raise BadInput("invalid_request", "A call stands only inside an answer.")

    def as_message(self, items: Sequence[Item]) -> ChatMessage:
        """Returns the items of one piece as one message, for a template that sees whole conversations."""
        first, message = items[0], answer_message(items)
        if len(items) == 1 and not isinstance(first, FunctionCall):
            return self.rendered(first)
        if self._takes_thoughts_apart:
            parts = (item.reasoning for item in items if isinstance(item, Message) and item.reasoning)
            return msgspec.structs.replace(message, thoughts="\n\n".join(parts))
        thoughts = self._with_thoughts(first).removesuffix(first.text) if isinstance(first, Message) else ""
        return msgspec.structs.replace(message, text=f"{thoughts}{message.text}")

    async def pinned_too_long(self, item_id: ItemId) -> bool:
        """Returns whether pinning an item would make the pinned pieces of its branch longer than the part of the window
        that they may take; False if there is no such item."""
        if item_id not in self._state.items:
            return False
        leaf = self._state.newest
        if not stands_below(self._state, leaf, item_id):
            leaf = item_id
        path = item_tree.branch(self._state, leaf)
        pieces = await self.pieces(path)
        pinned = pinned_pieces(path, pieces, [*self._state.pinned, item_id])
        return sum(pieces[index][0].length for index in pinned) > self._engine.context_window // PINNED_SHARE

    def _with_thoughts(self, item: Message) -> str:
        """Returns a message's text, with its thoughts if the template sees whole conversations and decides itself
        whether to keep them. For other templates thoughts are only in the ids of their answer."""
        marks, thoughts = self._engine.thoughts, item.reasoning
        if self._tokenizer.gap is None or marks is None or marks.apart or not thoughts:
            return item.text
        return f"{marks.open}\n{thoughts}\n{marks.close}\n\n{item.text}"

    @property
    def _takes_thoughts_apart(self) -> bool:
        marks = self._engine.thoughts
        return self._tokenizer.gap is not None and marks is not None and marks.apart

    def text_ids(self, items: Sequence[Item], text: str, packed: Packed) -> Tokens | None:
        """Returns those of a piece's ids `packed` that spell its `text`; None if they cannot be separated from the
        others. For models with channels, headers and thoughts come before the text, and are left out."""
        first = items[0]
        if not (self._takes_thoughts_apart and isinstance(first, Message) and first.role == "assistant"):
            return unpack_tokens(b"".join(packed))
        known = self._text_ids.get(items[-1].id)
        if known is None or known[0] is not items[-1]:
            known = self._text_ids[items[-1].id] = (items[-1], self._ending(text, unpack_tokens(b"".join(packed))))
        return known[1]

    def _ending(self, text: str, tokens: Tokens) -> Tokens | None:
        """Returns the ids at the end of `tokens` that spell exactly `text`; None if no such ids do."""
        wanted = text.encode()
        pieces, at, size = self._tokenizer.pieces(tokens), len(tokens), 0
        while at and size < len(wanted):
            at -= 1
            size += len(pieces[at])
        return tokens[at:] if b"".join(pieces[at:]) == wanted else None

    def _path(self, leaf: ItemId | None) -> list[Item]:
        """Returns the items from the root to `leaf`. The part that is shared with the last branch is taken from that
        one."""
        (settled, names, _), items = self._settled, self._state.items
        if not settled:
            return item_tree.branch(self._state, leaf)
        newer: list[Item] = []
        for item in item_tree.ancestors(self._state, leaf):
            if item is settled[-1]:
                if not all(map(is_, map(items.get, names), settled)):
                    break  # something of it was rewritten
                return [*settled, *reversed(newer)]
            newer.append(item)
        return item_tree.branch(self._state, leaf)

    async def pieces(self, path: list[Item]) -> Pieces:
        """Returns the pieces of a branch, message by message. Pieces that it shares with the last branch are taken from
        that one, so a turn costs only its own items. An answer that has not ended must be the last."""
        settled, names, pieces = self._settled
        count = len(settled)
        if count and all(map(is_, settled, path)) and not self._goes_on(path, count):
            made = list(pieces)
        else:
            count, made = 0, []
        for made_by, group in groupby(path[count:], key=lambda item: self._state.made_by.get(item.id)):
            if made_by is None:
                groups = [(sent, await self._render_group(sent)) for sent in group_by_message(group)]
            else:
                items = tuple(group)
                groups = [(items, await self._answer(items))]
            for items, packed in groups:
                segment = segment_of(items, sum(map(len, packed)) // 4 + (self._tokenizer.gap or 0))
                if segment.output is not None:
                    join_output(made, segment.output)
                made.append((segment, packed))
        names = (*names[:count], *(item.id for item in path[count:]))
        self._settled = _Settled(tuple(path), names, tuple(made))
        return self._settled.pieces

    def _goes_on(self, path: list[Item], count: int) -> bool:
        """Returns whether the piece to which the last of the first `count` items of a path belongs has more items
        behind them."""
        if count >= len(path):
            return count > len(path)
        made_by = self._state.made_by.get(path[count].id)
        same = made_by == self._state.made_by.get(path[count - 1].id)
        return same and (made_by is not None or isinstance(path[count], FunctionCall))

    async def _summary(self, compaction: Compaction) -> Packed:
        if compaction.fingerprint == self._tokenizer.fingerprint:
            return (compaction.tokens,)
        items: tuple[Item, ...] = (compaction.summary,)
        made = self._kept(items)
        if made is None:
            message = summary_message(compaction.summary.text, compaction.model)
            made = self._keep(items, await self._tokenizer.message(message))
        return made

    async def _message(self, item: Item) -> Packed:
        stored = self._state.item_tokens.get(item.id)
        if stored is not None and stored[0] == self._tokenizer.fingerprint:
            return (stored[1],)
        message = self.rendered(item)
        made = self._kept((item,), message.name)
        if made is None:
            made = self._keep((item,), await self._tokenizer.message(message), message.name)
        return made

    async def _render_group(self, items: tuple[Item, ...]) -> Packed:
        """Returns the packed ids of a message that a client sent, or of an answer with calls that it brought along."""
        if not isinstance(items[-1], FunctionCall):
            return await self._message(items[0])
        made = self._kept(items)
        if made is None:
            made = self._keep(items, await self._tokenizer.message(answer_message(items)))
        return made

    async def _answer(self, items: tuple[Item, ...]) -> Packed:
        made = self._kept(items)
        if made is not None:
            return made
        ids = tuple(item.id for item in items)  # a branch may begin in the middle of an answer
        answer = self._state.answers.get(self._state.made_by[ids[0]])
        if answer is not None and answer.fingerprint == self._tokenizer.fingerprint and answer.items == ids:
            if not answer.tail:
                return self._answer_opening, answer.tokens, self._answer_closing
            whole = unpack_tokens(answer.tokens)
            whole.extend(await self._tokenizer.text(answer.tail))
            return self._keep(items, [*self._tokenizer.answer_opening, *whole, *self._tokenizer.answer_closing])
        message = answer_message(items)
        if message.calls:
            return self._keep(items, await self._tokenizer.message(message))
        text = await self._tokenizer.text(message.text)
        return self._keep(items, [*self._tokenizer.answer_opening, *text, *self._tokenizer.answer_closing])

    def _kept(self, items: tuple[Item, ...], name: str | None = None) -> Packed | None:
        made = self._made.get(tuple(item.id for item in items))
        return made.packed if made is not None and (made.items, made.name) == (items, name) else None

    def _keep(self, items: tuple[Item, ...], tokens: Tokens, name: str | None = None) -> Packed:
        packed = (pack_tokens(tokens),)
        self._made[tuple(item.id for item in items)] = _Made(items, name, packed)
        return packed
