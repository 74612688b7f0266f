"""How long tools run, as far as that was seen."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from inference.kv.tool_times import ToolTimes, tool_set
from sessions.model.types import TenantId

TENANT = TenantId("t")
SEARCH = tool_set(TENANT, ["search"])
BUILD = tool_set(TENANT, ["build"])


def learned(rounds: int = 200) -> ToolTimes:
    chance, times = random.Random(3), ToolTimes()
    for _ in range(rounds):
        times.observe(SEARCH, chance.lognormvariate(math.log(0.5), 0.2))
        times.observe(BUILD, chance.lognormvariate(math.log(90.0), 0.2))
    return times


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
