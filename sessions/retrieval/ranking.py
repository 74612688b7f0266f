"""Puts hits in order: several lists become one by their ranks.

The method is reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009). Scores of different kinds, such as a
cosine and a count of words, cannot be added up; places in a list can. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FUSION_K: Final = 60


def fuse(lists: Sequence[tuple[float, Sequence[int]]]) -> list[tuple[int, float]]:
    """Fuses lists of ids, each with its weight and the best id first, into one. Returns pairs of id and score, the best
    first; a score is from 0 to 1, and 1 means first in every list."""
    best = sum(weight for weight, _ in lists) / (FUSION_K + 1)
    scores: dict[int, float] = {}
    for weight, ids in lists:
        for rank, each in enumerate(ids, 1):
            scores[each] = scores.get(each, 0.0) + weight / (FUSION_K + rank)
    order = sorted(scores, key=lambda each: (-scores[each], each))
    return [(each, scores[each] / best if best else 0.0) for each in order]
