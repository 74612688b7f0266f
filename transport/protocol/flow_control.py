"""Flow control: how far a connection may be ahead of its acknowledgements (docs/protocol.md 3.5).

The window counts events and bytes that were sent and not acknowledged, over all sessions of a connection, replay
included. It is open while there is room for at least a little; the frame that fills it may overshoot, so that one event
larger than the whole window still passes.

It never buffers: what does not fit is not taken from the log. Time is an argument.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter

_OFFSET = itemgetter(0)


@dataclass(slots=True, eq=False, repr=False)
class Unacked:
    """The events that were sent to one reader and not acknowledged: in `sent`, for each the offset at which it ends and
    the bytes sent up to there."""

    # Made when something is sent and dropped when all is acknowledged: most connections are idle.
    sent: list[tuple[int, int]] | None = field(default=None, init=False)
    acked_bytes: int = field(default=0, init=False)


@dataclass(slots=True, eq=False, repr=False)
class Window:
    """Counts the unacknowledged events and bytes of one connection. `full` is true while there is no room; `full_since`
    is the time from which the slow reader's time limit counts, None while there is room."""

    events_max: int
    bytes_max: int
    events: int = 0
    bytes: int = 0
    full: bool = False  # stored, not computed: it is read several times for each event
    full_since: float | None = None

    @property
    def bytes_left(self) -> int:
        return self.bytes_max - self.bytes

    def sent(self, to: Unacked, offset: int, num_bytes: int, now: float) -> None:
        """Counts one frame of `num_bytes` bytes that was sent to the reader `to` and whose last event is at
        `offset`."""
        if to.sent is None:
            to.sent = [(offset, num_bytes)]
            to.acked_bytes = 0
        else:
            to.sent.append((offset, to.sent[-1][1] + num_bytes))
        self.events += 1
        self.bytes += num_bytes
        if self.events >= self.events_max or self.bytes >= self.bytes_max:
            self.full = True
            if self.full_since is None:
                self.full_since = now

    def acked(self, by: Unacked, offset: int, now: float) -> bool:
        """Frees everything that `by` was sent up to `offset`. Returns whether that freed anything; if so, the slow
        reader's time limit starts again."""
        sent = by.sent
        if sent is None or sent[0][0] > offset:
            return False
        count = bisect_right(sent, offset, key=_OFFSET)
        upto = sent[count - 1][1]
        self.events -= count
        self.bytes -= upto - by.acked_bytes
        by.acked_bytes = upto
        if count == len(sent):
            by.sent = None
        else:
            del sent[:count]
        self.full = self.events >= self.events_max or self.bytes >= self.bytes_max
        self.full_since = now if self.full else None
        return True

    def forget(self, reader: Unacked, now: float) -> None:
        """Frees everything that a reader was sent, because the reader has left and will not acknowledge it."""
        if reader.sent is not None:
            self.acked(reader, reader.sent[-1][0], now)
