"""Feeds: the live end of each log that is read here, and the cursors on it.

A `Feed` keeps the newest records of one session, as they become durable, in a tail bounded in bytes. A `FeedReader` is
a cursor (epoch, position) and never a buffer: it takes from the tail what lies there, and pages of the journal where it
is further back. Live is replay that caught up; there is no second path.

Invariants:
* The tail is contiguous. A batch that does not continue it starts it anew; what it left out is in the journal.
* A reader's position only grows within an epoch, and every offset between is covered by a frame that was taken.
* Whoever attaches acquires the feed (which watches) BEFORE reading the journal, so nothing falls in between.
* A tail never holds a record that lies before a retraction: what stands there may be sent as it is (I3).
* One record is encoded once per encoding, whatever the number of readers.

Does not know: connections, the journal's calls, who may read. A feed without readers stops watching and is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

import structlog

from sessions.model.events import (
    ContentRetracted,
    Record,
    ResponseCompleted,
    ResponseFailed,
    ResponseIncomplete,
    SessionDeleted,
    ToolApprovalRequested,
)
from sessions.model.journal_types import Head
from sessions.model.types import Epoch, ResponseId, SessionKey
from sessions.ports import Published, Sessions
from transport.protocol.delta_merge import DELTAS, merged
from transport.protocol.flow_control import Unacked, Window
from transport.protocol.frames import JSON, Encoding, event_frame
from transport.protocol.retraction import OutOfSight, Retraction, Scrubber

TAIL_BYTES_MAX: Final = 64 * 1024  # per session and encoding
TAILS_BYTES_MAX: Final = 128 * 1024 * 1024  # of all tails
PULL_BYTES_MAX: Final = 64 * 1024  # that one reader may take in one turn of the loop
UNKNOWN: Final = Epoch("")  # the epoch of a log that was not read yet
MERGE_FROM: Final = 4  # records: a reader so far behind gets deltas merged


log = structlog.get_logger(__name__)

_TOLD: Final = (ResponseCompleted, ResponseIncomplete, ResponseFailed, ToolApprovalRequested)  # make push notices


class PullResult(Enum):
    """The reasons why `FeedReader.pull` stops."""

    CAUGHT_UP = "at the top of the log as far as we know it"
    MORE = "its share is used up; more lies ready"
    FULL = "the window is full"
    NEEDS_PAGE = "the next record is not in the tail: read the journal"
    STALE = "the log is not the one that it began on: attach again"
    OUT_OF_SIGHT = "a retraction covers text that it cannot place: show a snapshot"


class FeedListener(Protocol):
    """The owner of readers. Feeds call it from inside `publish`: it must not block or raise."""

    def readable(self, reader: FeedReader) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class FeedEntry:
    """A record of a feed's tail with its encoded frames."""

    record: Record
    json: bytes | None = None
    msgpack: bytes | None = None

    def frame(self, feed: Feed, encoding: Encoding) -> bytes:
        """Returns the record as a whole WebSocket frame, encoded once per encoding."""
        if encoding is JSON:
            if self.json is None:
                self.json = encoding.frame(event_frame(feed.key.session, feed.epoch, self.record))
            return self.json
        if self.msgpack is None:
            self.msgpack = encoding.frame(event_frame(feed.key.session, feed.epoch, self.record))
        return self.msgpack


