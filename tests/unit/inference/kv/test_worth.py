"""The worth of KV: whether to restore or recompute, whose silence ends first, how long tools run."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.kv.cold_tier import FetchProgress
from inference.kv.cost import DEADLINE_MAX_S, DEADLINE_MIN_S, CostModel, LinearFit, RestoreChoice
from inference.kv.eviction_rank import FIT_SAMPLE, ReturnModel, ReturnTracker, SilenceKind, silence_kind
from inference.kv.tool_times import ToolTimes, tool_set
from sessions.model.types import TenantId
from tests.support.effort import effort
from tests.support.engines.kv import key

# -- cost
BYTES_PER_TOKEN = 23_000


def prefill_s(begin: int, end: int) -> float:
    """The small model on one core: 330 tokens/s, and more the longer the context."""
    return (end - begin) / 330 + (end * end - begin * begin) / 2 * 5e-7


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
            spent_s = restore
            model.moved("disk", size, restore, now)
        elif choice.restore:
            spent_s = choice.deadline_s + recompute
            model.moved("disk", size, restore, now)
            model.prefilled(0, tokens, recompute)
        else:
            spent_s = recompute
            model.prefilled(0, tokens, recompute)
        model.prefilled(tokens, tokens + 30, prefill_s(tokens, tokens + 30))
        if round_ >= 10:
            regrets.append(spent_s / min(restore, recompute) - 1)
    regrets.sort()
    assert regrets[int(0.95 * len(regrets))] <= 0.15


def took_s(choice: RestoreChoice, size: int, rate: float, recompute: float) -> float:
    """What a turn takes whose read is watched as `Promotions` does it, every millisecond. The first bytes come after
    3 ms."""
    if not choice.tries:
        return recompute
    progress, waited = FetchProgress(), 0.0
    while progress.num_bytes < size:
        waited += 0.001
        if waited >= 0.003:
            progress.first_s = 0.003
            while progress.num_bytes < size and progress.num_bytes + progress.piece_bytes <= rate * (waited - 0.003):
                progress.num_bytes += progress.piece_bytes
            if size - progress.num_bytes <= rate * (waited - 0.003) - progress.num_bytes:
                progress.num_bytes = size  # the last piece is shorter
        if choice.is_too_slow(size, progress, waited, waited):
            return waited + recompute
    return waited


@pytest.mark.parametrize("looks", [False, True])
def test_whatever_was_expected_the_first_bytes_bound_the_regret(looks: bool) -> None:
    """A tier that became another one unseen, from 1.5 MB/s to 1 GB/s, with the crossover at 7.6 MB/s."""
    for tokens in (128, 256, 512, 1024, 4096):
        size, recompute = tokens * BYTES_PER_TOKEN, prefill_s(0, tokens)
        for rate in (1.5e6, 3e6, 6e6, 7e6, 9e6, 12e6, 25e6, 1e8, 1e9):
            choice = RestoreChoice(not looks, 0.0, recompute, 30.0, recompute, looks)
            best = min(recompute, 0.003 + size / rate)
            assert took_s(choice, size, rate, recompute) / best - 1 <= 0.15, (tokens, rate)


def test_a_tier_taken_for_slow_is_looked_at_again_but_not_all_the_time() -> None:
    model = CostModel()
    for number in range(5):
        model.prefilled(0, 1000, prefill_s(0, 1000))
        model.moved("disk", 23_000_000, 30.0, float(number))
    way = ("disk", "device")
    assert not model.choose(way, 23_000_000, 0, 1000, 4.2).tries
    choice = model.choose(way, 23_000_000, 0, 1000, 10.0)
    assert choice.looks and not choice.restore
    assert not model.choose(way, 23_000_000, 0, 1, 10.0).tries  # no disk is worth that


@given(st.integers(0, 4000), st.integers(1, 4000), st.floats(1e-6, 100))
def test_deadlines_lie_in_their_bounds(begin: int, tokens: int, seconds: float) -> None:
    model = CostModel()
    model.prefilled(begin, begin + tokens, seconds)
    choice = model.choose(("disk",), tokens * BYTES_PER_TOKEN, begin, begin + tokens, 0.0)
    assert DEADLINE_MIN_S <= choice.deadline_s <= max(DEADLINE_MAX_S, choice.recompute_s)
    assert model.saved_s(tokens * BYTES_PER_TOKEN, tokens, 0.0) >= 0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e9), st.floats(0, 1e3)), min_size=1, max_size=30))
def test_a_line_never_goes_down(points: list[tuple[float, float, float]]) -> None:
    line = LinearFit(0.01, 1e-9, ((1.0, 1e6),))
    for x, z, y in points:
        line.measured(x, z, y)
        assert line.a >= 0 and line.b >= 0 and math.isfinite(line.at(1e6, 1e9))


# -- eviction rank
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
    for _ in range(effort(6_000, 60_000)):
        model.observe(FIRST, chance.uniform(900, 1100), returned=True)
    model.fit()
    assert model.index(FIRST, 0.0) < model.index(FIRST, 900.0)
    for _ in range(8):
        for _ in range(effort(3_000, 30_000)):
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


# -- tool times
TENANT = TenantId("t")
SEARCH = tool_set(TENANT, ["search"])
BUILD = tool_set(TENANT, ["build"])


def test_the_tools_called_longest_ago_are_forgotten() -> None:
    times = ToolTimes(tools_max=3)
    for number in range(10):
        times.observe(tool_set(TENANT, [f"tool{number}"]), 1.0)
        times.observe(tool_set(TENANT, [f"tool{number}"]), 1.0)
    assert len(times) == 3 and times.expected(tool_set(TENANT, ["tool9"])).known
    assert not times.expected(tool_set(TENANT, ["tool0"])).known


@given(st.lists(st.floats(0, 1e6), max_size=30), st.floats(0, 1e6))
def test_whatever_was_seen_an_index_is_finite_or_there_is_none(seen: list[float], waited: float) -> None:
    times = ToolTimes()
    for seconds in seen:
        times.observe(SEARCH, seconds)
    index = times.expected(SEARCH).index(waited)
    assert index is None or 0 < index < math.inf
