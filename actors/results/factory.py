"""Makes the result cache that the settings name: in this process, or on a cluster's Valkey."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from actors.results.cache import PersonalCheck, ProcessKeys, ResultStore, TenantResultCache, WritingKeys
from actors.results.memory import MemoryResultStore
from sessions.limits import LimitsNow
from sessions.metrics import Metrics

log = structlog.get_logger(__name__)

MEGABYTE = 1_000_000


class HasLimits(Protocol):
    @property
    def now(self) -> LimitsNow: ...


def make_results(
    directory: str,
    megabytes: int,
    keys: WritingKeys | None,
    limited: HasLimits | None,
    personal: PersonalCheck,
    metrics: Metrics,
) -> TenantResultCache | None:
    """`directory`: the cluster's; "": this process is alone. `keys` None: the journal has none. Without them nothing is
    shared, for then it would lie open in the cluster's Valkey. `limited` None: no tenant has chosen anything. Raises
    BadInput."""
    if not megabytes or limited is None:
        return None
    limits = limited.now
    if not directory:
        held = MemoryResultStore(megabytes * MEGABYTE, asyncio.get_running_loop().time)
        metrics.gauge("result_cache_bytes", "Bytes of cached answers.", (), lambda: {(): float(held.bytes)})
        metrics.gauge("result_cache_entries", "Cached answers.", (), lambda: {(): float(len(held))})
        return TenantResultCache(held, keys or ProcessKeys(), limits, personal, metrics)
    if keys is None:
        if any(each.result_cache_s is not None for each in (limits().default, *limits().tenants.values())):
            log.warning("result_cache_disabled", reason="the journal is not encrypted: give every process --master-key")
        return None
    from actors.results.valkey import ValkeyResultStore  # redis' client takes half a second to load

    shared: ResultStore = ValkeyResultStore(directory)
    return TenantResultCache(shared, keys, limits, personal, metrics)
