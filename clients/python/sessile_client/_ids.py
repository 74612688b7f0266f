"""Command ids: ULIDs (48 bits of milliseconds, 80 of chance, Crockford base 32), made by the client.

A command's id is its idempotency key, so it must be unique per principal and session for 24 h. Time and chance
are given by the caller: this module reads neither.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_MS_MAX = (1 << 48) - 1


def ulid(at_ms: int, rng: random.Random) -> str:
    """The 26 characters of a ULID that carries ``at_ms`` and 80 bits from ``rng``."""
    if not 0 <= at_ms <= _TIME_MS_MAX:
        raise ValueError(f"a ULID holds 0 to {_TIME_MS_MAX} ms, not {at_ms}")
    number = (at_ms << 80) | rng.getrandbits(80)
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def ulid_factory(now_ms: Callable[[], int], rng: random.Random) -> Callable[[], str]:
    """A source of fresh ULIDs on the given clock and chance."""
    return lambda: ulid(now_ms(), rng)
