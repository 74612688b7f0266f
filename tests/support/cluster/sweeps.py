"""The sweeps of a replica under test, none of which runs by itself."""

from __future__ import annotations

from actors.maintenance.sweeps import SweepLimits, Sweeps
from persistence.keys import MemoryKeyStore
from sessions.governance.retention import Retention, RetentionPeriods
from tests.support.cluster.replicas import Replica


def sweeps_of(
    replica: Replica,
    keys: MemoryKeyStore | None = None,
    *,
    deleted_days: float = 30.0,
    retention: Retention | None = None,
    **more: object,
) -> Sweeps:
    """`more` are `SweepLimits`."""
    return Sweeps(
        replica.runtime,
        replica.stores(keys),
        replica.engine,
        replica.place.clock,
        limits=SweepLimits(**more),  # type: ignore[arg-type]
        retention=lambda: retention or Retention(default=RetentionPeriods(deleted_days=deleted_days)),
    )
