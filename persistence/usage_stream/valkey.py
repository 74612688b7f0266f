"""Usage rows on a stream of Valkey or Redis: each row an entry with the field `row`, a JSON object.

Whoever reads the stream trims it. This module does not know how rows are marked as relayed, nor what a row means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from persistence.usage_stream.relay_lock import ValkeyRelayLock, shield_call
from sessions.billing.metering import UsageEntry, entry_public
from sessions.model.errors import BadInput, Unavailable

TIMEOUT_S: Final = 10.0


class ValkeySink:
    """A `persistence.usage_stream.relay.UsageSink` for a stream of Valkey or Redis."""

    def __init__(self, url: str, *, stream: str = "sessile:usage") -> None:
        """Connects only at the first use. Raises BadInput for an invalid URL."""
        import redis.asyncio as redis

        self._stream = stream
        try:
            self._client: Any = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, single_connection_client=False
            )
        except ValueError as error:
            raise BadInput("invalid_setting", f"usage_stream: {error}", param="usage_stream") from error
        self._lock = ValkeyRelayLock(self._client, f"{stream}:relay")
        self._failures: tuple[type[BaseException], ...] = (redis.RedisError, OSError, TimeoutError)

    async def acquire(self) -> bool:
        return await self._lock.acquire()

    async def send(self, rows: Sequence[UsageEntry]) -> None:
        await shield_call(self._send(rows))

    async def _send(self, rows: Sequence[UsageEntry]) -> None:
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                for row in rows:
                    pipeline.xadd(self._stream, {"row": msgspec.json.encode(entry_public(row))})
                await pipeline.execute()
        except self._failures as error:
            raise Unavailable(
                "usage_stream_away", f"The usage stream {self._stream!r} cannot be written: {error}"
            ) from error

    async def close(self) -> None:
        await self._lock.close()
