"""Waiting and residency at the points where they are known."""

from __future__ import annotations

import math

import pytest

from deploy.planning.queueing import mean_wait_s, residency, wait_quantile_s


def test_an_m_m_1_queue_waits_as_the_textbook_says() -> None:
    assert mean_wait_s(0.5, 1.0, 1.0) == pytest.approx(1.0)
    assert mean_wait_s(0.5, 1.0, 0.0) == pytest.approx(0.5)
    assert wait_quantile_s(0.5, 1.0, 1.0, 0.95) == pytest.approx(math.log(0.5 / 0.05) / 0.5)


def test_an_overfull_queue_waits_for_ever_and_an_idle_one_not_at_all() -> None:
    assert mean_wait_s(1.0, 1.0, 1.0) == math.inf
    assert wait_quantile_s(0.01, 1.0, 1.0, 0.95) == 0.0


def test_exponential_think_times_are_resident_as_much_as_is_held() -> None:
    times = [-math.log(1 - (index + 0.5) / 2000) for index in range(2000)]
    for held in (0.1, 0.5, 0.9):
        assert residency(times, held) == pytest.approx(held, abs=0.01)


def test_who_returns_at_once_is_resident_though_most_sleep() -> None:
    assert residency([1.0] * 90 + [1000.0] * 10, 0.05) == pytest.approx(0.9)


def test_nothing_held_finds_nothing_and_everything_held_finds_all() -> None:
    assert residency([1.0, 2.0], 0.0) == 0.0
    assert residency([1.0, 2.0], 1.0) == 1.0
    assert residency([5.0] * 4, 0.5) == 0.0  # least recently used, all alike: each is dropped just before its return
