"""All that one connection reads: its cursors, its window, and the answers that must not overtake events.

    subscribe ──> attach (journal) ──> resumed ──> pull ... pull ──> caught_up ──> pull as the log grows

The owner (a shell) gives `wake`, which requests a `collect` soon; `collect` takes frames from the readers that have
something, in turn, as far as the window is open. Frames leave in the order in which they are appended to `out`.

Invariants:
* Between a resume's answer and the next one of the same session, offsets follow each other without a hole.
* The answer to a command is written after every event up to its offset that this connection reads, so that nothing of a
  cancelled response follows the answer to its cancel.
* With `rollup_s`, deltas wait so long at most for those behind them: the first is sent at once, and what is no delta
  takes those before it along.
* Nothing is kept for a slow reader: with the window full, cursors stand still.
* A replaced or closed reader writes nothing more, whatever it was waiting for.
* Large answers (states, lists) are made one at a time, and none while the socket takes no more: a peer that requests
  many and reads none holds one of them in memory.

Does not know: sockets, what a frame is for, who the principal is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import msgspec
import structlog

from sessions.model.errors import Internal, SessileError, Unavailable
from sessions.model.types import Epoch, Principal, SessionId, SessionKey
from transport.protocol.flow_control import Window
from transport.protocol.frames import CaughtUp, Encoding, Resumed, ResumePoint, error_frame
from transport.reading.feeds import FeedReader, Feeds, PullResult
from transport.reading.log_reader import LogReader, ResumePlan
from transport.tasks import Tasks

log = structlog.get_logger(__name__)

COLLECT_BYTES_MAX: Final = 128 * 1024  # that one connection may take in one turn of the loop
RESUMES_AHEAD: Final = 4  # of one connection at once: each keeps a page until it is answered
T = TypeVar("T")


class LogSource(Protocol):
    """The parts of the gateway that a `ReaderSet` uses."""

    @property
    def feeds(self) -> Feeds: ...

    @property
    def logs(self) -> LogReader: ...

    @property
    def tasks(self) -> Tasks: ...

    def count(self, name: str) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class ReaderSet:
    """All readers of one connection, with its window and its queue of frames `out`."""

    _source: LogSource
    _principal: Principal
    _encoding: Encoding
    window: Window
    out: list[bytes]
    _wake: Callable[[], None]
    _clock: Callable[[], float]
    readers: dict[SessionId, FeedReader] = field(default_factory=dict)
    closed: bool = False
    rollup_s: float = 0.0  # seconds that deltas wait to be merged with later ones
    # Made when needed: most connections are idle.
    _ready: list[FeedReader] | None = None  # few at a time, mostly one: cheaper than a deque, which comes with room
    _turns: asyncio.Lock | None = None
    _resumes: asyncio.Semaphore | None = None
    _flowing: asyncio.Event | None = None
    _rolling: dict[FeedReader, asyncio.TimerHandle] | None = None  # readers whose deltas wait

    # -- what the client does ---------------------------------------------------------------------------------------

    def subscribe(self, point: ResumePoint) -> None:
        """Starts to read a session, or starts anew. `resumed` is written once it is known how the reading begins."""
        before = self.readers.pop(point.session, None)
        self._attach(point.session, point.epoch, point.offset)
        if before is not None:  # after the new one came, so that the feed and its tail are not forgotten
            self._retire(before)

    def refuse(self, session: SessionId, error: SessileError) -> None:
        """Answers a resume with an error without starting to read."""
        self.write(Resumed(session=session, mode="gone", error=error_frame(error).error))

    def ack(self, session: SessionId, offset: int, now: float) -> None:
        reader = self.readers.get(session)
        if reader is not None and self.window.acked(reader, offset, now) and self._ready:
            self._wake()

    def write(self, message: msgspec.Struct) -> None:
        """Appends a frame behind everything that was written before."""
        if not self.closed:
            self.out.append(self._encoding.frame(message))
            self._wake()

    def answer(self, message: msgspec.Struct, session: SessionId | None, offset: int | None) -> None:
        """Writes a command's answer once the events up to `offset` (None: up to the top) of `session` are written."""
        reader = self.readers.get(session) if session is not None else None
        if reader is None or self.closed:
            self.write(message)
            return
        until = reader.feed.top if offset is None else offset
        if reader.attached and reader.position >= until:
            self.write(message)
            return
        if reader.held is None:
            reader.held = []
        reader.held.append((until, self._encoding.frame(message)))
        # An owner that has just changed may have sent us the answer and not the event: then the journal has it.
        reader.feed.reaches(until)
        self.readable(reader)

    def stall(self) -> None:
        """Notes that the socket takes no more bytes for now."""
        self._flowing = asyncio.Event()

    def flow(self) -> None:
        """Notes that the socket takes bytes again, or is lost."""
        if self._flowing is not None:
            self._flowing.set()
            self._flowing = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Surrounds the making and writing of one large answer. Waits until no other large answer of this connection is
        being made and the socket takes bytes."""
        if self._turns is None:
            self._turns = asyncio.Lock()
        async with self._turns:
            while self._flowing is not None:
                await self._flowing.wait()
            yield
            await asyncio.sleep(0)  # this one is flushed now; the next one sees whether the socket took it

    def close(self) -> None:
        """Ends all reading. Idempotent."""
        self.closed = True
        self.flow()
        for session in list(self.readers):
            self.unsubscribe(session)

    # -- what the feeds and the owner say ---------------------------------------------------------------------------

    def readable(self, reader: FeedReader) -> None:
        """Queues a reader that may have something to send. Feeds call it often, so it must be cheap."""
        if reader.attached and not reader.queued and not reader.reading:
            reader.queued = True
            if self._ready is None:
                self._ready = [reader]
            else:
                self._ready.append(reader)
            self._wake()

    def collect(self, now: float) -> bool:
        """Appends to `out` what may be sent now. Returns whether more is ready."""
        ready, out, window = self._ready, self.out, self.window
        budget = COLLECT_BYTES_MAX
        while ready and budget > 0:
            if window.full:
                return False  # until an ack; they stay queued
            reader = ready.pop(0)
            reader.queued = False
            if not reader.attached:
                continue
            if self.rollup_s and self._waits(reader, now):
                continue
            before = window.bytes
            pulled = reader.pull(out, self._encoding, window, now)
            budget -= window.bytes - before
            self._after(reader, pulled)
        if not ready:
            self._ready = None
            return False
        return True

    def _waits(self, reader: FeedReader, now: float) -> bool:
        """Returns whether a reader's deltas wait for later ones, with which they are then merged. The first delta of an
        answer does not wait, and none waits if another kind of event follows it."""
        rolling = self._rolling = {} if self._rolling is None else self._rolling
        deltas, due = reader.holds_deltas(), reader.delta_at + self.rollup_s
        if deltas and now < due:
            if reader not in rolling:
                rolling[reader] = asyncio.get_running_loop().call_later(due - now, self._rolled, reader)
            return True
        self._stop_rolling(reader)
        reader.delta_at = now if deltas else float("-inf")
        return False

    def _rolled(self, reader: FeedReader) -> None:
        self._stop_rolling(reader)
        if not self.closed and reader.attached:
            self.readable(reader)

    def _stop_rolling(self, reader: FeedReader) -> None:
        timer = None if self._rolling is None else self._rolling.pop(reader, None)
        if timer is not None:
            timer.cancel()

    def _after(self, reader: FeedReader, pulled: PullResult) -> None:
        """Continues with a reader as the result of its `pull` demands: waits for new records, reads a page, or starts
        anew."""
        if reader.held is not None:
            self._release(reader)
        match pulled:
            case PullResult.CAUGHT_UP:
                is_news, reader.paged = reader.paged or not reader.live, False
                if not reader.live:
                    reader.live = True
                    caught_up = CaughtUp(session=reader.feed.key.session, offset=reader.position)
                    self.out.append(self._encoding.frame(caught_up))
                if is_news and (read_to := self._source.feeds.read_to) is not None:
                    read_to(reader.feed.key, reader.position)
                if reader.feed.deleted:
                    self.unsubscribe(reader.feed.key.session)
            case PullResult.MORE | PullResult.FULL:
                self.readable(reader)
            case PullResult.NEEDS_PAGE:
                reader.reading = True
                self._source.tasks.start(self._read_page(reader))
            case PullResult.STALE:
                self._again(reader, reader.epoch, reader.position)
            case PullResult.OUT_OF_SIGHT:
                self._again(reader, None, None)

    def _release(self, reader: FeedReader) -> None:
        """Writes the answers that waited for events which have now been written."""
        held = reader.held or []
        self.out += [frame for until, frame in held if until <= reader.position]
        reader.held = [waiting for waiting in held if waiting[0] > reader.position] or None

    # -- attaching --------------------------------------------------------------------------------------------------

    def _attach(self, session: SessionId, epoch: Epoch | None, offset: int | None) -> FeedReader:
        reader = self._source.feeds.acquire(SessionKey(self._principal.tenant, session), self, self._encoding)
        self.readers[session] = reader
        if self.rollup_s:
            reader.merge_from = 2
        self._source.tasks.start(self._answer_resume(reader, epoch, offset))
        return reader

    def _again(self, reader: FeedReader, epoch: Epoch | None, offset: int | None) -> None:
        """Replaces a reader that cannot continue at its position by one that begins behind `epoch` and `offset` (None:
        with a snapshot). The client is told how the new one begins."""
        fresh = self._attach(reader.feed.key.session, epoch, offset)
        if reader.held is not None:
            # A snapshot or reset says what these answers wait for; their offsets may be of another epoch.
            fresh.held = [(0, frame) for _, frame in reader.held]
            reader.held = None
        self._retire(reader)

    async def _answer_resume(self, reader: FeedReader, epoch: Epoch | None, offset: int | None) -> None:
        if self._resumes is None:
            self._resumes = asyncio.Semaphore(RESUMES_AHEAD)
        async with self._resumes:
            page = await self._read_for(reader, self._source.logs.look_ahead, epoch, offset)
            async with self.turn():
                standing = await self._read_for(reader, self._source.logs.standing, epoch, offset, page)
                session = reader.feed.key.session
                if standing is None or self.readers.get(session) is not reader:
                    return
                self._source.count(f"resumed_{standing.mode}")
                self.write(resumed(session, standing))
                reader.epoch = standing.epoch
                reader.position = standing.position
                reader.page = standing.page
                reader.attached = True
                self.readable(reader)

    async def _read_for(self, reader: FeedReader, read: Callable[..., Awaitable[T]], *given: Any) -> T | None:
        """Returns the result of `read` for a reader. Returns None if `read` failed, after telling the client that the
        reading has ended, and if the session has another reader by now."""
        session = reader.feed.key.session
        if self.readers.get(session) is not reader:
            return None
        try:
            return await read(self._principal, reader.feed, *given)
        except SessileError as error:
            self._end_reading(reader, error)
        except Exception:
            log.exception("resume_failed", session=session, tenant=reader.feed.key.tenant)
            self._end_reading(reader, Internal("internal_error", "The server failed to read this session."))
        return None

    def _end_reading(self, reader: FeedReader, error: SessileError) -> None:
        """Stops reading a session and tells the client the error, which says whether to try again. Does nothing if the
        session has another reader by now."""
        session = reader.feed.key.session
        if self.readers.get(session) is not reader:
            return
        self._source.count("resumed_gone")
        self.write(Resumed(session=session, mode="gone", error=error_frame(error).error))
        self.unsubscribe(session)

    # -- pages ------------------------------------------------------------------------------------------------------

    async def _read_page(self, reader: FeedReader) -> None:
        room = max(4096, self.window.bytes_left)
        try:
            page = await self._source.logs.page(reader.feed, reader.position, bytes_max=room)
        except SessileError as error:
            self._end_reading(reader, error)
            return
        except Exception:
            log.exception("page_failed", session=reader.feed.key.session, tenant=reader.feed.key.tenant)
            self._end_reading(reader, Internal("internal_error", "The server failed to read this session."))
            return
        finally:
            reader.reading = False
        if not page and reader.epoch == reader.feed.epoch and reader.position < reader.feed.top:
            # Told of a record that the journal does not have yet, or has no longer.
            self._end_reading(
                reader, Unavailable("journal_unavailable", "The log is behind itself.", retry_after_ms=1000)
            )
            return
        reader.page, reader.paged = page, True
        self.readable(reader)

    # -- leaving ----------------------------------------------------------------------------------------------------

    def unsubscribe(self, session: SessionId) -> None:
        """Stops writing events of a session. Unknown sessions are allowed: the reading may have ended by itself."""
        reader = self.readers.pop(session, None)
        if reader is not None:
            self._retire(reader)

    def _retire(self, reader: FeedReader) -> None:
        reader.attached = False
        reader.page = None
        self._stop_rolling(reader)
        if reader.held is not None and not self.closed:
            self.out += [frame for _, frame in reader.held]  # nothing of this reader follows them
            reader.held = None
            self._wake()
        self._source.feeds.release(reader)
        self.window.forget(reader, self._clock())
        if self._ready:
            self._wake()  # the window may have opened for the rest


def resumed(session: SessionId, standing: ResumePlan) -> Resumed:
    """Returns the answer to a resume (docs/protocol.md 3.1)."""
    if standing.mode == "replay":
        return Resumed(
            session=session, mode="replay", epoch=standing.epoch, from_=standing.position + 1, top=standing.top
        )
    return Resumed(
        session=session,
        mode=standing.mode,
        epoch=standing.epoch,
        at=standing.position,
        state=standing.state,
        reason=standing.reason,
    )
