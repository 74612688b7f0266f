"""The end of a start that was told to stop. Apart, so that a command that starts nothing need not load what waits."""

from __future__ import annotations


class StartStopped(Exception):
    """Raised when SIGTERM or Ctrl-C came while the start waited. The process ends without an error."""
