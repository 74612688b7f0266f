"""Pauses double up to their bound, with and without jitter, and begin anew after a success."""

from __future__ import annotations

import random

from sessions.backoff import Backoff


def test_pauses_double_up_to_the_bound_and_begin_anew_after_a_reset() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [round(backoff.next_s(), 3) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    backoff.reset()
    assert backoff.next_s() == 0.1


def test_jitter_stays_between_half_and_one_and_a_half_and_differs_between_callers() -> None:
    pauses = [Backoff(1.0, 8.0, random.Random(seed)).next_s() for seed in range(200)]
    assert all(0.5 <= pause < 1.5 for pause in pauses) and len(set(pauses)) > 100
