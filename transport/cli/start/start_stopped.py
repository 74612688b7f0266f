"""The end of a start that was told to stop. Apart, so that a command that starts nothing need not load what waits."""

from __future__ import annotations


class StartStopped(Exception):
    """SIGTERM or Ctrl-C came while the start waited: the process ends, and nothing went wrong."""
