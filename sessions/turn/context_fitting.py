"""Fitting a conversation into the context window: what is kept, what is left out, and when that changes.

The instructions and the newest turns stay; the oldest turns go first, whole turns at a time. A cut is made in steps
with hysteresis: once the window is full, enough is dropped to get down to `LOW_WATER` of it, and the cut then stays
until the window is full again. So the prompt's prefix, and with it the KV, is stable over many turns, and a cut that
was journaled (`context.fitted`) gives the same prompt after a failure. It counts on its own line only: a branch from
before the question that needed it is fitted by itself.

Pure; lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sessions.model.errors import BadInput
from sessions.model.types import ItemId

LOW_WATER = 0.6
ANSWER_SHARE = 4  # an answer without a limit of its own is given at least window // ANSWER_SHARE


class Segment(msgspec.Struct, frozen=True):
    """One message, or one whole answer, of a branch. A cut may stand only before one that `begins_turn`."""

    item_id: ItemId
    length: int
    begins_turn: bool
    items: int = 1


class Fit(msgspec.Struct, frozen=True):
    """`first` is the index of the first segment that is kept; `moved` says that the cut is a new one."""

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
) -> Fit:
    """Where the prompt begins, given where it began last time (`cut`).

    `opening` and `closing` tokens frame whatever is kept; `answer` is the room that the request asks for.
    Raises BadInput `context_length_exceeded` when the newest turn alone does not fit.
    """
    reserve = min(answer if answer is not None else window // ANSWER_SHARE, window // 2)
    room = window - opening - closing - reserve
    first = next((index for index, each in enumerate(segments) if each.item_id == cut), 0)
    total = sum(each.length for each in segments[first:])
    if total <= room:
        return Fit(first, False, sum(each.items for each in segments[:first]))
    low = int(room * LOW_WATER)
    best: int | None = None
    for index in range(first, len(segments)):
        if segments[index].begins_turn and total <= room:
            best = index
            if total <= low:
                break
        total -= segments[index].length
    if best is None:
        needed = opening + closing + sum(each.length for each in segments[_last_turn(segments) :])
        raise too_long(needed, window - reserve)
    return Fit(best, True, sum(each.items for each in segments[:best]))


def _last_turn(segments: Sequence[Segment]) -> int:
    return max((index for index, each in enumerate(segments) if each.begins_turn), default=0)


def too_long(needed: int, room: int) -> BadInput:
    return BadInput(
        "context_length_exceeded",
        f"This turn alone takes {needed} tokens of context and {room} are there; shorten it.",
        param="content",
    )
