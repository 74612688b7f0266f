"""Learns how long tools run, to tell how soon a session that waits for one comes back.

A turn that ends with calls is gone on with when their outputs are there: machines answer machines, mostly within
seconds, and each tool at a pace of its own. So the time from a call to the turn that brings its output is kept per
tenant and per set of tools called together, as the mean and the variance of its logarithm (durations of programs are
about log-normal); old observations fade. Tools of which nothing is known are taken for what programs are.

    remaining(waited) = the median of what is left, given that so much has passed
    index(waited)     = P(back by then) / E[time kept]     comparable with `eviction_rank.ReturnModel.index`

Pure and bounded. It does not know sessions, KV or clocks.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from statistics import NormalDist
from typing import Final

from sessions.model.types import TenantId

TOOLS_MAX: Final = 10_000  # sets of tools whose times are kept
NAMES_MAX: Final = 16  # tool names of one turn that are told apart; more are cut off
_FADE: Final = 0.9  # weight of earlier observations, applied at each new one
_PRIOR_MEDIAN_S: Final = 2.0
_PRIOR_SPREAD: Final = 1.5  # of the logarithm of seconds
_PRIOR_WEIGHT: Final = 0.5  # weight of the prior, in observations
_SPREAD_MIN: Final = 0.05
_SHORTEST_S: Final = 0.001
_KNOWN_WEIGHT: Final = 1.5  # two observations: from then on something is done ahead of a return
_OVERDUE: Final = 0.001  # the share of calls that take longer than one that counts as lost
_NORMAL: Final = NormalDist()

ToolSet = tuple[TenantId, tuple[str, ...]]


def tool_set(tenant: TenantId, tools: Iterable[str]) -> ToolSet:
    """Returns the key under which the times of calls made together are stored."""
    return tenant, tuple(sorted(set(tools))[:NAMES_MAX])


class _Times:
    """Running sums over logarithms of durations, including those of the prior."""

    __slots__ = ("squares", "total", "weight")

    def __init__(self) -> None:
        mean = math.log(_PRIOR_MEDIAN_S)
        self.weight = _PRIOR_WEIGHT
        self.total = _PRIOR_WEIGHT * mean
        self.squares = _PRIOR_WEIGHT * (mean * mean + _PRIOR_SPREAD * _PRIOR_SPREAD)

    def add(self, value: float) -> None:
        self.weight = self.weight * _FADE + 1.0
        self.total = self.total * _FADE + value
        self.squares = self.squares * _FADE + value * value


class ToolTime:
    """The estimated duration of calls, as a log-normal distribution."""

    __slots__ = ("known", "mean", "spread")

    def __init__(self, mean: float, spread: float, *, known: bool) -> None:
        """`mean` and `spread` (standard deviation) are those of the logarithm of the seconds. `known`: whether the
        tools were observed often enough to act on this."""
        self.mean = mean
        self.spread = max(_SPREAD_MIN, spread)
        self.known = known

    def quantile_s(self, share: float) -> float:
        """Returns the seconds within which the share `share` (0 to 1) of all calls ends."""
        return math.exp(self.mean + self.spread * _NORMAL.inv_cdf(share))

    def remaining_s(self, waited_s: float) -> float | None:
        """Returns the median of the seconds that calls which have run for `waited_s` seconds still take; None if hardly
        any call takes that long."""
        late = 1.0 - _NORMAL.cdf((math.log(max(waited_s, _SHORTEST_S)) - self.mean) / self.spread)
        if late < _OVERDUE:
            return None
        return max(_SHORTEST_S, self.quantile_s(1.0 - late / 2) - waited_s)

    def index(self, waited_s: float) -> float | None:
        """Returns how many returns to expect per second of keeping the session's KV, after `waited_s` seconds of
        waiting; None if hardly any call takes that long."""
        remaining_s = self.remaining_s(waited_s)
        # Half are back by then, and until then were there for half of the time on average: 0.5 / (0.75 x remaining).
        return None if remaining_s is None else 1.0 / (1.5 * remaining_s)


class ToolTimes:
    """The times of all tools that one engine's sessions call, those called longest ago forgotten first."""

    def __init__(self, *, tools_max: int = TOOLS_MAX) -> None:
        self._tools_max = tools_max
        self._times: OrderedDict[ToolSet, _Times] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def observe(self, tools: ToolSet, seconds: float) -> None:
        """Learns that calls of these tools had their outputs after so many seconds."""
        times = self._times.get(tools)
        if times is None:
            times = self._times[tools] = _Times()
            if len(self._times) > self._tools_max:
                self._times.popitem(last=False)
        self._times.move_to_end(tools)
        times.add(math.log(max(seconds, _SHORTEST_S)))

    def expected(self, tools: ToolSet) -> ToolTime:
        """Returns how long calls of these tools will take."""
        times = self._times.get(tools) or _Times()
        mean = times.total / times.weight
        variance = max(0.0, times.squares / times.weight - mean * mean)
        return ToolTime(mean, math.sqrt(variance), known=times.weight >= _KNOWN_WEIGHT)
