"""Finds the openings (instructions, tools) that sessions of a tenant have in common: only those are shared.

What one session alone begins with may reveal something of a person: it stays in that session's own KV, and goes with
it. An opening counts as common from the second session on that begins so here since the engine started; of the
`KNOWN_MAX` that were seen last. Knows neither engines nor KV.
"""

from __future__ import annotations

import array
import hashlib
from collections import OrderedDict
from typing import Final

from sessions.model.types import SessionKey, TenantId, pack_tokens

KNOWN_MAX: Final = 10_000


class SharedPrefixes:
    def __init__(self) -> None:
        self._first: OrderedDict[tuple[TenantId, bytes], SessionKey] = OrderedDict()

    def common(self, key: SessionKey, opening: array.array[int]) -> bool:
        """Notes how a session's prompt begins; returns whether another session of its tenant began the same way."""
        name = key.tenant, hashlib.blake2b(pack_tokens(opening), digest_size=16).digest()
        first = self._first.setdefault(name, key)
        self._first.move_to_end(name)
        if len(self._first) > KNOWN_MAX:
            self._first.popitem(last=False)
        return first != key
