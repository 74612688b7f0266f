"""Which cache the settings make, and when there is none."""

from __future__ import annotations

from typing import Any, NamedTuple

from actors.results.cache import ProcessKeys, TenantResultCache
from actors.results.factory import make_results
from actors.results.memory import MemoryResultStore
from actors.results.valkey import ValkeyResultStore
from sessions.limits import Limits, LimitsNow, TenantLimits
from sessions.metrics import Metrics


class Limited(NamedTuple):
    now: LimitsNow


LIMITED = Limited(lambda: Limits(default=TenantLimits(result_cache_s=60)))


def made(directory: str = "", megabytes: int = 1, keys: Any = None, limited: Any = LIMITED) -> TenantResultCache | None:
    return make_results(directory, megabytes, keys, limited, None, Metrics())  # type: ignore[arg-type]


async def test_alone_it_lies_in_memory_and_in_a_cluster_on_its_valkey() -> None:
    alone, shared = made(), made("redis://127.0.0.1", keys=ProcessKeys())
    assert alone is not None and isinstance(alone._store, MemoryResultStore)
    assert alone._store.bytes_max == 1_000_000
    assert shared is not None and isinstance(shared._store, ValkeyResultStore)
    await shared.close()


def test_there_is_none_without_room_limits_or_keys_to_share_it_under() -> None:
    assert made(megabytes=0) is None
    assert made(limited=None) is None
    assert made("redis://127.0.0.1") is None
