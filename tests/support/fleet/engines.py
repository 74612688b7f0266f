"""The engines of a fleet as queues: slots that answer, one prefill after the other, first come first served. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.support.fleet.scenario import EngineModel, Floats, Ints


class Engines:
    def __init__(self, model: EngineModel, replicas: int) -> None:
        self._model = model
        self.slot_free = np.zeros((replicas, model.slots), dtype=np.float32)
        self.prefill_free = np.zeros(replicas, dtype=np.float32)
        self.in_system = np.zeros(replicas, dtype=np.int32)  # running and waiting

    @property
    def loads(self) -> Floats:
        """As replicas announce theirs."""
        return (self.in_system / self._model.slots).astype(np.float32)

    def tpot_s(self, replica: Ints) -> Floats:
        model, full = self._model, np.minimum(1.0, self.loads[replica])
        return (model.tpot_idle_s + (model.tpot_full_s - model.tpot_idle_s) * full).astype(np.float32)

    def rounds(self, replica: Ints) -> Iterator[Ints]:
        """Indices in which no replica comes twice, each replica's in their order."""
        order = np.argsort(replica, kind="stable")
        sorted_ = replica[order]
        new = np.concatenate(([True], sorted_[1:] != sorted_[:-1])) if len(order) else np.zeros(0, dtype=np.bool_)
        index = np.arange(len(order))
        rank = index - np.maximum.accumulate(np.where(new, index, 0)) if len(order) else index
        for number in range(int(rank.max(initial=-1)) + 1):
            yield order[rank == number].astype(np.int32)

    def begin(self, replica: Ints, at: Floats, restore_s: Floats, prefill_s: Floats) -> tuple[Ints, Floats, Floats]:
        """The slot that a turn would have at each of these replicas, when it would have it, and its first token."""
        slot = self.slot_free[replica].argmin(axis=1).astype(np.int32)
        start = np.maximum(at, self.slot_free[replica, slot])
        computing = np.maximum(start + restore_s, self.prefill_free[replica])
        return slot, start, computing + prefill_s

    def take(self, replica: Ints, slot: Ints, first: Floats, end: Floats) -> None:
        """No replica twice."""
        self.slot_free[replica, slot] = end
        self.prefill_free[replica] = np.maximum(self.prefill_free[replica], first)
        self.in_system[replica] += 1

    def ended(self, replica: Ints) -> None:
        self.in_system -= np.bincount(replica, minlength=len(self.in_system)).astype(np.int32)

    def arrived_running(self, replica: int, until: float) -> None:
        """A running answer was handed to it."""
        slot = int(self.slot_free[replica].argmin())
        self.slot_free[replica, slot] = max(until, float(self.slot_free[replica, slot]))
        self.in_system[replica] += 1

    def emptied(self, replica: Ints) -> None:
        self.slot_free[replica] = 0
        self.prefill_free[replica] = 0
        self.in_system[replica] = 0
