"""Paces new connections: how many are let in a second, and when those that are too many come again.

After a restart or a network's trouble everybody reconnects at once, and each one resumes: reads of the journal,
snapshots, activations. So many a second are let in, with a burst of two seconds' worth; each of the rest gets a
time of its own, one behind the other, at which there will be room for it. So the storm comes back as a stream and not
as a storm.

Invariants: at most `BURST_S + t` seconds' worth are let in within any t seconds. Promises lie at most `WAIT_MAX_S`
ahead.
Pure; the clock is an argument. Does not know connections.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 2.0
WAIT_MAX_S: Final = 20.0  # as long as clients' own backing off takes at most


class ConnectionRate:
    """The pace of new connections of one process. `rate` (connections a second) may change at each call, as it comes
    from a file that is read again. Times are in seconds."""

    def __init__(self) -> None:
        self._full_at = 0.0  # when the burst would be whole again
        self._promised = 0.0  # the latest time that a connection was told to come again at

    def wait(self, now: float, rate: float) -> int:
        """Returns how long a new connection would have to wait, in milliseconds (0: it may come in), without admitting
        any."""
        if max(self._full_at, now) + 1 / rate - now <= BURST_S + 1e-6:
            return 0
        return max(1, round(min(max(self._promised, now) + 1 / rate - now, WAIT_MAX_S) * 1000))

    def enter(self, now: float, rate: float) -> int:
        """Admits a connection and returns 0; or returns the milliseconds after which it should try again."""
        full_at = max(self._full_at, now) + 1 / rate
        if full_at - now <= BURST_S + 1e-6:
            self._full_at = full_at
            return 0
        self._promised = max(self._promised, now) + 1 / rate
        if self._promised > now + WAIT_MAX_S:
            self._promised = now  # the line is as long as it gets: it begins again, and is shorter by then
            return round(WAIT_MAX_S * 1000)
        return max(1, round((self._promised - now) * 1000))
