"""The states of a session in a replica's memory, and how many sessions a page lists. They are in a module of their own
because the command line's help names them and needs nothing else of what runs a replica."""

from __future__ import annotations

from typing import Final

PAGE_MAX: Final = 1_000
STATES: Final = ("loading", "idle", "turn", "sealed", "fenced", "gone")
