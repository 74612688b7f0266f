"""Decides between restoring and recomputing KV: what each would take, from what each took before.

    prefill of tokens [a, b)      = per token x (b - a) + per pair x (b^2 - a^2) / 2      attention reads all before
    moving n bytes out of a tier  = latency + n / bandwidth

Both are lines with two coefficients that are never negative, learned by least squares on relative errors, so that
a small transfer counts as much as a large one; old measurements fade. A tier that was not measured for a while is
believed to be as its prior says again, little by little: one that was slow once gets another chance.

What is expected may be wrong, since a tier can change between two looks at it. So the first bytes of a read decide
(`RestoreChoice.is_too_slow`): as soon as the rest, at the pace that it shows, would take longer than computing, the
read is given up. Likewise a read is begun against what is expected, to look, when the tier's prior promises a gain and
nobody has looked for a moment. Either way an error costs a small share of what computing takes, and a thread that did
not get its turn for some milliseconds is not taken for a slow tier where much is at stake.

Pure: times are arguments. It does not know what is running; measurements under load say what load costs.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from inference.kv.cold_tier import PIECE_BYTES_MIN, FetchProgress

_FADE: Final = 0.9  # weight of old measurements, applied at each new one
_JUMP: Final = 4.0  # a measurement off the line by this factor starts the fit anew
_GUESS: Final = 0.25
_LOOK_AGAIN_S: Final = 0.5  # a tier that is taken for too slow is not looked at again before
_LOOK_PIECES: Final = 4  # how many pieces must have had time to arrive before a pace is believed
_LOOK_MIN_S: Final = 0.005
_LOOK_SHARE: Final = 0.03  # share of the computing time before a pace is believed, for a tier expected to be too slow
_TRUSTED_SHARE: Final = 0.05  # the same for other tiers
_NOTHING_SHARE: Final = 0.1  # share of the computing time that a look waits for the first bytes
_FORGET_S: Final = 60.0  # an estimate without measurements falls back to its prior in this time (e-fold)
DEADLINE_MIN_S: Final = 0.05
DEADLINE_MAX_S: Final = 30.0  # unless computing takes longer: long contexts of large models do


class LinearFit:
    """A fit y = a x + b z with a, b >= 0. Begins as a guess; a first measurement scales it, later ones refine it.

    A measurement far off the line starts it anew in the same way: a disk that became slow is like another disk."""

    def __init__(self, a: float, b: float, points: tuple[tuple[float, float], ...]) -> None:
        """`a`, `b`: the coefficients to begin with. `points`: values (x, z) at which this guess weighs as much as a
        quarter of a measurement."""
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
    """The assumed speed of a tier before it is measured."""

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
        self.line = LinearFit(prior.latency_s, 1.0 / prior.bytes_per_s, ((1.0, 1e5), (1.0, 1e8)))
        self.measured_at: float | None = None


class RestoreChoice(msgspec.Struct, frozen=True):
    restore: bool
    restore_s: float
    recompute_s: float
    deadline_s: float  # a restore that takes longer is given up
    read_max_s: float = math.inf  # a read out of a tier below that takes longer is worse than computing
    looks: bool = False  # computing is expected to be faster, but a read may begin and show that it is not

    @property
    def tries(self) -> bool:
        """Whether a restore is started: because it is expected to be faster, or to see whether it is."""
        return self.restore or self.looks

    def look_s(self, num_bytes: int) -> float:
        """Returns how many seconds a read must have run before its pace is trusted. A tier that is barely worth it
        reads several pieces in that time."""
        share = _LOOK_SHARE if self.looks else _TRUSTED_SHARE
        return max(_LOOK_MIN_S, max(share, _LOOK_PIECES * PIECE_BYTES_MIN / max(1, num_bytes)) * self.read_max_s)

    def is_too_slow(self, num_bytes: int, progress: FetchProgress, waited_s: float, now_s: float) -> bool:
        """Returns whether computing would be done before the rest of a read of `num_bytes`, judged by the read's pace
        so far. `waited_s`: how long the caller has waited for the read."""
        rest_s = progress.seconds_for(num_bytes - progress.num_bytes, now_s)
        if progress.first_s is None or rest_s is None:
            if self.looks:
                return waited_s > max(2 * _LOOK_MIN_S, _NOTHING_SHARE * self.read_max_s)
            return waited_s > self.read_max_s
        return now_s - progress.first_s >= self.look_s(num_bytes) and rest_s > self.read_max_s


class CostModel:
    """The measured costs of moving and computing KV at one engine. `now_s` is on any clock that goes forward."""

    def __init__(self) -> None:
        self._prefill: LinearFit | None = None
        self._tiers = {name: _Tier(prior) for name, prior in PRIORS.items()}

    def prefilled(self, begin: int, end: int, seconds: float) -> None:
        """Learns from the computing of tokens [begin, end), which took so many seconds."""
        if end <= begin:
            return
        if self._prefill is None:  # the first measurement is the prior: nobody can know a machine beforehand
            rate = seconds / (end - begin)
            self._prefill = LinearFit(rate, 0.0, ((256.0, 128.0 * 256.0), (4096.0, 2048.0 * 4096.0)))
        self._prefill.measured(end - begin, (end * end - begin * begin) / 2, seconds)

    def moved(self, tier: str, num_bytes: int, seconds: float, now_s: float) -> None:
        entry = self._tiers[tier]
        entry.line.measured(1.0, num_bytes, seconds)
        entry.measured_at = now_s

    def prefill_s(self, begin: int, end: int) -> float:
        """Returns the seconds that computing tokens [begin, end) takes; infinite before the first measurement, so that
        restoring is tried."""
        if self._prefill is None:
            return math.inf
        return self._prefill.at(end - begin, (end * end - begin * begin) / 2)

    def move_s(self, tier: str, num_bytes: int, now_s: float) -> float:
        entry = self._tiers[tier]
        expected = entry.line.at(1.0, num_bytes)
        hoped = self._hoped_s(tier, num_bytes)
        if entry.measured_at is None or expected <= hoped:
            return expected
        trust = math.exp(-max(0.0, now_s - entry.measured_at) / _FORGET_S)
        return hoped + (expected - hoped) * trust

    def _hoped_s(self, tier: str, num_bytes: int) -> float:
        """Returns how many seconds a move of `num_bytes` takes at the speed that is assumed for an unmeasured tier."""
        prior = self._tiers[tier].prior
        return prior.latency_s + num_bytes / prior.bytes_per_s

    def _unseen_s(self, tier: str, now_s: float) -> float:
        measured_at = self._tiers[tier].measured_at
        return math.inf if measured_at is None else now_s - measured_at

    def choose(self, tiers: tuple[str, ...], num_bytes: int, begin: int, end: int, now_s: float) -> RestoreChoice:
        """Decides whether moving `num_bytes` through `tiers`, one after the other, is faster than computing tokens
        [begin, end).

        The last of `tiers` is always the way from host memory to the device. If restoring is not expected to be faster,
        a read from a tier below may be started all the same, to measure that tier."""
        restore_s = sum(self.move_s(tier, num_bytes, now_s) for tier in tiers)
        recompute_s = self.prefill_s(begin, end)
        bound_s = DEADLINE_MAX_S if math.isinf(recompute_s) else max(DEADLINE_MAX_S, recompute_s)
        deadline_s = min(max(DEADLINE_MIN_S, restore_s + recompute_s), bound_s)
        below = tiers[:-1]
        read_max_s = max(0.0, recompute_s - self.move_s(tiers[-1], num_bytes, now_s))
        looks = (
            restore_s >= recompute_s
            and bool(below)
            and sum(self._hoped_s(tier, num_bytes) for tier in below) < read_max_s
            and all(self._unseen_s(tier, now_s) >= _LOOK_AGAIN_S for tier in below)
        )
        return RestoreChoice(restore_s < recompute_s, restore_s, recompute_s, deadline_s, read_max_s, looks)

    def is_worth_saving(self, num_bytes: int, begin: int, end: int, now_s: float) -> bool:
        """Returns whether moving `num_bytes` out of the engine and into it again is faster than computing tokens
        [begin, end) again."""
        return 2 * self.move_s("device", num_bytes, now_s) < self.prefill_s(begin, end)

    def saved_s(self, num_bytes: int, tokens: int, now_s: float) -> float:
        """Returns the seconds that a snapshot in host memory saves at a return; 0 where computing is as fast."""
        recompute_s = self.prefill_s(0, tokens)
        if math.isinf(recompute_s):
            return float(tokens)  # in proportion, which is all that a ranking needs
        return max(0.0, recompute_s - self.move_s("device", num_bytes, now_s))

    def described(self) -> dict[str, float]:
        """Returns the coefficients under readable names, for statistics."""
        coefficients: dict[str, float] = {}
        for name, tier in self._tiers.items():
            coefficients[f"{name}_latency_s"] = tier.line.a
            coefficients[f"{name}_bytes_per_s"] = 1.0 / tier.line.b if tier.line.b else math.inf
        if self._prefill is not None and self._prefill.a:
            coefficients["prefill_tokens_per_s"] = 1.0 / self._prefill.a
        return coefficients
