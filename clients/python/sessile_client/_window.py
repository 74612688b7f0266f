"""When to acknowledge (protocol.md, 3.5): at half a window, and a second after the first event that is not.

The window is the connection's, over all its sessions; it counts what arrived, replay included. It never bears on
correctness. A snapshot counts as something to acknowledge, though servers do not wait for that.
"""

from __future__ import annotations

from ._wire import Frame


class Window:
    """What one connection has received and not acknowledged. Time is given."""

    def __init__(self, ack_after_s: float) -> None:
        self.events_max = 1024
        self.bytes_max = 262_144
        #: when the next acknowledgement is due; None: nothing is out
        self.due_at: float | None = None
        self._ack_after_s = ack_after_s
        self._events = 0
        self._bytes = 0
        self._offsets: dict[str, int] = {}
        self._counted = False

    def event(self) -> None:
        """An event frame came, applied or not: it fills the server's window."""
        self._events += 1
        self._counted = True

    def applied(self, session: str, offset: int) -> None:
        """The session's position is now ``offset``."""
        self._offsets[session] = offset
        self._counted = True

    def forget(self, session: str) -> None:
        """The session is not read any more: the server has forgotten it too."""
        self._offsets.pop(session, None)

    def message(self, size_bytes: int, now: float) -> None:
        """The message that the last calls were about has ended."""
        if not self._counted:
            return
        self._counted = False
        self._bytes += size_bytes
        if self.due_at is None:
            self.due_at = now + self._ack_after_s

    def acknowledge(self, now: float) -> list[Frame]:
        """The ``ack`` frames that are due, one per session; then nothing is out."""
        if self.due_at is None:
            return []
        if self._events * 2 < self.events_max and self._bytes * 2 < self.bytes_max and now < self.due_at:
            return []
        acks = [{"type": "ack", "session": session, "offset": offset} for session, offset in self._offsets.items()]
        self._offsets.clear()
        self._events = self._bytes = 0
        self.due_at = None
        return acks
