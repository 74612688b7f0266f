"""The sweeps of a replica under test, none of which runs by itself."""

from __future__ import annotations

from actors.maintenance.sweeps import Upkeep, UpkeepLimits
from persistence.keys import MemoryKeys
from sessions.governance.retention import Kept, Retention
from sessions.model.reviews import ReviewBooks
from tests.support.replicas import Replica


def upkeep(
    replica: Replica,
    keys: MemoryKeys | None = None,
    *,
    deleted_days: float = 30.0,
    retention: Retention | None = None,
    reviews: ReviewBooks | None = None,
    **more: object,
) -> Upkeep:
    """`more` are `UpkeepLimits`."""
    return Upkeep(
        replica.runtime,
        journal=replica.journal,
        directory=replica.directory,
        engine=replica.engine,
        limits=UpkeepLimits(**more),  # type: ignore[arg-type]
        now_ms=replica.place.now_ms,
        keys=keys,
        reviews=reviews,
        retention=lambda: retention or Retention(default=Kept(deleted_days=deleted_days)),
    )
