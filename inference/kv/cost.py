"""Restore or recompute: what each would take, from what each took before.

    prefill of tokens [a, b)      = per token x (b - a) + per pair x (b^2 - a^2) / 2      attention reads all before
    moving n bytes out of a tier  = latency + n / bandwidth

Both are lines with two coefficients that are never negative, learned by least squares on relative errors, so that
a small transfer counts as much as a large one; old measurements fade. A tier that was not measured for a while is
believed to be as its prior says again, little by little: one that was slow once gets another chance, and a deadline
bounds what that chance may cost.

Pure: times are arguments. It does not know what is running; measurements under load say what load costs.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

_FADE: Final = 0.9  # of old measurements, at each new one
_JUMP: Final = 4.0  # so far off the line, a measurement starts it anew
_GUESS: Final = 0.25
_FORGET_S: Final = 60.0  # an estimate without measurements falls back to its prior in this time (e-fold)
DEADLINE_MIN_S: Final = 0.05
DEADLINE_MAX_S: Final = 30.0


class Line:
    """y = a x + b z with a, b >= 0. Begins as a guess; a first measurement scales the guess, later ones bend it.

    One that is far off the line starts it anew in the same way: a disk that became slow is another disk."""

    def __init__(self, a: float, b: float, points: tuple[tuple[float, float], ...]) -> None:
        """`points`: (x, z) at which a guess counts as much as a quarter of a measurement."""
        self.a, self.b = a, b
        self._points = points
        self._sums: list[float] = []  # xx, xz, zz, xy, zy, all over y^2

    def measured(self, x: float, z: float, y: float) -> None:
        y = max(y, 1e-6)
        off = y / max(self.at(x, z), 1e-12)
        if not self._sums or not 1 / _JUMP < off < _JUMP:
            self.a, self.b = self.a * off, self.b * off
            self._sums = [0.0] * 5
            for point_x, point_z in self._points:
                self._add(point_x, point_z, self.at(point_x, point_z), _GUESS / len(self._points))
        self._sums = [value * _FADE for value in self._sums]
        self._add(x, z, y, 1.0)
        self._solve()

    def at(self, x: float, z: float) -> float:
        return self.a * x + self.b * z

    def _add(self, x: float, z: float, y: float, weight: float) -> None:
        w = weight / max(y * y, 1e-12)
        for number, product in enumerate((x * x, x * z, z * z, x * y, z * y)):
            self._sums[number] += w * product

    def _solve(self) -> None:
        xx, xz, zz, xy, zy = self._sums
        det = xx * zz - xz * xz
        a, b = -1.0, -1.0
        if det > 1e-9 * xx * zz:
            a, b = (xy * zz - zy * xz) / det, (zy * xx - xy * xz) / det
        if a < 0.0 or b < 0.0:  # on the border: one coefficient alone, whichever fits better
            only_a, only_b = xy / xx if xx else 0.0, zy / zz if zz else 0.0
            a, b = (only_a, 0.0) if only_a * xy >= only_b * zy else (0.0, only_b)
        self.a, self.b = a, b


class TierCost(msgspec.Struct, frozen=True):
    """What a tier is taken for before it was measured."""

    latency_s: float
    bytes_per_s: float


PRIORS: Final = {
    "device": TierCost(0.005, 2e9),  # from host memory into the engine
    "disk": TierCost(0.005, 5e8),
    "redis": TierCost(0.002, 2e8),
    "peer": TierCost(0.005, 1e8),
}


class _Tier:
    def __init__(self, prior: TierCost) -> None:
        self.prior = prior
        self.line = Line(prior.latency_s, 1.0 / prior.bytes_per_s, ((1.0, 1e5), (1.0, 1e8)))
        self.measured_at: float | None = None


class Choice(msgspec.Struct, frozen=True):
    restore: bool
    restore_s: float
    recompute_s: float
    deadline_s: float  # a restore that takes longer is given up


class CostModel:
    """The costs of one engine. `now_s` on any clock that goes forward."""

    def __init__(self) -> None:
        self._prefill: Line | None = None
        self._tiers = {name: _Tier(prior) for name, prior in PRIORS.items()}

    def prefilled(self, begin: int, end: int, seconds: float) -> None:
        """Tokens [begin, end) were computed on top of what was there."""
        if end <= begin:
            return
        if self._prefill is None:  # the first measurement is the prior: nobody can know a machine beforehand
            rate = seconds / (end - begin)
            self._prefill = Line(rate, 0.0, ((256.0, 128.0 * 256.0), (4096.0, 2048.0 * 4096.0)))
        self._prefill.measured(end - begin, (end * end - begin * begin) / 2, seconds)

    def moved(self, tier: str, num_bytes: int, seconds: float, now_s: float) -> None:
        entry = self._tiers[tier]
        entry.line.measured(1.0, num_bytes, seconds)
        entry.measured_at = now_s

    def prefill_s(self, begin: int, end: int) -> float:
        """Infinite while nothing was measured: then restoring is how to find out."""
        if self._prefill is None:
            return math.inf
        return self._prefill.at(end - begin, (end * end - begin * begin) / 2)

    def move_s(self, tier: str, num_bytes: int, now_s: float) -> float:
        entry = self._tiers[tier]
        expected = entry.line.at(1.0, num_bytes)
        hoped = entry.prior.latency_s + num_bytes / entry.prior.bytes_per_s
        if entry.measured_at is None or expected <= hoped:
            return expected
        trust = math.exp(-max(0.0, now_s - entry.measured_at) / _FORGET_S)
        return hoped + (expected - hoped) * trust

    def choose(self, tiers: tuple[str, ...], num_bytes: int, begin: int, end: int, now_s: float) -> Choice:
        """Whether moving `num_bytes` through `tiers`, one after the other, beats computing tokens [begin, end)."""
        restore_s = sum(self.move_s(tier, num_bytes, now_s) for tier in tiers)
        recompute_s = self.prefill_s(begin, end)
        deadline_s = min(max(DEADLINE_MIN_S, restore_s + recompute_s), DEADLINE_MAX_S)
        return Choice(restore_s < recompute_s, restore_s, recompute_s, deadline_s)

    def saved_s(self, num_bytes: int, tokens: int, now_s: float) -> float:
        """What a snapshot in host memory is worth at a return; 0 where computing is as fast."""
        recompute_s = self.prefill_s(0, tokens)
        if math.isinf(recompute_s):
            return float(tokens)  # in proportion, which is all that a ranking needs
        return max(0.0, recompute_s - self.move_s("device", num_bytes, now_s))

    def described(self) -> dict[str, float]:
        """For statistics: coefficients as people name them."""
        told: dict[str, float] = {}
        for name, tier in self._tiers.items():
            told[f"{name}_latency_s"] = tier.line.a
            told[f"{name}_bytes_per_s"] = 1.0 / tier.line.b if tier.line.b else math.inf
        if self._prefill is not None and self._prefill.a:
            told["prefill_tokens_per_s"] = 1.0 / self._prefill.a
        return told
