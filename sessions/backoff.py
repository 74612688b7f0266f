"""Computes the pauses between attempts: doubled each time up to a bound, with jitter, so that many who failed together
do not come back together."""

from __future__ import annotations

import random


class Backoff:
    """The pauses between one caller's attempts. Call `reset` after a success."""

    __slots__ = ("_first_s", "_max_s", "_pause_s", "_rng")

    def __init__(self, first_s: float, max_s: float, rng: random.Random | None = None) -> None:
        """`first_s` is the first pause and `max_s` the longest, in seconds. With `rng` each pause is drawn from 50 to
        150 % of its nominal length; None: no jitter."""
        self._first_s = self._pause_s = first_s
        self._max_s = max_s
        self._rng = rng

    def next_s(self) -> float:
        """Returns how many seconds to wait before the next attempt."""
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, self._max_s)
        return pause_s if self._rng is None else pause_s * (0.5 + self._rng.random())

    def reset(self) -> None:
        self._pause_s = self._first_s
