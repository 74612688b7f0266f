"""Fitting a conversation into the context window: what is kept, what is left out, and when that changes.

The instructions and the newest turns stay; the oldest turns go first, whole turns at a time. A cut is made in steps
with hysteresis: once the window is full, enough is dropped to get down to `LOW_WATER` of it, and the cut then stays
until the window is full again. So the prompt's prefix, and with it the KV, is stable over many turns, and a cut that
was journaled (`context.fitted`) gives the same prompt after a failure. It counts on its own line only: a branch from
before the question that needed it is fitted by itself.

Compaction (`compact`) comes before that where a conversation's policy has it: at `COMPACT_AT` of the room for prompts,
down to `COMPACT_TO`, between turns. What it summarises is given by its `base`: segments before it are in no prompt, but
for pinned ones. Neither ever parts a call from its output.

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
    """One message, or one whole answer, of a branch. A cut may stand only before one that `begins_turn`."""

    item_id: ItemId
    length: int
    begins_turn: bool
    items: int = 1
    calls: tuple[CallId, ...] = ()  # of the calls that this answer makes
    output: CallId | None = None  # of the call that this is the output of


class Kept(msgspec.Struct, frozen=True):
    """The segments of a branch that prompts keep: those from `base` on, and the `pinned` ones before it."""

    base: int = 0
    pinned: Collection[int] = ()


NONE_KEPT: Final = Kept()


class Fit(msgspec.Struct, frozen=True):
    """The beginning of a prompt: `first` is the index of its first segment; `moved` says that this cut is new."""

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
    """Returns where a prompt begins, if the one before began at the item `cut`.

    `opening` and `closing` tokens frame whatever is kept; `answer` is the longest that the request allows, which
    reserves nothing beyond `answer_room`; `kept` says what stays for segments that are summarised in the opening.
    Raises BadInput `context_length_exceeded` when the newest turn alone does not fit, or when not all fits and nothing
    may be left out.
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
    """Returns how many tokens of the window a prompt leaves to its answer, which may have `answer` at most."""
    return min(answer_room if answer is None else min(answer, answer_room), window // ANSWER_SHARE)


def _pinned_length(segments: Sequence[Segment], pinned: Collection[int], end: int) -> int:
    return sum(segments[index].length for index in pinned if index < end)


def _left_out(segments: Sequence[Segment], pinned: Collection[int], base: int, first: int) -> int:
    return sum(segments[index].items for index in range(base, first) if index not in pinned)


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt lengths, in tokens: a conversation is compacted when it reaches `high`, down to `low`."""

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
    """The segments to summarise: those before `end`, by a model that reads those before `read`."""

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
    """Returns which segments of an idle conversation to summarise; None if that is not due, or would not make it
    shorter.

    `opening` is what prompts begin with now, the summary of the segments before `kept.base` included; `instruction`
    requests the new one behind what is read, and where not all can be read at once the rest waits for the next.
    `keep_turns`: a compaction that was requested, whatever the length.
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