@dataclass(slots=True, eq=False, repr=False)
class Feed:
    """The newest records of one session's log, for its readers at this gateway. Its fields are of three kinds (the
    log's state, the tail, the readers) and stay together because each record that comes concerns all of them."""

    key: SessionKey
    _feeds: Feeds
    encoding: Encoding  # the one in which the tail's bytes are counted
    epoch: Epoch = UNKNOWN
    top: int = 0
    user: str | None = None
    known: bool = False  # a head was read, so `user` is valid
    deleted: bool = False
    readers: list[FeedReader] = field(default_factory=list)
    retractions: list[Retraction] = field(default_factory=list)
    _seen_from: int = 0  # all retractions of offsets in (from, to] are in the list
    _seen_to: int = -1
    stop: Callable[[], None] | None = None
    _entries: list[FeedEntry] | None = None  # of offsets _base, _base + 1, ...
    _base: int = 0
    _bytes: int = 0
    _touched: bool = False

    # -- what comes in --------------------------------------------------------------------------------------------

    def publish(self, published: Published) -> None:
        """Takes in published records; `Sessions.watch` calls it. If that fails, the tail is dropped and nothing is
        raised: readers then read from the journal."""
        try:
            self.take_in(published)
        except Exception:
            log.exception("publish_failed", session=self.key.session, tenant=self.key.tenant)
            self.drop_tail()

    def take_in(self, published: Published) -> None:
        """Takes in records that have just become durable. The hottest path of all: once per event and gateway."""
        if published.epoch != self.epoch:
            self.begin(published.epoch)
        records = published.records
        entries = self._entries
        # What is known already, from an earlier batch or from the journal, is not taken in again: it may have been
        # retracted since, and the journal's pages know that.
        awaited = self.top + 1 if entries is None else self._base + len(entries)
        if records[0].offset < awaited:
            records = tuple(record for record in records if record.offset >= awaited)
            if not records:
                return
        elif entries is not None and records[0].offset > awaited:
            self.drop_tail()
            entries = None
        for record in records:
            if type(record.event) is ContentRetracted:
                records, entries = self._cut(records), None
                break
        first, last = records[0].offset, records[-1]
        top = last.offset
        if self._seen_to < first - 1:
            self._seen_from = first - 1
        if top > self._seen_to:
            self._seen_to = top
        feeds, encoding = self._feeds, self.encoding
        if entries is None:
            entries = self._entries = []
            self._base = first
            feeds.warmed(self)
        added = 0
        for record in records:
            entry = FeedEntry(record)
            entries.append(entry)
            added += len(entry.frame(self, encoding))
        self._bytes += added
        feeds.bytes += added
        self._touched = True
        if self._bytes > TAIL_BYTES_MAX:
            self._trim()
        if feeds.bytes > TAILS_BYTES_MAX:
            feeds.shed(self)
        if top > self.top:
            self.top = top
        if type(last.event) is SessionDeleted:
            self.deleted = True
        if feeds.read_to is not None and any(isinstance(record.event, _TOLD) for record in records):
            feeds.read_to(self.key, top)
        for reader in self.readers:
            reader.listener.readable(reader)

    def _cut(self, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """Returns those of the records that the tail begins anew with: from the last retraction among them on. Earlier
        ones are read from the journal, scrubbed."""
        cuts = [(record.offset, record.event) for record in records if isinstance(record.event, ContentRetracted)]
        last = cuts[-1][0]
        self.remember(records[0].offset - 1, last, cuts)
        self.drop_tail()
        return tuple(record for record in records if record.offset >= last)

    def begin(self, epoch: Epoch) -> None:
        """Forgets everything about the log, because it has another epoch. Its readers become stale."""
        self.drop_tail()
        self.epoch = epoch
        self.top = 0
        self.deleted = False
        self.retractions = []
        self._seen_from, self._seen_to = 0, -1

    def learn(self, head: Head) -> None:
        """Takes in a head that was just read from the journal, and wakes the readers if it is news."""
        news = head.epoch != self.epoch or head.top > self.top
        if head.epoch != self.epoch:
            self.begin(head.epoch)
        self.top = max(self.top, head.top)
        self.user = head.user
        self.known = True
        if head.deleted_at is not None:
            self.deleted = True
        if news:  # what one reader has learned helps all
            for reader in self.readers:
                reader.listener.readable(reader)

    def reaches(self, top: int) -> None:
        """Notes that the log goes up to `top` at least, and wakes the readers to fetch it."""
        if top > self.top:
            self.top = top
            for reader in self.readers:
                reader.listener.readable(reader)

    def remember(self, after: int, top: int, retractions: Iterable[Retraction]) -> None:
        """Notes that `retractions` are all those with offsets in (after, top]. If a known retraction lies behind the
        tail's first record, drops the tail, because its records may hold text that was retracted without this gateway's
        being notified. If there is a gap between this range and the known one, the later of the two is kept."""
        if top < self._seen_from:
            return
        if self._seen_to < after:
            self._seen_from = after
        self._seen_from = min(self._seen_from, after)
        self._seen_to = max(self._seen_to, top)
        known = {offset: (offset, event) for offset, event in (*self.retractions, *retractions)}
        self.retractions = [known[offset] for offset in sorted(known)]
        if self._entries and self.retracted_after(self._base):
            self.drop_tail()

    def retracted_after(self, offset: int) -> bool:
        """Returns whether a retraction with an offset above `offset` is known."""
        return bool(self.retractions) and self.retractions[-1][0] > offset

    def covers(self, after: int, top: int) -> bool:
        """Returns whether every retraction in (after, top] is known."""
        return self._seen_from <= after and self._seen_to >= top

    def covered_from(self, position: int) -> int:
        """Returns up to where retractions are known without a gap from `position`; `position` if nothing is known."""
        return self._seen_to if self._seen_from <= position < self._seen_to else position

    def _trim(self) -> None:
        """Drops the oldest quarter of the records at once, so that trimming is rare. At least the newest record
        stays."""
        assert self._entries is not None
        freed = count = 0
        for entry in self._entries[:-1]:
            if self._bytes - freed <= TAIL_BYTES_MAX * 3 // 4:
                break
            freed += len(entry.frame(self, self.encoding))
            count += 1
        del self._entries[:count]
        self._base += count
        self._bytes -= freed
        self._feeds.bytes -= freed

    # -- what goes out --------------------------------------------------------------------------------------------

    def after(self, position: int) -> list[FeedEntry] | None:
        """Returns the entries behind `position`; an empty list at the top; None if the journal must be read."""
        entries = self._entries
        if entries is not None:
            index = position + 1 - self._base
            if 0 <= index < len(entries):
                return entries[index:]
        return [] if position >= self.top else None

    def entry(self, offset: int) -> FeedEntry:
        assert self._entries is not None
        return self._entries[offset - self._base]

    def drop_tail(self) -> None:
        """Drops the tail, whose records the journal has."""
        self._feeds.bytes -= self._bytes
        self._bytes = 0
        self._entries = None

    def take_idle(self) -> bool:
        """Returns whether nothing came since the last call."""
        touched, self._touched = self._touched, False
        return not touched


@dataclass(slots=True, eq=False, repr=False)
class FeedReader(Unacked):
    """One connection's cursor on one log. `position` is the offset of the last event that was sent."""

    feed: Feed
    listener: FeedListener
    follows: frozenset[ResponseId] | None = None  # the responses that it reads for; None: everything
    epoch: Epoch = UNKNOWN
    position: int = 0
    attached: bool = False  # the answer to its resume is written, so events may follow
    live: bool = False  # `caught_up` is written
    queued: bool = False  # its owner will call `pull`
    reading: bool = False  # its owner is reading a page for it
    paged: bool = False  # a page was read since it last caught up
    page: tuple[Record, ...] | None = None  # read for it and not sent yet; dropped after one `pull`
    scrubber: Scrubber | None = None
    held: list[tuple[int, bytes]] | None = None  # (offset, frame): answers to write once that offset is sent
    merge_from: int = MERGE_FROM
    delta_at: float = float("-inf")  # when only deltas were last sent

    def holds_deltas(self) -> bool:
        """Returns whether only fresh deltas are ready for it, which may wait to be merged with later ones."""
        if not self.live or self.page is not None or self.held is not None or self.epoch != self.feed.epoch:
            return False
        entries = self.feed.after(self.position)
        return bool(entries) and all(isinstance(entry.record.event, DELTAS) for entry in entries or ())

    def pull(self, out: list[bytes], encoding: Encoding, window: Window, now: float) -> PullResult:
        """Appends frames to `out`: as many as lie ready, fit into the window, and are allowed in one call. Returns why
        it stopped."""
        feed = self.feed
        if feed.epoch != self.epoch:
            return PullResult.STALE
        if window.full:
            self.page = None
            return PullResult.FULL
        if self.page is not None:
            return self._pull_page(out, encoding, window, now)
        entries = feed.after(self.position)
        if entries is None:
            return PullResult.NEEDS_PAGE
        budget = PULL_BYTES_MAX
        if len(entries) < self.merge_from:  # the usual case: one, fresh from the engine
            for entry in entries:
                frame = entry.frame(feed, encoding)
                budget -= self._take(frame, entry.record.offset, out, window, now)
                if window.full or budget <= 0:
                    break
        else:
            for span in merged(entry.record for entry in entries):
                if span.first_offset is None:
                    frame = feed.entry(span.record.offset).frame(feed, encoding)
                else:
                    frame = encoding.frame(event_frame(feed.key.session, self.epoch, *span))
                budget -= self._take(frame, span.record.offset, out, window, now)
                if window.full or budget <= 0:
                    break
        return self._standing(window)

    def _pull_page(self, out: list[bytes], encoding: Encoding, window: Window, now: float) -> PullResult:
        feed, records, self.page = self.feed, self.page, None
        assert records is not None
        if not records:
            return self._standing(window)
        if records[0].offset != self.position + 1 or records[-1].offset != self.position + len(records):
            return PullResult.STALE  # the log begins later now: only a snapshot is without a hole
        if feed.retracted_after(self.position):
            # Looked at now and not when the page was read: one may have come in between, and one before it been missed.
            if not feed.covers(self.position, feed.retractions[-1][0]):
                return PullResult.NEEDS_PAGE
            if self.scrubber is None or self.scrubber.newest != feed.retractions[-1][0]:
                self.scrubber = Scrubber(one for one in feed.retractions if one[0] > self.position)
        else:
            self.scrubber = None
        budget = PULL_BYTES_MAX
        try:
            shown = records if self.scrubber is None else tuple(self.scrubber.scrub(record) for record in records)
        except OutOfSight:
            return PullResult.OUT_OF_SIGHT
        for span in merged(shown):
            frame = encoding.frame(event_frame(feed.key.session, self.epoch, *span))
            budget -= self._take(frame, span.record.offset, out, window, now)
            if window.full or budget <= 0:
                break
        if self.position != records[-1].offset:
            self.scrubber = None  # it has seen what was not sent: the next page counts anew
        return self._standing(window)

    def _take(self, frame: bytes, offset: int, out: list[bytes], window: Window, now: float) -> int:
        out.append(frame)
        num_bytes = len(frame)
        window.sent(self, offset, num_bytes, now)
        self.position = offset
        return num_bytes

    def _standing(self, window: Window) -> PullResult:
        if self.position >= self.feed.top:
            return PullResult.CAUGHT_UP
        return PullResult.FULL if window.full else PullResult.MORE


class Feeds:
    """The feeds of a gateway, by session."""

    def __init__(self, sessions: Sessions, read_to: Callable[[SessionKey, int], None] | None = None) -> None:
        """`read_to` gets a session and an offset that one of its readers has seen. It is called when a reader has
        caught up from the journal, and, if the session has readers, at an answer's end."""
        self.read_to = read_to
        self.bytes = 0  # of all tails
        self._sessions = sessions
        self._feeds: dict[SessionKey, Feed] = {}
        self._warm: dict[Feed, None] = {}  # feeds with a tail, oldest tail first

    def __len__(self) -> int:
        return len(self._feeds)

    def acquire(self, key: SessionKey, listener: FeedListener, encoding: Encoding) -> FeedReader:
        """Returns a new reader of a session, which is watched from now on. `release` ends it."""
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(key, self, encoding)
            feed.stop = self._sessions.watch(key, feed.publish)
        reader = FeedReader(feed, listener)
        feed.readers.append(reader)
        return reader

    def release(self, reader: FeedReader) -> None:
        """Removes a reader from its feed; the last one ends the watch. Idempotent."""
        feed = reader.feed
        if reader not in feed.readers:
            return
        feed.readers.remove(reader)
        del reader.listener  # it refers to the reader
        if not feed.readers:
            assert feed.stop is not None
            feed.stop()
            feed.stop = None  # it refers to the feed
            feed.drop_tail()
            self._warm.pop(feed, None)
            del self._feeds[feed.key]

    def wake(self) -> None:
        """Has all readers look again, though nothing new has come."""
        for feed in self._feeds.values():
            for reader in feed.readers:
                reader.listener.readable(reader)

    def warmed(self, feed: Feed) -> None:
        self._warm[feed] = None

    def shed(self, but: Feed) -> None:
        """Drops the oldest tails, but not that of `but`, until all take three quarters of the bound."""
        for feed in [feed for feed in self._warm if feed is not but]:
            if self.bytes <= TAILS_BYTES_MAX * 3 // 4:
                return
            feed.drop_tail()
            del self._warm[feed]

    def sweep(self) -> None:
        """Drops the tails of sessions where nothing came since the last sweep."""
        for feed in [feed for feed in self._warm if feed.take_idle()]:
            feed.drop_tail()
            del self._warm[feed]
