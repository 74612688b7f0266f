"""Ranks by expected return: LRU before anything was learned, then what the sessions' own rhythm says."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from inference.kv.eviction_rank import FIT_SAMPLE, ReturnModel, ReturnTracker, SilenceKind, silence_kind
from tests.support.engines.kv import key

FIRST = silence_kind(0, 500, None)
LATER = silence_kind(5, 500, 60.0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=20))
def test_before_anything_was_seen_the_order_is_lru(ages: list[float]) -> None:
    model = ReturnModel()
    ranks = [model.index(FIRST, age) for age in sorted(ages)]
    assert ranks == sorted(ranks, reverse=True) and min(ranks) > 0


def learned() -> ReturnModel:
    """First turns: one in ten comes back, about 100 s later. Later ones: nine in ten. Nobody within 60 s."""
    chance, model = random.Random(5), ReturnModel()
    for kind, share in ((FIRST, 0.1), (LATER, 0.9)):
        for _ in range(500):
            back = chance.random() < share
            model.observe(kind, chance.uniform(60, 160) if back else 2000.0, returned=back)
    model.fit()
    return model


def test_a_fit_looks_at_a_bounded_number_of_the_silences_that_go_on() -> None:
    """It is made on the event loop."""

    class Watched(ReturnModel):
        looked = weighed = 0.0

        def fit(self, silent: Iterable[tuple[SilenceKind, float]] = (), *, weight: float = 1.0) -> None:
            self.looked = len(list(silent))
            self.weighed = self.looked * weight

    clock, model = Clock(), Watched()
    returns = ReturnTracker(clock, fit_every=1, model=model)
    for number in range(3 * FIT_SAMPLE):
        returns.on_turn(key(f"s{number}"), 800)
    clock.now = 60.0
    returns.on_turn(key("s0"), 800)
    assert model.looked == FIT_SAMPLE and math.isclose(model.weighed, 3 * FIT_SAMPLE)


def test_old_observations_fade_and_a_new_habit_is_learned() -> None:
    chance, model = random.Random(6), ReturnModel()
    for _ in range(60_000):
        model.observe(FIRST, chance.uniform(900, 1100), returned=True)
    model.fit()
    assert model.index(FIRST, 0.0) < model.index(FIRST, 900.0)
    for _ in range(8):
        for _ in range(30_000):
            model.observe(FIRST, chance.uniform(2, 8), returned=True)
        model.fit()
    assert model.index(FIRST, 0.0) > model.index(FIRST, 900.0)


def test_returns_remembers_rhythms_under_a_bound() -> None:
    clock = Clock()
    returns = ReturnTracker(clock, sessions_max=10, fit_every=8)
    for round_ in range(40):
        for number in range(4):
            clock.now = round_ * 100.0 + number
            returns.on_turn(key(f"steady-{number}"), 800)
        returns.on_turn(key(f"once-{round_}"), 800)
    assert len(returns._silences) == 10
    clock.now += 60.0
    steady, once = (returns.index(key(name), clock.now - 60.0, 800) for name in ("steady-3", "once-39"))
    assert steady > 2 * once
    unknown = returns.index(key("from before the restart"), clock.now - 60.0, 800)
    assert 0 < unknown <= steady
    returns.forget(key("steady-3"))
    returns.forget(key("steady-3"))
    assert returns.index(key("steady-3"), clock.now - 60.0, 800) == unknown


def test_who_waits_for_tools_ranks_by_their_times_and_teaches_nothing_about_people() -> None:
    clock = Clock()
    returns = ReturnTracker(clock)
    returns.on_turn(key("quick"), 800)
    returns.on_turn(key("slow"), 800)
    for _ in range(6):
        for name, tool, seconds in (("quick", "search", 1.0), ("slow", "build", 300.0)):
            returns.on_tools(key(name), [tool])
            clock.now += seconds
            returns.on_turn(key(name), 800)
    before = returns.model.index(FIRST, 10.0)
    returns.model.fit()
    assert returns.model.index(FIRST, 10.0) == before, "no silence of anybody's was observed"
    returns.on_turn(key("gone"), 800)
    for name, tool in (("quick", "search"), ("slow", "build"), ("gone", "search")):
        returns.on_tools(key(name), [tool])
    returns.on_turn(key("person"), 800)
    quick, slow, person = (returns.index(key(name), clock.now, 800) for name in ("quick", "slow", "person"))
    assert quick > 10 * person and quick > 10 * slow
    clock.now += 3600.0
    assert not returns.waits_for_tools(key("gone")), "no such call takes so long"
    assert returns.index(key("gone"), clock.now, 800) < 0.1 * person
    returns.forget(key("slow"))
    assert not returns.waits_for_tools(key("slow"))
