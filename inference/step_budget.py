"""How many tokens an engine's next step may compute, so that the step lasts no longer than a target.

Whoever decodes gets its next token, and whoever comes with a short rest of a prompt its first one, only when the step
that is under way is over. So a long prompt is computed in pieces, and a piece is what the measured rate computes in the
target time (Sarathi-Serve's bound on the time between tokens):

    target 250 ms, last steps 400 tokens in 1 s each  ->  100 tokens

A prompt that is alone may take `ALONE_TARGETS` times the target, because a step costs something besides its tokens:
whoever comes meanwhile waits for one such step at most. Where steps are planned before others end, it would be several,
so no prompt counts as alone there.

The rate is that of whole steps, what a step costs besides and those that decode beside it included. It reads no clock.
"""

from __future__ import annotations

from typing import Final

TARGET_CPU_MS: Final = 250
TARGET_GPU_MS: Final = 50
ALONE_TARGETS: Final = 2
LEAST_ALONE: Final = 64  # where nobody decodes: below that a step costs mostly what it costs without any token
LEAST_BESIDE: Final = 16  # where somebody does
_WEIGHT: Final = 0.3  # of a new measurement


class StepBudget:
    """Decides how many tokens an engine computes in one step, by the rate that it measured."""

    def __init__(self, target_s: float, most: int, *, unit: int = 1) -> None:
        """`most`: how many tokens the engine can take in one step. `unit`: budgets above it are multiples of it."""
        self._target_s = target_s
        self._most = most
        self._unit = unit
        self._token_s: float | None = None

    def tokens(self, *, decoding: bool, alone: bool = False) -> int:
        """Returns how many tokens the next step may compute. `decoding`: an answer is being decoded and waits for its
        next token. `alone`: no run but the one whose prompt is computed runs or waits."""
        least = min(LEAST_BESIDE if decoding else LEAST_ALONE, self._most)
        if self._token_s is None:
            return min(LEAST_ALONE, self._most)
        target_s = self._target_s * (ALONE_TARGETS if alone else 1)
        fitting = int(min(self._most, target_s / self._token_s))
        if fitting > self._unit:
            fitting -= fitting % self._unit
        return max(least, fitting)

    def measured(self, tokens: int, seconds: float) -> None:
        """Learns the rate from a step that computed `tokens` tokens in `seconds`. Steps of less than half the budget
        are ignored, because they say little about the rate."""
        if seconds <= 0 or 2 * tokens < self.tokens(decoding=True):
            return
        token_s = seconds / tokens
        self._token_s = token_s if self._token_s is None else (1 - _WEIGHT) * self._token_s + _WEIGHT * token_s
