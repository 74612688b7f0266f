"""The clock and the source of ids that every part is given: nothing below `app.py` reads the system's own.

`now_ms` is wall time, for what people and rows are shown; deadlines go by the running loop's `time()`. `new_id` makes
an id that no other process makes. Tests and the simulator hand in a clock that they move themselves.
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
