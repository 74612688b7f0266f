"""What the processes of a simulated cluster share: time, chance, the trace, and the first thing that went wrong.

Chance comes from the seed alone, in named streams: what one part of the world draws does not change what another does.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from typing import Any

from sessions.model.types import UnixMs
from tests.simulation.loop import SimLoop

BEGAN_MS = 1_700_000_000_000
KNOWN_S = 1.0  # after which everybody knows what was taken back, while nothing is broken


class Violation(AssertionError):
    """The product broke a promise."""


class World:
    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.loop = SimLoop()  # type: ignore[abstract]  # it has what asyncio calls here
        self.loop.on_error = self._uncaught
        self.bent_on: tuple[str, ...] = ()  # what the nemesis does in this run; nothing: what the seed says
        self.faultless = True  # nothing was broken so far, so nothing may be late or fail
        self.healed = False
        self.faults: set[str] = set()  # the kinds that there were
        self.kills: list[float] = []  # when replicas died
        self.counters: dict[str, int] = {}
        self.broken: asyncio.Future[None] | None = None  # done with the first violation
        self.lines: list[tuple[float, str, tuple[Any, ...]]] | None = [] if keep_trace else None
        self.problems: list[str] = []
        self.rests = False  # everything has come to rest after all was mended
        self.taken_back: dict[bytes, float] = {}  # marks of texts that people had taken back -> when that was durable
        self.at_end: list[Callable[[], None]] = []  # what is freed when nobody looks any more
        self._ids = self.chance("ids")
        self._skew: dict[str, int] = {}
        self._clocks = self.chance("clocks")

    def chance(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    def new_id(self) -> str:
        return f"{self._ids.getrandbits(48):012x}"

    def clock(self, process: str) -> Any:
        """The time of day as a process reads it: a little wrong."""
        skew_ms = self._clocks.randint(-150, 150)
        loop = self.loop
        return lambda: UnixMs(BEGAN_MS + skew_ms + int(loop.now * 1000))

    def trace(self, who: str, *what: Any) -> None:
        if self.lines is not None:
            self.lines.append((self.loop.now, who, what))

    def count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1

    def violation(self, text: str) -> None:
        """Notes what went wrong; the first one ends the run."""
        self.trace("VIOLATION", text)
        self.problems.append(f"at {self.loop.now:.3f} s: {text}")
        if self.broken is not None and not self.broken.done():
            self.broken.set_result(None)

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            self.violation(text)

    def take_back(self, marks: list[str]) -> None:
        self.taken_back.update((mark.encode(), self.loop.now) for mark in marks)

    def shown(self, data: bytes, where: str) -> None:
        """Somebody is given these bytes: while nothing is broken, and when all is at rest, none of them is a word that
        was taken back."""
        for mark, at in self.taken_back.items():
            known = self.faultless and self.loop.now > at + KNOWN_S
            if mark in data and (known or self.rests):
                self.violation(f"{where} has {mark.decode()}, which was taken back at {at:.3f} s")

    @staticmethod
    def check_range(low: int, value: int, high: int) -> bool:
        return low <= value <= high

    def _uncaught(self, message: str, error: BaseException | None) -> None:
        self.violation(f"an error that nobody caught: {message}: {error!r}")

    def logged(self, event: dict[str, Any]) -> None:
        """The product logged an error: those that faults do not explain are ours."""
        name = str(event.get("event"))
        if event.get("exc_info") or name not in EXPECTED:
            error = event.get("exception") or event.get("exc_info") or event.get("error") or event.get("reason")
            self.violation(f"the product logged {name!r}: {error!r} {sys.exc_info()[1]!r}")
        else:
            self.trace("log", name)


EXPECTED = frozenset({"journal_failed", "journal_abandoned"})
