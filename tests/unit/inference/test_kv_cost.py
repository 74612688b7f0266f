"""Restore or recompute: learns what either takes, decides near the crossover, forgives a tier that was slow once."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.kv.cost import DEADLINE_MAX_S, DEADLINE_MIN_S, CostModel, Line

BYTES_PER_TOKEN = 23_000


def prefill_s(begin: int, end: int) -> float:
    """The small model on one core: 330 tokens/s, and more the longer the context."""
    return (end - begin) / 330 + (end * end - begin * begin) / 2 * 5e-7


def test_it_learns_both_coefficients_of_a_prefill() -> None:
    chance, model = random.Random(1), CostModel()
    for _ in range(60):
        begin = chance.randrange(3000)
        end = begin + chance.randrange(20, 1000)
        model.prefilled(begin, end, prefill_s(begin, end) * chance.uniform(0.95, 1.05))
    for begin, end in ((0, 300), (0, 4000), (3000, 3200)):
        assert model.prefill_s(begin, end) == pytest.approx(prefill_s(begin, end), rel=0.12)


def test_it_learns_latency_and_bandwidth_of_a_tier() -> None:
    chance, model = random.Random(2), CostModel()
    for number in range(40):
        size = int(10 ** chance.uniform(5, 8))
        model.moved("disk", size, (0.03 + size / 5e7) * chance.uniform(0.95, 1.05), float(number))
    for size in (10**5, 10**7, 10**8):
        assert model.move_s("disk", size, 40.0) == pytest.approx(0.03 + size / 5e7, rel=0.15)
    assert model.described()["disk_bytes_per_s"] == pytest.approx(5e7, rel=0.15)


def test_with_nothing_measured_it_restores_to_find_out() -> None:
    model = CostModel()
    choice = model.choose(("disk", "device"), 50_000_000, 0, 2000, 0.0)
    assert choice.restore and math.isinf(choice.recompute_s) and choice.deadline_s == DEADLINE_MAX_S


@pytest.mark.parametrize("bytes_per_s", [1e6, 4e6, 7e6, 1e7, 3e7, 1e9])
def test_regret_is_small_on_both_sides_of_the_crossover(bytes_per_s: float) -> None:
    """The crossover lies at 7.6 MB/s: 330 tokens/s of 23 kB."""
    chance, model, regrets = random.Random(3), CostModel(), []
    now = 0.0
    for round_ in range(120):
        now += 1.0
        tokens = chance.choice((128, 256, 512, 1024, 2048, 4096))
        size = tokens * BYTES_PER_TOKEN
        restore = (0.01 + size / bytes_per_s) * chance.uniform(0.9, 1.1)
        recompute = prefill_s(0, tokens) * chance.uniform(0.9, 1.1)
        choice = model.choose(("disk",), size, 0, tokens, now)
        if choice.restore and restore <= choice.deadline_s:
            took = restore
            model.moved("disk", size, restore, now)
        elif choice.restore:
            took = choice.deadline_s + recompute
            model.moved("disk", size, restore, now)
            model.prefilled(0, tokens, recompute)
        else:
            took = recompute
            model.prefilled(0, tokens, recompute)
        model.prefilled(tokens, tokens + 30, prefill_s(tokens, tokens + 30))
        if round_ >= 10:
            regrets.append(took / min(restore, recompute) - 1)
    regrets.sort()
    assert regrets[int(0.95 * len(regrets))] <= 0.15


def test_a_tier_that_was_slow_is_tried_again_after_a_while() -> None:
    model = CostModel()
    for number in range(20):
        model.prefilled(0, 1000, prefill_s(0, 1000))
        model.moved("disk", 23_000_000, 30.0, float(number))
    assert not model.choose(("disk",), 23_000_000, 0, 1000, 20.0).restore
    assert model.choose(("disk",), 23_000_000, 0, 1000, 400.0).restore


@given(st.integers(0, 4000), st.integers(1, 4000), st.floats(1e-6, 100))
def test_deadlines_lie_in_their_bounds(begin: int, tokens: int, seconds: float) -> None:
    model = CostModel()
    model.prefilled(begin, begin + tokens, seconds)
    choice = model.choose(("disk",), tokens * BYTES_PER_TOKEN, begin, begin + tokens, 0.0)
    assert DEADLINE_MIN_S <= choice.deadline_s <= DEADLINE_MAX_S
    assert model.saved_s(tokens * BYTES_PER_TOKEN, tokens, 0.0) >= 0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e9), st.floats(0, 1e3)), min_size=1, max_size=30))
def test_a_line_never_goes_down(points: list[tuple[float, float, float]]) -> None:
    line = Line(0.01, 1e-9, ((1.0, 1e6),))
    for x, z, y in points:
        line.measured(x, z, y)
        assert line.a >= 0 and line.b >= 0 and math.isfinite(line.at(1e6, 1e9))
