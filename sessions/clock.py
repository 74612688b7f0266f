"""The clock and the source of ids that every part gets: nothing below `app.py` reads the system's own.

`now_ms` is wall time in Unix milliseconds, for what people and rows are shown; deadlines use the running loop's
`time()`. `new_id` makes an id that no other process makes. Tests and the simulator pass a clock that they move
themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sessions.model.types import UnixMs

__all__ = ["Clock"]


@dataclass(frozen=True, slots=True)
class Clock:
    now_ms: Callable[[], UnixMs]
    new_id: Callable[[], str]
