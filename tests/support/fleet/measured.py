"""What a simulated fleet did: counts, times to first token, loads, and rows of them for plots."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import numpy as np

from tests.support.fleet.retained import Tiers
from tests.support.fleet.scenario import Floats, Ints

ROW_S: Final = 10


class Row(NamedTuple):
    at_s: int
    turns_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    load_mean: float
    load_max: float
    crowded: float  # the share of replicas above 1
    operations_s: float
    refused_s: float
    handed_off_s: float


class Measured:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rows: list[Row] = []
        self.excess_s: list[Floats] = []  # of answers that go on after a loss: beyond their prefill
        self.recoveries: Counter[int] = Counter()  # by survivor
        self.histogram = np.zeros(20_000, dtype=np.int64)  # of times to first token, in steps of 5 ms
        self._ttft: list[Floats] = []
        self._before: Counter[str] = Counter()
        self._operations = 0

    def count(self, what: str, number: int) -> None:
        self.counts[what] += number

    def turns(self, ttft_s: Floats, tier: Tiers, cached: Ints, whole: Ints) -> None:
        self._ttft.append(ttft_s)
        self.histogram += np.bincount(
            np.minimum(ttft_s * 200, len(self.histogram) - 1).astype(np.int64), minlength=len(self.histogram)
        )
        self.counts["turns"] += len(ttft_s)
        self.counts["cached_tokens"] += int(cached.sum(dtype=np.int64))
        self.counts["prompt_tokens"] += int(whole.sum(dtype=np.int64))
        for number, name in enumerate(("computed", "from_host", "from_disk")):
            self.counts[name] += int((tier == number).sum())

    def recovered(self, excess_s: Floats, replica: Ints) -> None:
        self.excess_s.append(excess_s)
        self.recoveries.update(replica.tolist())

    def sample(self, now: int, loads: Floats, operations: Counter[str]) -> None:
        if (now + 1) % ROW_S:
            return
        ttft = np.concatenate(self._ttft) if self._ttft else np.zeros(1, dtype=np.float32)
        done = self.counts - self._before
        total = sum(operations.values())
        self.rows.append(
            Row(
                now + 1,
                done["turns"] / ROW_S,
                float(np.percentile(ttft, 50)) if len(ttft) else 0.0,
                float(np.percentile(ttft, 95)) if len(ttft) else 0.0,
                float(loads.mean()),
                float(loads.max()),
                float((loads > 1).mean()),
                (total - self._operations) / ROW_S,
                (done["refused"] + done["limited"]) / ROW_S,
                done["handed_off"] / ROW_S,
            )
        )
        self._ttft.clear()
        self._before, self._operations = self.counts.copy(), total

    def ttft_s(self, share: float) -> float:
        """The time to first token that this share of all turns had at most."""
        total = np.cumsum(self.histogram)
        return float(np.searchsorted(total, share * total[-1])) / 200

    @property
    def excesses_s(self) -> Floats:
        return np.concatenate(self.excess_s) if self.excess_s else np.zeros(0, dtype=np.float32)
