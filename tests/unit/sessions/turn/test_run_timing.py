"""Times of one run and of responses that ended: which of them count, and what is traced."""

from __future__ import annotations

import pytest

from sessions.metrics import Metrics
from sessions.turn.run_timing import RunTiming


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def timed(metrics: Metrics, *moments: float, whole: bool = True) -> RunTiming:
    """A run that began at 0 and made a token at each moment."""
    now = [0.0]
    timing = RunTiming(metrics, lambda: now[0], whole=whole)
    for moment in moments:
        now[0] = moment
        timing.record_tokens(1)
    return timing


def test_a_run_counts_its_first_token_and_what_lies_between_the_others(metrics: Metrics) -> None:
    timing = timed(metrics, 0.5, 0.7, 0.9)
    assert metrics.num_decoding == 1
    timing.end()
    assert metrics.num_decoding == 0
    assert (metrics.ttft_s.sum, metrics.itl_s.count) == (0.5, 2)
    assert metrics.tpot_s.sum == pytest.approx(0.2)
    assert metrics.in_target.values["true",] == 1


def test_a_continued_run_has_no_first_token_of_its_own(metrics: Metrics) -> None:
    timed(metrics, 50.0, 50.1, whole=False).end()
    assert (metrics.ttft_s.count, metrics.itl_s.count, metrics.in_target.total) == (0, 1, 0)


def test_a_run_without_tokens_counts_nothing(metrics: Metrics) -> None:
    timed(metrics).end()
    assert (metrics.num_decoding, metrics.ttft_s.count, metrics.in_target.total) == (0, 0, 0)
