"""Bounds the bytes of request bodies that are in memory at a time, in all and for each caller.

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
RETRY_MS: Final = 1_000


class BodyBudget:
    """The bytes of bodies that one process holds, by caller."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._share = int(bytes_max * CALLER_SHARE)
        self._of = Counter[Hashable]()
        self._in_all = 0

    def take(self, caller: Hashable, size: int) -> None:
        """Counts `size` more bytes of a caller. Raises Limited if the caller holds too many, Overloaded if all do."""
        if self._of[caller] + size > self._share:
            self._tidy(caller)
            raise Limited(
                "rate_limited", "Too many bytes of this key's requests are on their way.", retry_after_ms=RETRY_MS
            )
        if self._in_all + size > self._bytes_max:
            self._tidy(caller)
            raise Overloaded("overloaded", "Too many bytes of requests are on their way here.", retry_after_ms=RETRY_MS)
        self._of[caller] += size
        self._in_all += size

    def give_back(self, caller: Hashable, size: int) -> None:
        """Takes back what `take` has counted."""
        self._of[caller] -= size
        self._in_all -= size
        self._tidy(caller)

    def _tidy(self, caller: Hashable) -> None:
        if not self._of[caller]:
            del self._of[caller]
