"""Bounds the bytes of request bodies that are in memory at a time, in all, for each caller and for each tenant.

A body counts from its first byte until it was parsed and let go of, or answered. Without this bound each of a thousand
connections could hold a body that lacks its last byte, four megabytes long. Compressed bodies count as unpacked.

Does not know what is in a body, or how long one may take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final

from sessions.model.errors import Limited, Overloaded

BODIES_BYTES_MAX: Final = 256 * 1024 * 1024  # all together
CALLER_SHARE: Final = 0.25  # of them that one caller's may have
TENANT_SHARE: Final = 0.5  # of them that one tenant's callers may have together, so that its keys leave others room
RETRY_MS: Final = 1_000


class BodyBudget:
    """The bytes of bodies that one process holds, by caller and by tenant."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._of = Counter[tuple[str, Hashable]]()
        self._in_all = 0

    def take(self, caller: Hashable, tenant: Hashable, size: int) -> None:
        """Counts `size` more bytes of a caller. Raises Limited if the caller or its tenant holds too many, Overloaded
        if all do."""
        for whose, name, share in (("key", caller, CALLER_SHARE), ("tenant", tenant, TENANT_SHARE)):
            if self._of.get((whose, name), 0) + size > self._bytes_max * share:
                message = f"Too many bytes of this {whose}'s requests are on their way."
                raise Limited("rate_limited", message, retry_after_ms=RETRY_MS)
        if self._in_all + size > self._bytes_max:
            raise Overloaded("overloaded", "Too many bytes of requests are on their way here.", retry_after_ms=RETRY_MS)
        self._count(caller, tenant, size)

    def give_back(self, caller: Hashable, tenant: Hashable, size: int) -> None:
        """Takes back what `take` has counted."""
        self._count(caller, tenant, -size)

    def _count(self, caller: Hashable, tenant: Hashable, size: int) -> None:
        self._in_all += size
        for name in (("key", caller), ("tenant", tenant)):
            self._of[name] += size
            if not self._of[name]:
                del self._of[name]
