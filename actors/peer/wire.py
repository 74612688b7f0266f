"""Sends and receives frames over a carrier in batches, and detects whether the other end is alive.

Frames are queued and leave together: everything that is posted in one turn of the loop, and in the `linger_s` after
a message, shares a message, so the carrier's cost per message is paid a bounded number of times a second. An end that
has sent nothing for half a beat sends `Heartbeat`; an end that received nothing for `dead_after_beats` of its own beats
ends the link. Callers only post: none of their queues waits on the link.

Bound: `queued_bytes` is what waits for the carrier; callers look at it before they post what may be left out or
refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from actors.peer.frames import AnyFrame, Frame, Goodbye, Heartbeat, encode, pack, unpack
from actors.peer.links import Carrier, LinkDown, LinkLimits

_BEAT = encode(Heartbeat())


class Wire:
    """One end of a link."""

    def __init__(self, carrier: Carrier, limits: LinkLimits) -> None:
        self.down: LinkDown | None = None
        self.queued_bytes = 0
        self.messages_sent = 0
        self._carrier = carrier
        self._limits = limits
        self._queue: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._received = True  # something came since the last beat
        self._sent_at = 0.0
        self._ending: LinkDown | None = None
        self._flushed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def post(self, frame: Frame) -> int:
        """Queues a frame; returns its size in bytes. What is posted to a link that is down goes nowhere."""
        data = encode(frame)
        if self.down is None and self._ending is None:
            self._queue.append(data)
            self.queued_bytes += len(data)
            self._wake.set()
        return len(data)

    async def first(self) -> list[AnyFrame]:
        """The first message, before `run`. Raises LinkDown."""
        return _unpacked(await self._carrier.receive())

    async def now(self, *frames: Frame) -> None:
        """Sends frames before `run`. Raises LinkDown."""
        await self._carrier.send(pack([encode(frame) for frame in frames]))

    async def run(self, deliver: Callable[[list[AnyFrame]], None]) -> LinkDown:
        """Carries frames both ways until the link ends; returns why. `deliver` must not block; a ValueError from
        it ends the link. Cancelling this closes the link."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(deliver))
                tasks.create_task(self._write())
                tasks.create_task(self._beat())
        except* LinkDown as group:
            self.down = self._ending or _first(group)
        finally:
            if self.down is None:
                self.down = LinkDown("closed")
            self._queue.clear()
            self.queued_bytes = 0
            self._flushed.set()
            await self._carrier.close()
        return self.down

    async def close(self) -> None:
        """Sends `Goodbye` after all that was posted, and ends the link when that is sent or the next beat is due."""
        if self.down is not None:
            return
        if self._ending is None:
            self.post(Goodbye())
            self._ending = LinkDown("closed")
            self._wake.set()
        try:
            async with asyncio.timeout(self._limits.beat_s):
                await self._flushed.wait()
        except TimeoutError:
            await self._carrier.close()

    async def _read(self, deliver: Callable[[list[AnyFrame]], None]) -> None:
        while True:
            frames = _unpacked(await self._carrier.receive())
            self._received = True
            if frames and isinstance(frames[-1], Goodbye):
                deliver(frames[:-1])
                raise LinkDown("closed", "the other end closed the link")
            try:
                deliver(frames)
            except ValueError as error:
                raise LinkDown("closed", f"a frame out of place: {error}") from error

    async def _write(self) -> None:
        next_at = 0.0
        while True:
            await self._wake.wait()
            wait_s = next_at - self._loop.time()
            if wait_s > 0 and self.queued_bytes < self._limits.message_bytes:
                await asyncio.sleep(wait_s)
            self._wake.clear()
            while self._queue:
                message = self._take()
                self._sent_at = self._loop.time()
                self.messages_sent += 1
                await self._carrier.send(message)
            next_at = self._loop.time() + self._limits.linger_s
            if self._ending is not None:
                self._flushed.set()
                raise self._ending

    def _take(self) -> bytes:
        frames: list[bytes] = []
        num_bytes = 0
        while self._queue and num_bytes < self._limits.message_bytes:
            frame = self._queue.popleft()
            frames.append(frame)
            num_bytes += len(frame)
        self.queued_bytes -= num_bytes
        return pack(frames)

    async def _beat(self) -> None:
        silent = 0
        while True:
            await asyncio.sleep(self._limits.beat_s)
            silent = 0 if self._received else silent + 1
            self._received = False
            if silent >= self._limits.dead_after_beats:
                raise LinkDown("keepalive", f"silent for {silent} beats of {self._limits.beat_s:g} s")
            if not self._queue and self._loop.time() - self._sent_at >= self._limits.beat_s / 2:
                self._queue.append(_BEAT)
                self.queued_bytes += len(_BEAT)
                self._wake.set()


def _unpacked(message: bytes) -> list[AnyFrame]:
    try:
        return unpack(message)
    except ValueError as error:
        raise LinkDown("closed", str(error)) from error


def _first(group: BaseExceptionGroup[LinkDown]) -> LinkDown:
    """The one that ended the others: of several, the first that was raised."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LinkDown)
    return error
