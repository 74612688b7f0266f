"""Lists fused by rank, and new scores for some of them."""

from __future__ import annotations

import pytest

from sessions.retrieval.ranking import fuse, rescored


def test_what_is_high_in_both_lists_comes_first_and_the_first_of_all_has_one() -> None:
    (first, score), *_ = fuse([(1.0, [1, 2, 3]), (1.0, [1, 3])])
    assert first == 1 and score == pytest.approx(1.0)
    assert [each for each, _ in fuse([(1.0, [1, 2, 3]), (1.0, [4, 3])])] == [3, 1, 4, 2]
    assert [each for each, _ in fuse([(1.0, [1, 2]), (3.0, [2])])] == [2, 1]
    assert fuse([]) == [] and fuse([(1.0, [])]) == []


def test_those_without_a_new_score_stay_behind_in_their_order() -> None:
    assert rescored([1, 2, 3, 4], {3: 0.9, 1: 0.2}) == [(3, 0.9), (1, 0.2), (2, 0.0), (4, 0.0)]
