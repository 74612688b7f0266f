"""Fitting the context: what is kept, when a cut moves, and that it moves only forwards."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sessions.model.errors import BadInput
from sessions.model.types import ItemId
from sessions.turn import context_fitting
from sessions.turn.context_fitting import LOW_WATER, Fit, Kept, Marks, Segment, SummarySpan, compact, fit

lengths = st.integers(0, 60)


@st.composite
def branches(draw: st.DrawFn, *, turns_max: int = 30) -> list[Segment]:
    """Turns of a user's message and what answers it; perhaps something before the first."""
    segments: list[Segment] = []
    if draw(st.booleans()):
        segments.append(Segment(ItemId("s0"), draw(lengths), False))
    for _ in range(draw(st.integers(0 if segments else 1, turns_max))):
        segments.append(Segment(ItemId(f"s{len(segments)}"), draw(lengths), True))
        for _ in range(draw(st.integers(0, 3))):
            segments.append(Segment(ItemId(f"s{len(segments)}"), draw(lengths), False, draw(st.integers(1, 3))))
    return segments


def reserved(answer: int | None, window: int) -> int:
    return min(256 if answer is None else answer, 256, window // 4)


@pytest.mark.parametrize("answer", [None, 300, 4_000, 1_000_000])
def test_the_longest_answer_that_a_request_allows_reserves_nothing(answer: int | None) -> None:
    assert context_fitting.reserved(8_192, answer) == 256
    room: dict[str, Any] = {"opening": 20, "closing": 3, "window": 8_192, "answer": answer, "cut": None}
    assert fit([Segment(ItemId("s0"), 7_913, True)], **room) == Fit(0, False, 0)
    with pytest.raises(BadInput, match="This turn alone takes 7937 tokens of context and 7936 are there"):
        fit([Segment(ItemId("s0"), 7_914, True)], **room)


def total(segments: list[Segment]) -> int:
    return sum(each.length for each in segments)


@given(
    branches(),
    st.integers(0, 20),
    st.integers(0, 3),
    st.integers(60, 600),
    st.one_of(st.none(), st.integers(1, 700)),
    st.integers(-1, 60),
)
def test_a_fit(
    segments: list[Segment], opening: int, closing: int, window: int, answer: int | None, cut_at: int
) -> None:
    cut = segments[cut_at].item_id if 0 <= cut_at < len(segments) else None
    before = max(0, cut_at) if cut is not None else 0
    room = window - opening - closing - reserved(answer, window)
    newest = max((index for index, each in enumerate(segments) if each.begins_turn), default=0)
    starts = [i for i, each in enumerate(segments) if each.begins_turn and i >= before]
    try:
        fitted = fit(segments, opening=opening, closing=closing, window=window, answer=answer, cut=cut)
    except BadInput:
        assert all(total(segments[start:]) > room for start in (before, *starts))
        return
    kept = segments[fitted.first :]
    assert total(kept) <= room, "never more than the window, with room for an answer"
    assert fitted.first >= before, "a cut never goes back"
    assert fitted.dropped == sum(each.items for each in segments[: fitted.first])
    assert fitted.moved == (fitted.first != before)
    if fitted.moved:
        assert segments[fitted.first].begins_turn, "whole turns at a time"
        assert fitted.first <= newest, "the newest turn stays"
        if fitted.first < newest:
            assert total(kept) <= int(room * LOW_WATER), "enough is dropped for several turns"
        # Nothing is dropped that did not have to be: one turn less would have been too much.
        earlier = [start for start in starts if start < fitted.first]
        assert all(total(segments[start:]) > int(room * LOW_WATER) for start in earlier)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60), st.integers(160, 400))
def test_over_a_conversation_the_cut_moves_seldom_and_only_forwards(turns: list[tuple[int, int]], window: int) -> None:
    """Each turn is planned on the cut before it, as an actor does; between two cuts the prefix stays as it is."""
    segments: list[Segment] = []
    cut: ItemId | None = None
    moves: list[int] = []
    firsts: list[int] = []
    for number, (question, answer) in enumerate(turns):
        segments.append(Segment(ItemId(f"q{number}"), question, True))
        fitted = fit(segments, opening=10, closing=1, window=window, answer=None, cut=cut)
        firsts.append(fitted.first)
        if fitted.moved:
            moves.append(number)
            cut = segments[fitted.first].item_id
        segments.append(Segment(ItemId(f"a{number}"), answer, False))
    assert firsts == sorted(firsts)
    room = window - 11 - window // 4
    for earlier, later in pairwise(moves):
        # From the low mark to the full window takes at least so many of the largest turns.
        assert later - earlier >= (room - int(room * LOW_WATER)) // 60


