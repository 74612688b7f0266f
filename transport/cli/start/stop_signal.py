"""The signals that end a server: the first begins an orderly end, a second Ctrl-C ends the process at once."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

AT_ONCE: Final = "Ctrl-C ends it at once"


def stop_signal() -> asyncio.Event:
    """Returns an event that the first SIGTERM or Ctrl-C sets. A Ctrl-C after that kills the process at once, which
    loses nothing that is in the journal."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def begin() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, begin)
    return stop
