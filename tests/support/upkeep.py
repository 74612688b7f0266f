"""The sweeps of a replica under test, none of which runs by itself."""

from __future__ import annotations

from actors.maintenance.sweeps import SweepLimits, Sweeps
from persistence.keys import MemoryKeyStore
from sessions.governance.retention import Retention, RetentionPeriods
from sessions.model.reviews import ReviewStore
from tests.support.replicas import Replica


def upkeep(
    replica: Replica,
    keys: MemoryKeyStore | None = None,
    *,
    deleted_days: float = 30.0,
    retention: Retention | None = None,
    reviews: ReviewStore | None = None,
    **more: object,
) -> Sweeps:
    """`more` are `SweepLimits`."""
    return Sweeps(
        replica.runtime,
        journal=replica.journal,
        directory=replica.directory,
        engine=replica.engine,
        limits=SweepLimits(**more),  # type: ignore[arg-type]
        now_ms=replica.place.now_ms,
        keys=keys,
        reviews=reviews,
        retention=lambda: retention or Retention(default=RetentionPeriods(deleted_days=deleted_days)),
    )
