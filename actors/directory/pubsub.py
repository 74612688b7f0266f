"""Subscribes to the activations of one gateway: sharded channels, one per partition, while the directory is open.

It connects again by itself and forever, with a growing pause, and follows slots that move in a cluster. What was sent
while it was not connected is missed (the port says so). A silent connection is probed with PING, so that a half-open
one is found out within `2 * quiet_s`. `live` is set while every channel is subscribed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from actors.directory.pipelined_connection import NotSent, connect, end, send
from actors.directory.topology import Servers
from sessions.backoff import Backoff

QUIET_S: Final = 2.0
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0

log = structlog.get_logger(__name__)


class PubSubBroken(Exception):
    """Raised for an answer that ends a connection: a slot has moved away, or there was no answer."""


class PubSubListener:
    def __init__(
        self, servers: Servers, channels: list[str], on_message: Callable[[bytes], None], *, quiet_s: float
    ) -> None:
        """Starts listening at once; needs a running loop. `on_message` is called with the bytes of every message; it
        must not block or raise. A connection that is silent for `quiet_s` is probed."""
        self._servers = servers
        self._channels = channels
        self._on_message = on_message
        self._quiet_s = quiet_s
        self.live = asyncio.Event()
        self._missing: set[bytes] = set()
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="directory-subscription")

    async def ready(self, timeout_s: float) -> None:
        """Returns when every channel is subscribed. Raises NotSent if that takes longer than `timeout_s`."""
        if self._task.done():
            await self._task  # raises what ended it: our own bug, and no caller should wait for it
        try:
            async with asyncio.timeout(timeout_s):
                await self.live.wait()
        except TimeoutError:
            raise NotSent("the subscription is not up") from None

    async def close(self) -> None:
        self._closed = True
        await end(self._task)

    async def _run(self) -> None:
        backoff = Backoff(PAUSE_S, PAUSE_MAX_S)
        while True:
            self._missing = {channel.encode() for channel in self._channels}
            try:
                async with asyncio.TaskGroup() as listeners:
                    for make, channels in self._servers.spread(self._channels):
                        listeners.create_task(self._listen(make(), channels))
            except* (
                RedisError,
                OSError,
                PubSubBroken,
                NotSent,
            ) as errors:  # also ResponseError: MOVED, a missing right
                if self.live.is_set():
                    backoff.reset()
                    log.warning("directory_subscription_lost", error=_first(errors))
            finally:
                self.live.clear()
            if self._closed:  # a task group that fails while it is cancelled raises only the failure
                return
            await asyncio.sleep(backoff.next_s())
            with contextlib.suppress(NotSent):  # still away: the next attempt finds the same
                await self._servers.refresh()

    async def _listen(self, connection: AbstractConnection, channels: list[str]) -> None:
        """Subscribes to channels and reads their messages. It never returns, and ends by an error or cancellation."""
        try:
            await connect(connection)
            # One command per channel: in a cluster each may be in a slot of its own.
            await send(connection, [("SSUBSCRIBE", channel) for channel in channels])
            await self._read(connection)
        finally:
            await connection.disconnect(nowait=True)

    async def _read(self, connection: AbstractConnection) -> None:
        probed = False
        while True:
            answer = await connection.read_response(timeout=self._quiet_s)
            match answer:
                case None if probed:
                    raise PubSubBroken("the server is silent")
                case None:
                    await send(connection, [("PING",)])
                    probed = True
                    continue
                case [b"smessage", _, bytes() as message]:
                    self._on_message(message)
                case [b"ssubscribe", bytes() as channel, _]:
                    self._missing.discard(channel)
                    if not self._missing:
                        self.live.set()
                case [b"sunsubscribe", *_]:
                    raise PubSubBroken("a slot has moved away")
                case _:
                    pass  # the answer to a PING
            probed = False


def _first(errors: BaseExceptionGroup) -> str:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
