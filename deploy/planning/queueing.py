"""How long a prompt waits, and which sessions' KV is still there when they return.

Waiting: one queue a replica, M/G/1 with the mean of Pollaczek and Khinchine, its tail taken for exponential (Kingman's
heavy-traffic limit). Residency: least recently used, by Che's approximation (Che, Tung, Wang 2002): a store keeps what
was used within a time T, which fills it.
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

STEPS: Final = 40


def mean_wait_s(rate: float, service_s: float, variation: float) -> float:
    """`variation`: squared coefficient of variation of the service time. Infinite where more comes than is served."""
    load = rate * service_s
    if load >= 1:
        return math.inf
    return load * service_s * (1 + variation) / (2 * (1 - load))


def wait_quantile_s(rate: float, service_s: float, variation: float, share: float) -> float:
    load, mean = rate * service_s, mean_wait_s(rate, service_s, variation)
    if load <= 1 - share:  # so many do not wait at all
        return 0.0
    return math.inf if math.isinf(mean) else mean / load * math.log(load / (1 - share))


def residency(think_s: Sequence[float], held: float) -> float:
    """The share of returns that find their KV, in a store that holds the share `held` of the idle sessions: sorted
    think times. More than `held` where some think far longer than most."""
    if held >= 1:
        return 1.0
    if held <= 0 or not think_s:
        return 0.0
    sums = _sums(tuple(think_s))
    if sums[-1] <= 0:
        return held
    low, high = 0.0, think_s[-1]
    for _ in range(STEPS):
        middle = (low + high) / 2
        below = bisect_right(think_s, middle)
        if (sums[below] + (len(think_s) - below) * middle) / sums[-1] < held:
            low = middle
        else:
            high = middle
    return bisect_right(think_s, high) / len(think_s)


@functools.lru_cache(maxsize=16)
def _sums(times: tuple[float, ...]) -> tuple[float, ...]:
    """Of the first so many."""
    return (0.0, *itertools.accumulate(times))
