"""The token ids of a branch, message by message, as immutable values, so that no plan changes one that another plan has
read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain

import msgspec

from sessions.model.types import CallId, FunctionCall, FunctionCallOutput, Item, ItemId, Message
from sessions.ports import ChatMessage
from sessions.turn.context_fitting import Kept, Segment

Packed = tuple[bytes, ...]
"""The packed token ids of a piece, in parts that the state holds as well."""


Pieces = tuple[tuple[Segment, Packed], ...]
"""The pieces of a branch: one for each message or answer."""


class BranchTokens(msgspec.Struct, frozen=True):
    """The token ids of a branch, piece by piece. Prompts have a summary in place of the pieces before `base`."""

    pieces: Pieces
    base: int = 0
    summary: Packed = ()
    pinned: tuple[int, ...] = ()  # indices of pieces that stay in prompts, in order
    path: tuple[Item, ...] = ()  # the items that the pieces are made of
    summarised: ChatMessage | None = None  # the summary as a message

    @property
    def segments(self) -> list[Segment]:
        return [segment for segment, _ in self.pieces]

    @property
    def kept(self) -> Kept:
        return Kept(self.base, self.pinned)

    @property
    def summary_length(self) -> int:
        return sum(map(len, self.summary)) // 4

    def length(self, first: int) -> int:
        """Returns how many tokens the summary, the pieces pinned before `first`, and the pieces from `first` on have
        together."""
        head = sum(self.pieces[index][0].length for index in self.pinned if index < first)
        return self.summary_length + head + sum(segment.length for segment, _ in self.pieces[first:])

    def packed(self, first: int, end: int | None = None) -> bytes:
        """Returns the packed ids of the summary, the pieces pinned before `first`, and the pieces from `first` to `end`
        (None: to the last)."""
        head = chain.from_iterable(self.pieces[index][1] for index in self.pinned if index < first)
        kept = chain.from_iterable(packed for _, packed in self.pieces[first:end])
        return b"".join(chain(self.summary, head, kept))


def group_by_message(items: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    """Yields the items that a client sent, grouped by message: calls are in the group of the answer that they
    follow."""
    sent: tuple[Item, ...] = ()
    for item in items:
        goes_on = sent and (isinstance(sent[-1], FunctionCall) or getattr(sent[-1], "role", "") == "assistant")
        if sent and not (goes_on and isinstance(item, FunctionCall)):
            yield sent
            sent = ()
        sent += (item,)
    if sent:
        yield sent


def segment_of(items: Sequence[Item], length: int) -> Segment:
    """Returns the segment of one piece, `length` tokens long, for context fitting."""
    first = items[0]
    return Segment(
        first.id,
        length,
        begins_turn=isinstance(first, Message) and first.role == "user",
        items=len(items),
        calls=tuple(item.call_id for item in items if isinstance(item, FunctionCall)),
        output=first.call_id if isinstance(first, FunctionCallOutput) else None,
    )


def join_output(pieces: list[tuple[Segment, Packed]], call_id: CallId) -> None:
    """Marks, in `pieces`, the segments behind a call's segment as not beginning a turn, so that no shortened prompt
    begins between the call and its output, which is added behind `pieces`. Changes `pieces`."""
    between: list[int] = []
    for index in range(len(pieces) - 1, -1, -1):
        segment = pieces[index][0]
        if call_id in segment.calls:
            for at in between:
                pieces[at] = (msgspec.structs.replace(pieces[at][0], begins_turn=False), pieces[at][1])
            return
        if segment.begins_turn:
            between.append(index)


def piece_behind(pieces: Pieces, count: int) -> int:
    """Returns the index of the piece behind the first `count` items; 0 if no piece ends with them."""
    ends = accumulate(segment.items for segment, _ in pieces)
    return next((index for index, end in enumerate(ends, 1) if end == count), 0)


def pinned_pieces(path: Sequence[Item], pieces: Pieces, pinned: Collection[ItemId]) -> list[int]:
    """Returns the indices of the pieces that hold these items, in order. Pieces with the outputs of their calls, or the
    calls of their outputs, are included."""
    where: dict[ItemId, int] = {}
    at = 0
    for index, (segment, _) in enumerate(pieces):
        where.update((item.id, index) for item in path[at : at + segment.items])
        at += segment.items
    kept = {where[name] for name in pinned if name in where}
    for index in list(kept):
        segment = pieces[index][0]
        if segment.output is not None:
            calls = (each for each in range(index - 1, -1, -1) if segment.output in pieces[each][0].calls)
            kept.update((next(calls, index),))
    for index in list(kept):
        calls_made = pieces[index][0].calls
        if calls_made:
            kept.update(each for each in range(index + 1, len(pieces)) if pieces[each][0].output in calls_made)
    return sorted(kept)


def summary_message(text: str, model: str) -> ChatMessage:
    """Returns a summary as a message of prompts. Its role is the user's, because it may repeat what users and tools
    have written."""
    return ChatMessage(role="user", text=f"[Summary of our conversation so far, written by {model}]\n{text}")


def answer_message(items: Sequence[Item]) -> ChatMessage:
    """Returns an answer, its calls included, as one message."""
    text = "".join(item.text for item in items if isinstance(item, Message))
    calls = tuple((item.call_id, item.name, item.arguments) for item in items if isinstance(item, FunctionCall))
    return ChatMessage(role="assistant", text=text, calls=calls)
