"""Lets one relay of a stream work at a time: a lock that expires, in Valkey or Redis.

    SET name me NX PX  ─► mine          held by me  ─► longer          held by another  ─► not mine

The key expires by itself, so that the lock of a relay that died is free after `LOCK_MS`. The lock orders work and does
not guard it: if it expires while its relay is sending, another relay may send the same rows. What is done under it must
be harmless when done twice.

Does not know what is relayed, nor where to.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

from sessions.model.errors import Unavailable

LOCK_MS: Final = 15_000

T = TypeVar("T")


class RelayLock(Protocol):
    async def acquire(self) -> bool: ...
    async def close(self) -> None: ...


class ValkeyRelayLock:
    """A relay lock in Valkey or Redis. `client` is redis-py's, for a server or a cluster; the lock closes it."""

    def __init__(self, client: Any, name: str) -> None:
        import redis.asyncio as redis

        self._client = client
        self._name = name
        self._me = secrets.token_hex(8)
        self._failures: tuple[type[BaseException], ...] = (redis.RedisError, OSError, TimeoutError)

    async def acquire(self) -> bool:
        """Takes or keeps the lock; returns False if another relay has it. Raises Unavailable."""
        return await shield_call(self._acquire())

    async def _acquire(self) -> bool:
        try:
            if await self._client.set(self._name, self._me, nx=True, px=LOCK_MS):
                return True
            holder = await self._client.get(self._name)
            if holder is None or holder.decode() != self._me:
                return False
            return bool(await self._client.pexpire(self._name, LOCK_MS))
        except self._failures as error:
            raise Unavailable(
                "usage_stream_away", f"The lock of the usage stream ({self._name!r}) cannot be written: {error}"
            ) from error

    async def close(self) -> None:
        await self._client.aclose()


async def shield_call(call: Coroutine[Any, Any, T]) -> T:
    """Awaits a call of redis-py, which has been seen to swallow a cancellation. If the caller is cancelled, the call
    ends by itself (its sockets have time-outs), and the cancellation reaches the caller."""
    return await asyncio.shield(asyncio.ensure_future(call))
