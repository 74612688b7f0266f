"""What of the sessions' KV a fleet keeps where: the product's ranks and costs, looked up for whole arrays.

The product decides about one snapshot at a time. Here its own functions fill tables (`ReturnModel.index` for each kind
of silence and step of age, `CostModel.choose` for each size), and whole arrays look there. Every replica's tiers are
brought within their bounds in a pass of its own, each `PASS_S` seconds; the product does so at each write.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
import numpy.typing as npt

from inference.kv.cost import CostModel
from inference.kv.eviction_rank import AGES_S, PACES_S, SIZES, ReturnModel, SilenceKind, silence_kind
from tests.support.fleet.scenario import Bools, EngineModel, Floats, Ints

NONE, HOST, DISK = 0, 1, 2
PASS_S: Final = 300
_STEP: Final = 256  # tokens
_TURNS: Final = 8

Tiers = npt.NDArray[np.int8]


class RestoreTable:
    """Whether KV is restored or computed, and what either takes, by the product's `CostModel`."""

    def __init__(self, costs: CostModel, engine: EngineModel) -> None:
        self._costs = costs
        sizes = [max(1, number * _STEP) for number in range(engine.context // _STEP + 2)]
        ways: dict[int, tuple[str, ...]] = {HOST: ("device",), DISK: ("disk", "device")}
        self._seconds = np.zeros((3, len(sizes)), dtype=np.float32)
        self._restores = np.zeros((3, len(sizes)), dtype=np.bool_)
        self._saved = np.array(
            [costs.saved_s(tokens * engine.token_bytes, tokens, 0.0) for tokens in sizes], dtype=np.float32
        )
        for tier, way in ways.items():
            for number, tokens in enumerate(sizes):
                choice = costs.choose(way, tokens * engine.token_bytes, 0, tokens, 0.0)
                self._restores[tier, number] = choice.restore
                self._seconds[tier, number] = choice.restore_s

    def prefill_s(self, begin: Ints, end: Ints) -> Floats:
        first, last = begin.astype(np.float64), end.astype(np.float64)
        # A sum of products: it holds for arrays as for numbers.
        return np.asarray(self._costs.prefill_s(first, last), dtype=np.float32)  # type: ignore[arg-type]

    def restores(self, tier: Tiers, tokens: Ints) -> tuple[Bools, Floats]:
        number = tokens // _STEP
        return self._restores[tier, number], self._seconds[tier, number]

    def saved_s(self, tokens: Ints) -> Floats:
        return self._saved[tokens // _STEP]


class RankTable:
    """The product's expected return of each silence."""

    def __init__(self, model: ReturnModel) -> None:
        ages = np.array(AGES_S, dtype=np.float64)
        self._ages = np.concatenate([np.linspace(a, b, 5)[:-1] for a, b in itertools.pairwise(ages)])
        shape = (_TURNS, len(SIZES), len(PACES_S) + 1, len(self._ages))
        self._table = np.zeros(shape, dtype=np.float32)
        for cell in np.ndindex(shape[:3]):
            kind = SilenceKind(*(int(each) for each in cell))
            self._table[cell] = [model.index(kind, float(age)) for age in self._ages]

    def index(self, turns: npt.NDArray[np.int8], tokens: Ints, silence_s: Floats) -> Floats:
        size = np.searchsorted(np.array(SIZES), tokens, side="right") - 1
        age = np.searchsorted(self._ages, silence_s, side="right") - 1
        found: Floats = self._table[np.minimum(turns, _TURNS - 1), size, 3, age]
        return found


def learned(silences: Floats, tokens: Ints) -> ReturnModel:
    """A model that has watched these silences end."""
    model = ReturnModel()
    for silence_s, size in zip(silences.tolist(), tokens.tolist(), strict=True):
        model.observe(silence_kind(2, size, 60.0), silence_s, returned=True)
    model.fit()
    return model


def within_bounds(replica: Ints, num_bytes: npt.NDArray[np.int64], worth: Floats, bound: float) -> Bools:
    """Which snapshots stay: of each replica the worthiest, as many as its bound has room for."""
    order = np.lexsort((-worth, replica))
    owner, sizes = replica[order], num_bytes[order]
    total = np.cumsum(sizes)
    first = np.concatenate(([True], owner[1:] != owner[:-1])) if len(owner) else np.zeros(0, dtype=np.bool_)
    before = np.where(first, total - sizes, 0)
    base = np.maximum.accumulate(before) if len(before) else before
    stays = np.zeros(len(order), dtype=np.bool_)
    stays[order] = total - base <= bound
    return stays
