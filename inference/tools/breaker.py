"""Keeps calls from a tool that fails: after so many failures in a row none is sent for a while, then one is tried.

Pure: the caller says what time it is.
"""

from __future__ import annotations

from typing import Final

FAILURES_MAX: Final = 5
PAUSE_S: Final = 30.0


class CircuitBreaker:
    """Stops a tenant's calls of a tool for a while after several failures."""

    __slots__ = ("_failures", "_open_until")

    def __init__(self) -> None:
        self._failures = 0
        self._open_until = 0.0

    def permits(self, now: float) -> bool:
        """Returns whether a call may be sent at `now`. After a pause one call may be sent, and others once it has
        succeeded."""
        if self._failures < FAILURES_MAX:
            return True
        if now < self._open_until:
            return False
        self._open_until = now + PAUSE_S
        return True

    def record(self, *, success: bool, now: float) -> None:
        """Notes the outcome of a call."""
        if success:
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self._open_until = now + PAUSE_S