@given(branches(), st.integers(60, 600))
def test_the_same_cut_gives_the_same_prompt(segments: list[Segment], window: int) -> None:
    """After a failure the journaled cut rebuilds what the dead activation had sent, and nothing is journaled again."""
    try:
        first = fit(segments, opening=5, closing=1, window=window, answer=None, cut=None)
    except BadInput:
        assume(False)
        raise
    cut = segments[first.first].item_id
    again = fit(segments, opening=5, closing=1, window=window, answer=None, cut=cut)
    assert (again.first, again.moved, again.dropped) == (first.first, False, first.dropped)


def test_a_cut_of_another_branch_means_nothing() -> None:
    segments = [Segment(ItemId("a"), 10, True), Segment(ItemId("b"), 10, True)]
    assert fit(segments, opening=0, closing=0, window=100, answer=None, cut=ItemId("elsewhere")) == Fit(0, False, 0)


@given(
    branches(),
    st.integers(60, 900),
    st.integers(0, 20),
    st.integers(0, 60),
    st.sets(st.integers(0, 60), max_size=4),
    st.one_of(st.none(), st.integers(0, 5)),
    st.one_of(st.none(), st.integers(20, 600)),
)
def test_a_compaction(
    segments: list[Segment],
    window: int,
    opening: int,
    base_at: int,
    pins: set[int],
    keep_turns: int | None,
    threshold: int | None,
) -> None:
    starts = [index for index, each in enumerate(segments) if each.begins_turn]
    base = max((each for each in starts if each <= base_at), default=0)
    pinned = sorted(each for each in pins if each < len(segments))
    marks = Marks.of(window, None, threshold)

    def length(end: int, summary: int) -> int:
        kept = sum(segments[each].length for each in pinned if each < end)
        return opening + summary + kept + total(segments[end:]) + 1

    span = compact(
        segments,
        marks,
        opening=opening,
        closing=1,
        window=window,
        instruction=30,
        kept=Kept(base, pinned),
        keep_turns=keep_turns,
    )
    now = length(base, 0)
    if keep_turns is None and now <= marks.high:
        assert span is None, "nothing is summarised before it must be"
    if span is None:
        return
    assert base < span.end <= span.read <= len(segments)
    for end in (span.end, span.read):
        assert end == len(segments) or segments[end].begins_turn, "whole turns at a time"
    read = length(base, 0) - 1 - total(segments[span.read :])
    assert read + 30 + marks.summary <= window, "what is read, the instruction and the summary have room"
    if keep_turns is not None:
        assert sum(each.begins_turn for each in segments[span.end :]) >= keep_turns
    else:
        assert length(span.end, marks.summary) < now, "it makes the prompt shorter"


def test_a_compaction_goes_down_to_its_low_mark_and_reads_all_that_it_can() -> None:
    segments = [Segment(ItemId(f"q{number}"), 50, True) for number in range(13)]
    marks = Marks.of(1_000, None, None)
    assert (marks.high, marks.low, marks.summary) == (637, 374, 93)
    room: dict[str, Any] = {"opening": 10, "closing": 1, "window": 1_000, "instruction": 30}
    assert compact(segments[:12], marks, **room) is None
    span = compact(segments, marks, **room)
    assert span == SummarySpan(8, 13)  # 10 + 93 + 5 * 50 + 1 <= 374
    longer = [*segments, *(Segment(ItemId(f"r{number}"), 50, True) for number in range(10))]
    span = compact(longer, marks, **room)
    assert span is not None and span.read == 17 and span.end == 17  # the rest is for the next one
    assert Marks.of(1_000, None, 200) == Marks(high=200, low=117, summary=93)


def test_a_fit_keeps_what_is_pinned_and_refuses_where_nothing_may_be_left_out() -> None:
    segments = [Segment(ItemId(f"q{number}"), 40, True) for number in range(6)]
    room: dict[str, Any] = {"opening": 0, "closing": 0, "window": 200, "answer": 50}
    fitted = fit(segments, **room, cut=None, kept=Kept(1, (0, 2)))
    assert fitted == Fit(5, True, 3)  # 40 of q5, 80 of q0 and q2; q1, q3 and q4 are left out
    with pytest.raises(BadInput, match="takes 240 tokens"):
        fit(segments, **room, cut=None, truncate=False)
