"""Keeps calls from a tool that fails: after so many failures in a row none is sent for a while, then one is tried.

`CircuitBreaker` is one process's, and pure: the caller says what time it is. Replicas of a cluster share theirs by the
port `SharedBreakers`.
"""

from __future__ import annotations

from typing import Final, Protocol

from sessions.model.types import TenantId

FAILURES_MAX: Final = 5
PAUSE_S: Final = 30.0


class SharedBreakers(Protocol):
    """The breakers of tools that several replicas share; each is one tenant's and one tool's. All methods may raise
    Unavailable if the server cannot be reached."""

    async def permits(self, tenant: TenantId, tool: str, *, failures_max: int, pause_s: float) -> bool:
        """Returns whether a call may be sent now, like `CircuitBreaker.permits`."""
        ...

    async def record(self, tenant: TenantId, tool: str, *, success: bool, failures_max: int, pause_s: float) -> None:
        """Notes the outcome of a call."""
        ...


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
