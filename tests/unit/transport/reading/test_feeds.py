"""The life of a feed; what it carries is tested through channels."""

from __future__ import annotations

from collections.abc import Callable

from sessions.model.types import SessionKey
from tests.support.cluster.replicas import KEY
from tests.support.doors.transport import retracted
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
