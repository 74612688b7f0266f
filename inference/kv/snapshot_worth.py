"""What a snapshot is worth: the seconds that a byte of it is expected to save, per second that it is kept.

The order of eviction in every tier, and of what a tenant loses at its ceiling. How likely a return is comes from
`eviction_rank`, what a return would save from `cost`.
"""

from __future__ import annotations

import time

from inference.kv.cold_tier import Ranked
from inference.kv.cost import CostModel
from inference.kv.eviction_rank import ReturnTracker


class SnapshotWorth:
    """Ranks snapshots for eviction: the smallest rank goes first."""

    def __init__(self, returns: ReturnTracker, cost: CostModel) -> None:
        self.returns = returns
        self.cost = cost

    def __call__(self, snapshot: Ranked) -> tuple[float, ...]:
        rate = self.returns.index(snapshot.key, snapshot.used_s, len(snapshot.tokens))
        saved_s = self.cost.saved_s(snapshot.bytes, len(snapshot.tokens), time.monotonic())
        return rate * saved_s / max(1, snapshot.bytes), snapshot.used_s
