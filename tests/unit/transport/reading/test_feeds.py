"""The life of a feed; what it carries is tested through channels."""

from __future__ import annotations

from collections.abc import Callable

from sessions.model.events import Record
from sessions.model.types import Epoch, SessionKey, UnixMs
from sessions.ports import Published
from tests.support.cluster.replicas import KEY
from tests.support.doors.transport import message_created, retracted
from tests.support.garbage import no_cycles
from transport.protocol.frames import JSON
from transport.reading.feeds import Feed, FeedReader, Feeds


class Sessions:
    """No more than that they can be watched."""

    def watch(self, key: SessionKey, sink: object) -> Callable[[], None]:
        sinks = [sink]
        return lambda: sinks.remove(sink)


class Nobody:
    """Holds its reader, as a cursor does."""

    def __init__(self, feeds: Feeds) -> None:
        self.reader = feeds.acquire(KEY, self, JSON)

    def readable(self, reader: FeedReader) -> None:
        raise AssertionError("nothing is published")


def test_a_feed_that_nobody_reads_is_free_at_once() -> None:
    feeds = Feeds(Sessions())  # type: ignore[arg-type]
    with no_cycles(Feed, FeedReader):
        feeds.release(Nobody(feeds).reader)
        assert len(feeds) == 0


def test_retractions_are_not_taken_for_known_across_a_gap() -> None:
    """A page that was read up to offset 10 says nothing of what lies between it and a batch that was published."""
    feed = Nobody(Feeds(Sessions())).reader.feed  # type: ignore[arg-type]
    feed.remember(12, 14, [(14, retracted(5, 17, "##"))])
    feed.remember(7, 10, [])
    assert feed.covers(12, 14) and not feed.covers(7, 14)
    feed.remember(7, 13, [(11, retracted(3, 11))])
    assert feed.covers(7, 14)
    assert [offset for offset, _ in feed.retractions] == [11, 14]


class Listener:
    def readable(self, reader: FeedReader) -> None: ...


def test_a_tail_ends_when_the_journal_tells_of_a_retraction_behind_it() -> None:
    """The owner that retracted it was not heard here, so the tail holds what was taken back."""
    feed = Feeds(Sessions()).acquire(KEY, Listener(), JSON).feed  # type: ignore[arg-type]
    records = tuple(Record(offset, UnixMs(0), message_created("my PIN", f"msg_{offset}")) for offset in (1, 2))
    feed.publish(Published(KEY, Epoch("e"), records))
    assert feed.after(1) is not None
    feed.remember(0, 3, [(3, retracted(0, 6, item="msg_2"))])
    assert feed.after(1) is None, "read from the journal, scrubbed"
