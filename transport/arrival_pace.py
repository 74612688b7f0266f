"""Spaces out what one caller sends while other callers are about, so that nobody's burst stands in front of the rest.

A caller is a key with all users that it speaks for, or the user of a token. Each thing that arrives has a cost in
requests, and a caller's own begin `rate` a second, after a burst of `BURST`; the others wait, one behind the other.
Who has the doors to itself is never made to wait.

Invariant: what is admitted of one caller within t seconds costs at most `BURST + rate * t`, as long as another is
about. Pure; the clock is an argument. The virtual scheduling of ATM's generic cell rate algorithm (ITU-T I.371).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

BURST: Final = 8.0  # requests
ABOUT_S: Final = 10.0  # how long a caller counts as about after it has sent something
WAIT_MAX_S: Final = 10.0
CALLERS_MAX: Final = 10_000

Caller = tuple[str, str]


class _Arrivals(NamedTuple):
    last_at: float
    paid_until: float  # the time at which all that was admitted would have been sent at the rate


class ArrivalPace:
    """The pace of all callers of one process. Times are in seconds, by the caller's clock."""

    def __init__(self) -> None:
        self._callers: OrderedDict[Caller, _Arrivals] = OrderedDict()  # by caller; the one that sent last is last

    def enter(self, caller: Caller, cost: float, rate: float, now: float) -> float | None:
        """Admits an arrival that costs `cost` requests; its caller may begin `rate` requests a second. Returns the
        seconds until the arrival may begin. If they were more than `WAIT_MAX_S`, returns None and admits nothing."""
        before = self._callers.pop(caller, None)
        other = next(reversed(self._callers.values()), None)
        is_alone = other is None or now - other.last_at > ABOUT_S
        paid_until = now if is_alone or before is None else max(before.paid_until, now)
        wait_s = max(0.0, paid_until - BURST / rate - now)
        is_admitted = wait_s <= WAIT_MAX_S
        self._callers[caller] = _Arrivals(now, paid_until + cost / rate if is_admitted else paid_until)
        if len(self._callers) > CALLERS_MAX:
            self._callers.popitem(last=False)
        return wait_s if is_admitted else None
