"""Decides from beats and knocks when the silent end of a link is dead.

    heard ──> silent for two quick beats ──> knock ──> no answer for two more ──> dead        about 0.5 s
                                               └────> answered ──> a process that stands still: `dead_after_beats` long

Beats come from the other end's event loop, which may stand still; a knock is a bare connection, which its kernel
answers for it. So a host that is cut off or has lost its power can be distinguished from a process that is merely slow,
and only the former is taken for dead early. How long an answer may take is measured while the other end is heard: on a
long way, or a machine that is busy, knocks wait longer, and where nothing answers them (a firewall) silence is measured
by beats alone.

Time is counted in beats of our own, so that a process that stood still itself takes nobody for dead. Pure. A wrong
finding costs a take-over, never a second writer (I1); `actors.peer.client.Connector` limits how often that may happen.

After: Hayashibara et al., "The φ accrual failure detector" (2004): suspicion adapts to what was observed; Das et al.,
"SWIM" (2002): a silent member is probed by another way before it is suspected.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

from actors.peer.links import LinkLimits

ANSWER_FACTOR: Final = 4  # an answer may take so many times as long as the first one took
_EXACT_S: Final = 1e-6  # tolerance: beats are added up as floats


class SilenceFinding(Enum):
    """The detector's conclusion after one beat of ours."""

    ALIVE = "alive, or not silent for long"
    KNOCK = "a knock is to be made"
    WITHDRAW = "the knock that waits for its answer is of no use any more"
    SILENT = "dead: too long without a word"
    UNREACHABLE = "dead: silent, and its host does not answer either"


class SilenceDetector:
    """Detects the silence of one link. Call `beat` with each beat of ours, and `answered` or `unanswerable` after a
    knock."""

    def __init__(self, limits: LinkLimits, *, knocks: bool) -> None:
        """`knocks` says whether knocks can be made; if not, silence is measured by beats alone."""
        self._quick_s = limits.quick_beat_s
        self._dead_s = limits.beat_s * limits.dead_after_beats - _EXACT_S
        self._knock_after_s = limits.quick_beat_s * limits.knock_after_beats - _EXACT_S
        self._least_s = limits.quick_beat_s * limits.knock_beats
        self._knocks = knocks
        self._promised_s = math.inf
        self._silent_s = 0.0
        self._knock_at_s = self._knock_after_s
        self._patience_s: float | None = None  # for a knock's answer; None: not measured yet
        self._waiting_s: float | None = None  # how long a knock has waited for its answer; None: none waits

    def promised(self, every_s: float) -> None:
        """Notes that the other end has announced to send something every `every_s` seconds; 0: it has announced
        nothing."""
        self._promised_s = every_s or math.inf

    def answered(self, after_s: float) -> None:
        """Notes that the other end's host answered a knock after `after_s` seconds."""
        if self._patience_s is None:
            self._patience_s = max(self._least_s, ANSWER_FACTOR * after_s) - _EXACT_S
        self._waiting_s = None
        self._knock_at_s = self._silent_s + self._knock_after_s

    def unanswerable(self) -> None:
        """Notes that the host does not answer knocks though the other end is heard: only beats count from now on."""
        self._knocks = False
        self._waiting_s = None

    @property
    def measuring(self) -> bool:
        """Whether the knock under way is the first one, which measures how long answers take."""
        return self._patience_s is None

    def beat(self, pace_s: float, *, heard: bool) -> SilenceFinding:
        """Judges the other end after one beat of ours, which lasted `pace_s` seconds. `heard`: something came from the
        other end during it."""
        if heard:
            self._silent_s, self._knock_at_s = 0.0, self._knock_after_s
        else:
            self._silent_s += pace_s
            if self._silent_s >= self._dead_s:
                return SilenceFinding.SILENT
        if self._waiting_s is not None:
            return self._await_answer(self._waiting_s + pace_s, heard=heard)
        if not self._knocks or max(self._promised_s, pace_s) > self._quick_s + _EXACT_S:
            return SilenceFinding.ALIVE
        if self._silent_s >= self._knock_at_s or (heard and self._patience_s is None):
            self._waiting_s = 0.0
            return SilenceFinding.KNOCK
        return SilenceFinding.ALIVE

    def _await_answer(self, waiting_s: float, *, heard: bool) -> SilenceFinding:
        self._waiting_s = waiting_s
        if self._patience_s is None:
            if waiting_s < self._dead_s:
                return SilenceFinding.ALIVE
            self.unanswerable()
            return SilenceFinding.WITHDRAW
        if heard:
            self._waiting_s = None
            return SilenceFinding.WITHDRAW
        return SilenceFinding.UNREACHABLE if waiting_s >= self._patience_s else SilenceFinding.ALIVE
