"""Sends and receives frames over a carrier in batches, and detects whether the other end is alive.

Frames are queued and leave together: everything that is posted in one turn of the loop, and in the `linger_s` after a
message, shares a message, so the carrier's cost per message is paid a bounded number of times a second. An end that has
sent nothing for half a beat sends `Heartbeat`; `actors.peer.silence` decides when the other end's silence ends the
link. Beats are quick while other frames were sent lately, and each end announces how often it will send something.
Callers only post, and never wait for the link.

Bound: `queued_bytes` is what waits for the carrier; callers check it before they post a frame that may be left out or
refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from actors.peer.frames import AnyFrame, Frame, Goodbye, Heartbeat, encode, pack, unpack
from actors.peer.links import Carrier, LinkDown, LinkLimits, Unreachable
from actors.peer.silence import SilenceDetector, SilenceFinding

Knock = Callable[[], Awaitable[None]]  # at the other end's host: see `Dialer.knock`


class Wire:
    """One end of a link: sends and receives frames, and judges whether the other end is alive."""

    def __init__(self, carrier: Carrier, limits: LinkLimits, knock: Knock | None = None) -> None:
        """`knock` tries to connect to the other end's host, to see whether its process lives while the link is silent;
        None: only the frames that the other end sends are judged."""
        self.down: LinkDown | None = None
        self.queued_bytes = 0
        self.messages_sent = 0
        self._carrier = carrier
        self._limits = limits
        self._queue: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._received = True  # whether something came since the last beat
        self._spoken = False  # whether anything but beats came or went since the last beat
        self._sent_at = 0.0
        self._knock = knock
        self._silence = SilenceDetector(limits, knocks=knock is not None)
        self._knocking: asyncio.Task[None] | None = None
        self._ending: LinkDown | None = None
        self._flushed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def post(self, frame: Frame) -> int:
        """Queues a frame; returns its size in bytes. Frames for a link that is down are dropped."""
        data = encode(frame)
        if self.down is None and self._ending is None:
            self._queue.append(data)
            self.queued_bytes += len(data)
            self._spoken = True
            self._wake.set()
        return len(data)

    def promised(self, beat: Heartbeat) -> None:
        """Notes how often the other end has announced to send something."""
        self._silence.promised(beat.every_ms / 1000)

    async def first(self) -> list[AnyFrame]:
        """Returns the frames of the other end's first message; to be called before `run`. Raises LinkDown."""
        return _unpacked(await self._carrier.receive())

    async def now(self, *frames: Frame) -> None:
        """Sends frames at once; to be called before `run`. Raises LinkDown."""
        await self._carrier.send(pack([encode(frame) for frame in frames]))

    async def run(self, deliver: Callable[[list[AnyFrame]], None]) -> LinkDown:
        """Carries frames both ways until the link ends; returns the reason. `deliver` must not block; a ValueError from
        it ends the link. Cancelling this closes the link."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(deliver))
                tasks.create_task(self._write())
                tasks.create_task(self._beat(tasks))
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
        """Sends `Goodbye` behind all that was posted. The link ends when that is sent, or at the latest when the next
        beat is due."""
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
            if len(frames) > 1 or (frames and type(frames[0]) is not Heartbeat):
                self._spoken = True
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

    async def _beat(self, tasks: asyncio.TaskGroup) -> None:
        limits, loop = self._limits, self._loop
        spoken_at, announced_s = loop.time(), 0.0
        while True:
            pace_s = limits.quick_beat_s if loop.time() - spoken_at < limits.attentive_s else limits.beat_s
            await asyncio.sleep(pace_s)
            if self._spoken:
                self._spoken, spoken_at = False, loop.time()
            heard, self._received = self._received, False
            self._follow(self._silence.beat(pace_s, heard=heard), tasks)
            idle = not self._queue and loop.time() - self._sent_at >= pace_s / 2
            if idle or pace_s != announced_s:
                announced_s = pace_s
                self._queue_beat(pace_s)

    def _queue_beat(self, pace_s: float) -> None:
        beat = encode(Heartbeat(round(1000 * pace_s)))
        self._queue.append(beat)
        self.queued_bytes += len(beat)
        self._wake.set()

    def _follow(self, finding: SilenceFinding, tasks: asyncio.TaskGroup) -> None:
        """Acts on a finding: knocks, or cancels the knock under way. Raises LinkDown if the other end is dead."""
        match finding:
            case SilenceFinding.KNOCK:
                assert self._knock is not None
                self._knocking = tasks.create_task(self._knock_at_host(self._knock))
            case SilenceFinding.WITHDRAW if self._knocking is not None:
                self._knocking.cancel()
            case SilenceFinding.SILENT:
                raise LinkDown("keepalive", f"silent for {self._limits.dead_after_beats * self._limits.beat_s:g} s")
            case SilenceFinding.UNREACHABLE:
                raise Unreachable("silent, and its host does not answer")

    async def _knock_at_host(self, knock: Knock) -> None:
        begun_at = self._loop.time()
        try:
            await knock()
        except LinkDown as refusal:
            if not self._silence.measuring:  # its host lives, and nothing listens there any more
                raise Unreachable(f"silent, and {refusal.detail or refusal}") from refusal
            self._silence.unanswerable()
        else:
            self._silence.answered(self._loop.time() - begun_at)


def _unpacked(message: bytes) -> list[AnyFrame]:
    try:
        return unpack(message)
    except ValueError as error:
        raise LinkDown("closed", str(error)) from error


def _first(group: BaseExceptionGroup[LinkDown]) -> LinkDown:
    """Returns the error that ended the tasks; if there are several, the first that was raised."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LinkDown)
    return error
