"""Keys of the servers of one installation, for sealed cookies, which the servers make and read themselves.

They are stored with the tenants' keys, under a name that no tenant can have: wrapped, rotated and shared in the same
way, so that each gateway reads what another one sealed without looking into a table.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from persistence.at_rest.tenant_keys import REFRESH_S, TenantKeys
from persistence.master_key import KEY_BYTES
from sessions.model.errors import Unavailable
from sessions.model.types import TenantId, UnixMs

SIGN_IN: Final = TenantId("\x7fsign-in")  # no name has a control character

EVERYWHERE_MS: Final = round(3 * REFRESH_S * 1000)
"""How long after a key is made every server has read it, in milliseconds; the sweep of rows waits as long."""


class StoredServerKeys:
    """Server keys in the key database. Implements `transport.auth.sealed_cookies.SealingKeys`. `load` must be called
    before the other methods."""

    def __init__(self, keys: TenantKeys, now_ms: Callable[[], UnixMs], name: TenantId = SIGN_IN) -> None:
        self._keys = keys
        self._now_ms = now_ms
        self._name = name

    async def load(self) -> None:
        """Reads the keys into memory, and makes the first one if there is none. Raises Unavailable."""
        await self._keys.writing(self._name)

    def writing(self) -> tuple[str, bytes]:
        """Returns id and secret of the key that seals: the newest that every server has had time to read, else the
        oldest. (Other servers could not open what is sealed with a key just made.) Raises Unavailable."""
        ring = self._keys.ring(self._name)
        if ring is None or ring.writes is None:
            raise Unavailable("keys_unavailable", "The keys of sign-ins cannot be had at the moment.")
        keys, everywhere = list(ring.by_id.values()), self._now_ms() - EVERYWHERE_MS
        key = next((key for key in reversed(keys) if key.created_at <= everywhere), keys[0])
        return key.id, key.secret

    def find(self, key_id: str) -> bytes | None:
        """Returns the secret of a key by its id; None if this process does not know that key, or not yet."""
        ring = self._keys.ring(self._name)
        key = None if ring is None else ring.by_id.get(key_id)
        return None if key is None else key.secret


class MemoryServerKeys:
    """A server key in memory, for one process and as long as it runs."""

    def __init__(self) -> None:
        self._secret: Final = os.urandom(KEY_BYTES)

    async def load(self) -> None:
        """Does nothing, because the key is made with the object."""

    def writing(self) -> tuple[str, bytes]:
        return "00000000", self._secret

    def find(self, key_id: str) -> bytes | None:
        return self._secret if key_id == "00000000" else None
