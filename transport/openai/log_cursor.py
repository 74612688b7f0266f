"""A log as an async iterator of records: the reader that HTTP doors use on the same feeds as every WebSocket.

Acquire it before the command that makes the records is sent: then nothing falls in between, and what comes is taken
from the feed's tail without a question to the journal. A reader further back is given pages, scrubbed (I3).

Does not know windows: one record after another is handed on as its taker is ready, and the feed keeps nothing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple

from sessions.model.authorization import demand
from sessions.model.errors import SessileError, Unavailable
from sessions.model.events import Record, SessionDeleted
from sessions.model.types import Epoch, Principal, ResponseId, SessionKey
from transport.gateway import Gateway
from transport.protocol.frames import JSON
from transport.protocol.retraction import OutOfSight, Scrubber
from transport.reading.feeds import PULL_BYTES_MAX, Feed, FeedReader
from transport.reading.log_reader import ResumePlan, visible


class StaleCursor(Unavailable):
    """Raised where reading cannot continue behind a position: the log has another epoch, or the text there was
    retracted. `LogCursor.standing` tells how a client can go on."""


class _CheckedPage(NamedTuple):
    """Records that `LogCursor.check` read behind a position, kept so that `batches` need not read them again."""

    epoch: Epoch
    after: int
    records: tuple[Record, ...]

    def good_for(self, feed: Feed, position: int) -> bool:
        """Returns whether the page is still what the log has behind `position`, with all retractions up to its end
        known."""
        same = (self.epoch, self.after) == (feed.epoch, position)
        return same and bool(self.records) and feed.covers(position, feed.top)


class LogCursor:
    """A reader of one session's log. A context manager: leaving it removes the reader from the log's feed."""

    def __init__(
        self, gateway: Gateway, principal: Principal, key: SessionKey, *, follows: Iterable[ResponseId] | None = None
    ) -> None:
        """`follows`: the responses of which this cursor counts as a reader (see `follow`); None: all responses of the
        session."""
        self.key = key
        self._gateway = gateway
        self._principal = principal
        self._reader: FeedReader = gateway.feeds.acquire(key, self, JSON)
        if follows is not None:
            self.follow(follows)
        self._readable = asyncio.Event()
        self._scrubber: Scrubber | None = None
        self._checked: _CheckedPage | None = None
        self._ended: SessileError | None = None  # set once the reader's key was revoked or has expired
        try:
            self._unwatch = gateway.access.watch(principal, self._end)
        except SessileError:
            gateway.feeds.release(self._reader)
            raise

    def __enter__(self) -> LogCursor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Closes the cursor if the block raises; otherwise the caller keeps it open and closes it."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._unwatch()
        self._gateway.feeds.release(self._reader)

    def _end(self, error: SessileError) -> None:
        self._ended = error
        self._readable.set()

    def readable(self, reader: FeedReader) -> None:
        self._readable.set()

    def follow(self, responses: Iterable[ResponseId]) -> None:
        """Sets the responses of which this cursor counts as a reader. It reads the whole log all the same."""
        self._reader.follows = frozenset(responses)

    @property
    def sole_reader(self) -> bool:
        """Whether this cursor follows certain responses, and no other reader at this gateway follows one of them."""
        mine = self._reader.follows
        followed = (reader.follows for reader in self._reader.feed.readers if reader is not self._reader)
        return all(mine is not None and theirs is not None and mine.isdisjoint(theirs) for theirs in followed)

    @property
    def epoch(self) -> Epoch:
        return self._reader.feed.epoch

    async def standing(self, epoch: Epoch | None, offset: int | None) -> ResumePlan:
        """Returns how a client that has read up to (epoch, offset) continues. Raises NotFound, Gone, Unavailable."""
        return await self._gateway.logs.standing(self._principal, self._reader.feed, epoch, offset)

    async def check(self, after: int) -> None:
        """Reads the first page behind `after`, so that all retractions behind it are known. Raises Forbidden, NotFound,
        Gone, Unavailable if the principal may not read the log."""
        demand(self._principal, "read")
        feed = self._reader.feed
        records = await self._gateway.logs.page(feed, after, bytes_max=PULL_BYTES_MAX)
        self._checked = _CheckedPage(feed.epoch, after, records)
        visible(self._principal, self.key, feed.user, feed.deleted)

    def retracted(self, response_id: str, category: str) -> bool:
        """Returns whether any text of a response is known to be retracted under a category."""
        retractions = self._reader.feed.retractions
        return any(event.response_id == response_id and event.category == category for _, event in retractions)

    @property
    def top(self) -> int:
        """The newest offset of the log that this gateway knows."""
        return self._reader.feed.top

    def note_read(self, offset: int) -> None:
        """Notes that the user has read up to `offset`, so that no push notice about it goes to other devices."""
        if (read_to := self._gateway.feeds.read_to) is not None:
            read_to(self.key, offset)

    def expect(self, offset: int) -> None:
        """Notes that the log reaches at least `offset`, so that it is read from the journal if nobody publishes it."""
        self._reader.feed.reaches(offset)

    async def records(self, after: int, *, live: bool = True) -> AsyncIterator[Record]:
        """Yields the records of `batches` one by one."""
        async for batch in self.batches(after, live=live):
            for record in batch:
                yield record

    async def batches(self, after: int, *, live: bool = True) -> AsyncGenerator[tuple[Record, ...], None]:
        """Yields all records behind `after` in order: without end if `live`, otherwise up to the log's present top.

        Ends after `session.deleted`. Raises NotFound, Unauthorized, Unavailable (`draining`: behind what is there), and
        StaleCursor."""
        feed, position = self._reader.feed, after
        epoch = feed.epoch
        while True:
            if self._ended is not None:
                raise self._ended
            self._readable.clear()
            if epoch and feed.epoch != epoch:
                raise StaleCursor("journal_unavailable", "The log of this session was restored; read it again.")
            entries = feed.after(position)
            if entries is None or (not entries and not feed.top):
                records = await self._page(position)
            else:
                records = tuple(entry.record for entry in entries)
            epoch = epoch or feed.epoch
            if records:
                position = records[-1].offset
                yield records
                if isinstance(records[-1].event, SessionDeleted):
                    return
            else:
                if not live:
                    return
                await self._wait_for_more()

    async def _wait_for_more(self) -> None:
        """Waits until the feed has more. Raises Unavailable if the server leaves, or if the cursor follows responses
        and no replica has had the session for two checks in a row."""
        if self._reader.follows is None or self._gateway.ends_answers:
            self._gateway.check_draining()
        if self._reader.follows is None:
            await self._readable.wait()
            return
        attached = True
        while not self._readable.is_set():
            try:
                async with asyncio.timeout(self._gateway.limits.silence_s / 2):
                    await self._readable.wait()
            except TimeoutError as error:
                was_attached, attached = attached, self._gateway.is_attached(self.key)
                if not attached and not was_attached:
                    message = "No replica that has this session answers. Repeat the request in a while."
                    raise Unavailable("session_unavailable", message, retry_after_ms=5_000) from error

    async def _page(self, position: int) -> tuple[Record, ...]:
        feed = self._reader.feed
        checked, self._checked = self._checked, None
        if checked is not None and checked.good_for(feed, position):
            records = checked.records
        else:
            records = await self._gateway.logs.page(feed, position, bytes_max=PULL_BYTES_MAX)
        if not feed.retracted_after(position):
            self._scrubber = None
            return records
        if self._scrubber is None or self._scrubber.newest != feed.retractions[-1][0]:
            self._scrubber = Scrubber(one for one in feed.retractions if one[0] > position)
        try:
            return tuple(self._scrubber.scrub(record) for record in records)
        except OutOfSight:
            self._scrubber = await self._placed(position)
        try:
            return tuple(self._scrubber.scrub(record) for record in records)
        except OutOfSight as exc:
            raise StaleCursor("journal_unavailable", "What stands there was taken back; read from the start.") from exc

    async def _placed(self, position: int) -> Scrubber:
        """Returns a scrubber for the records behind `position`. Reads the log up to there again, because the scrubber
        must know how long each part of a message is that a retraction takes text from."""
        feed, at = self._reader.feed, 0
        scrubber = Scrubber(one for one in feed.retractions if one[0] > position)
        while at < position:
            page = await self._gateway.logs.page(feed, at, bytes_max=PULL_BYTES_MAX)
            if not page or page[0].offset != at + 1:
                break  # the log begins later now
            for record in page:
                if record.offset <= position:
                    scrubber.scrub(record)
            at = page[-1].offset
        return scrubber
