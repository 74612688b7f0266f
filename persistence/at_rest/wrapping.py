"""The wrappers of tenants' keys: the file of the master key, or a key service behind the same port.

A wrapped key is bound to its purpose (`about`), so that rows of a key store cannot be swapped.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from persistence.master_key import MasterKeyRing


class WrappedSecret(NamedTuple):
    wrapper: str
    """The name of the key that wrapped it: a rotation finds by it what is still to be wrapped again."""
    data: bytes


class KeyWrapper(Protocol):
    """The key that wraps tenants' keys. Its methods raise Unavailable if the service that has it is away, BadInput if
    its settings are wrong."""

    async def current(self) -> str:
        """Reads anew, and returns, the name of the key that wraps now."""
        ...

    async def wrap(self, secret: bytes, about: bytes) -> WrappedSecret: ...

    async def unwrap(self, wrapped: WrappedSecret, about: bytes) -> bytes | None:
        """Returns the secret; None if another key wrapped it, or it was wrapped for another purpose than `about`."""
        ...

    async def rewrap(self, wrapped: WrappedSecret, about: bytes) -> WrappedSecret | None:
        """Wraps the same secret under the key that wraps now; returns None if it cannot be unwrapped."""
        ...


class MasterKeyWrapper:
    """Wraps tenants' keys under the newest master key of a file."""

    def __init__(self, masters: MasterKeyRing) -> None:
        self._masters = masters

    async def current(self) -> str:
        await asyncio.to_thread(self._masters.reload)
        return self._masters.newest.id

    async def wrap(self, secret: bytes, about: bytes) -> WrappedSecret:
        await asyncio.to_thread(self._masters.reload)  # nothing new under a master that is about to be dropped
        master = self._masters.newest
        return WrappedSecret(master.id, master.wrap(secret, about))

    async def unwrap(self, wrapped: WrappedSecret, about: bytes) -> bytes | None:
        if self._masters.find(wrapped.wrapper) is None:  # another process may have been given a newer file
            await asyncio.to_thread(self._masters.reload)
        master = self._masters.find(wrapped.wrapper)
        return None if master is None else master.unwrap(wrapped.data, about)

    async def rewrap(self, wrapped: WrappedSecret, about: bytes) -> WrappedSecret | None:
        secret = await self.unwrap(wrapped, about)
        return None if secret is None else await self.wrap(secret, about)
