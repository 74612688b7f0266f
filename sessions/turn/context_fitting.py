"""Fits a conversation into the context window: decides what is kept, what is left out, and when that changes.

The instructions and the newest turns stay; the oldest turns go first, whole turns at a time. A cut is made in steps
with hysteresis: once the window is full, enough is dropped to get down to `LOW_WATER` of it, and the cut then stays
until the window is full again. So the prompt's prefix, and with it the KV, is stable over many turns, and a cut that
was journaled (`context.fitted`) gives the same prompt after a failure. A cut holds only on its own branch: a branch
that leaves before the question that needed the cut is fitted by itself.

Compaction (`compact`) comes before that if the conversation's policy is to compact: at `COMPACT_AT` of the room for
prompts, down to `COMPACT_TO`, between turns. The segments before `base` are summarised and in no prompt, except for
pinned ones. Neither of the two ever separates a call from its output.

Pure; lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from sessions.model.errors import BadInput
from sessions.model.types import CallId, ItemId

LOW_WATER = 0.6
ANSWER_ROOM: Final = 256  # tokens that a prompt leaves to its answer,
ANSWER_SHARE: Final = 4  # but at most window // ANSWER_SHARE
COMPACT_AT: Final = 0.85
COMPACT_TO: Final = 0.5
COMPACT_NOW: Final = 0.95  # of the room: a summary that waits is put in force now
SUMMARY_SHARE: Final = 8  # a summary has at most room // SUMMARY_SHARE tokens
SUMMARY_MAX: Final = 2_048
PINNED_SHARE: Final = 4  # pinned messages take at most window // PINNED_SHARE


class Segment(msgspec.Struct, frozen=True):
    """One message, or one whole answer, of a branch. Prompts may be cut only before a segment that `begins_turn`."""

    item_id: ItemId
    length: int
    begins_turn: bool
    items: int = 1
    calls: tuple[CallId, ...] = ()  # of the calls that this answer makes
    output: CallId | None = None  # of the call that this is the output of


class Kept(msgspec.Struct, frozen=True):
    """The segments of a branch that prompts may have: those from `base` on, and the `pinned` ones before it."""

    base: int = 0
    pinned: Collection[int] = ()


NONE_KEPT: Final = Kept()


class Fit(msgspec.Struct, frozen=True):
    """The place where a prompt begins behind its opening: segments before the index `first` are left out of it.
    `moved`: this cut is new, so it must be journaled."""

    first: int
    moved: bool
    dropped: int  # items left out


def fit(
    segments: Sequence[Segment],
    *,
    opening: int,
    closing: int,
    window: int,
    answer: int | None,
    cut: ItemId | None,
    answer_room: int = ANSWER_ROOM,
    kept: Kept = NONE_KEPT,
    truncate: bool = True,
) -> Fit:
    """Returns where a prompt begins. `cut` is the item with which the prompt before began, None if that left nothing
    out.

    `opening` and `closing` are how many tokens come before and behind the kept segments. `answer` is the longest answer
    that the request allows, of which at most `answer_room` is reserved. `kept` says which segments are not summarised
    in the opening. Raises BadInput `context_length_exceeded` when the newest turn alone does not fit, or when not all
    fits and `truncate` is False.
    """
    base, pinned = kept.base, kept.pinned
    reserve = reserved(window, answer, answer_room)
    room = window - opening - closing - reserve
    first = base
    if cut is not None:
        first = max(base, next((index for index, segment in enumerate(segments) if segment.item_id == cut), 0))
    total = sum(segment.length for segment in segments[first:]) + _pinned_length(segments, pinned, first)
    if total <= room:
        return Fit(first, False, _left_out(segments, pinned, base, first))
    if not truncate:
        raise whole_too_long(opening + closing + total, window - reserve)
    low = int(room * LOW_WATER)
    best: int | None = None
    for index in range(first, len(segments)):
        if segments[index].begins_turn and total <= room:
            best = index
            if total <= low:
                break
        if index not in pinned:
            total -= segments[index].length
    if best is None:
        needed = opening + closing + sum(segment.length for segment in segments[last_turn(segments) :])
        raise too_long(needed, window - reserve)
    return Fit(best, True, _left_out(segments, pinned, base, best))


def reserved(window: int, answer: int | None, answer_room: int = ANSWER_ROOM) -> int:
    """Returns how many tokens of the window a prompt leaves for its answer. `answer` is the answer's longest length,
    None if it has no limit."""
    return min(answer_room if answer is None else min(answer, answer_room), window // ANSWER_SHARE)


def _pinned_length(segments: Sequence[Segment], pinned: Collection[int], end: int) -> int:
    return sum(segments[index].length for index in pinned if index < end)


def _left_out(segments: Sequence[Segment], pinned: Collection[int], base: int, first: int) -> int:
    return sum(segments[index].items for index in range(base, first) if index not in pinned)


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt lengths in tokens: a conversation is compacted when it reaches `high`, down to `low`. `summary` is the
    room for a summary."""

    high: int
    low: int
    summary: int  # tokens of a summary, at most

    @classmethod
    def of(cls, window: int, answer: int | None, threshold: int | None, answer_room: int = ANSWER_ROOM) -> Marks:
        room = window - reserved(window, answer, answer_room)
        high = int(room * COMPACT_AT)
        if threshold is not None:
            high = min(high, threshold)
        return cls(
            high=high,
            low=int(high * COMPACT_TO / COMPACT_AT),
            summary=max(16, min(SUMMARY_MAX, room // SUMMARY_SHARE)),
        )


class SummarySpan(msgspec.Struct, frozen=True):
    """The segments to summarise are those before `end`; the model reads those before `read` for it."""

    end: int
    read: int


def compact(
    segments: Sequence[Segment],
    marks: Marks,
    *,
    opening: int,
    closing: int,
    window: int,
    instruction: int,
    kept: Kept = NONE_KEPT,
    keep_turns: int | None = None,
) -> SummarySpan | None:
    """Returns which segments of an idle conversation to summarise; None if that is not due, or would not make the
    prompt shorter.

    `opening` is how many tokens prompts begin with now, including the summary of the segments before `kept.base`.
    `instruction` is the length of the request for a new summary, which comes behind what is read. If not all can be
    read at once, the rest is left for the next compaction. `keep_turns` is how many newest turns a requested compaction
    keeps, whatever the length; None if none was requested.
    """
    base, pinned, count = kept.base, kept.pinned, len(segments)
    behind = [0] * (count + 1)  # tokens of the segments from each on
    for index in range(count - 1, -1, -1):
        behind[index] = behind[index + 1] + segments[index].length
    now = opening + _pinned_length(segments, pinned, base) + behind[base] + closing
    if keep_turns is None and now <= marks.high:
        return None
    ends = [index for index in range(base + 1, count) if segments[index].begins_turn] + [count] * (count > base)
    room = window - marks.summary - instruction - opening - _pinned_length(segments, pinned, base)
    readable = [end for end in ends if behind[base] - behind[end] <= room]
    if not readable:
        return None
    read = readable[-1]
    if keep_turns is not None:
        turns = [index for index in range(count) if segments[index].begins_turn]
        last = count if keep_turns == 0 else turns[-keep_turns] if keep_turns <= len(turns) else 0
        fitting = [end for end in readable if end <= last]
        return SummarySpan(fitting[-1], read) if fitting else None

    def after(end: int) -> int:
        return opening + marks.summary + _pinned_length(segments, pinned, end) + behind[end] + closing

    end = next((end for end in readable if after(end) <= marks.low), None)
    if end is None:
        between = [end_ for end_ in readable if end_ < count and after(end_) <= (marks.low + marks.high) // 2]
        end = between[-1] if between else read
    return SummarySpan(end, read) if after(end) < now else None


def last_turn(segments: Sequence[Segment]) -> int:
    return max((index for index, segment in enumerate(segments) if segment.begins_turn), default=0)


def whole_too_long(needed: int, room: int) -> BadInput:
    return BadInput(
        "context_length_exceeded",
        f"This conversation takes {needed} tokens of context and {room} are there; shorten it.",
        param="content",
    )


def too_long(needed: int, room: int) -> BadInput:
    return BadInput(
        "context_length_exceeded",
        f"This turn alone takes {needed} tokens of context and {room} are there; shorten it.",
        param="content",
    )
