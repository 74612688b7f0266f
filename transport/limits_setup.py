"""Puts limits together for a process: the file that is watched, who counts, who asks at the door, who settles.

One process counts in its memory; with a directory the cluster counts there (`actors.limits`). The clock is monotonic.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from actors.limits.fallback import FallbackLimiter
from actors.limits.memory import MemoryLimiter
from actors.limits.settlement import Settler
from sessions.actor.admission import Admission
from sessions.limits import HoldsKV, Limiter, LimitsNow, Share, Tallies
from sessions.metrics import TPOT_TARGET_S, TTFT_TARGET_S, Metrics
from sessions.model.types import Principal
from sessions.ports import Engine, Published
from transport.cli.config_files import limits_file
from transport.quotas import Quotas
from transport.tasks import background_tasks


class LimitServices(NamedTuple):
    now: LimitsNow
    quotas: Quotas  # for a gateway
    settler: Settler  # for a replica


@contextlib.asynccontextmanager
async def open_limits(file: str, directory: str, journal: Tallies) -> AsyncIterator[LimitServices | None]:
    """None without a file. Raises BadSetting, BadInput for a file or an address that is wrong."""
    if not file:
        yield None
        return
    limits = limits_file(file)
    async with contextlib.AsyncExitStack() as stack:
        limiter: Limiter = MemoryLimiter(_clock_ms)
        if directory:
            from actors.limits.valkey import ValkeyLimiter  # redis' client takes half a second to load

            store = ValkeyLimiter(directory)
            stack.push_async_callback(store.close)
            limiter = FallbackLimiter(store, limits.now, _clock_ms)
        settler = Settler(limiter, limits.now, time.monotonic)
        quotas = Quotas(limiter, limits.now, journal, clock=time.monotonic)
        async with background_tasks(limits.run(), settler.run()):
            yield LimitServices(limits.now, quotas, settler)


def share_function(limited: LimitServices | None) -> Callable[[Principal], Share]:
    """How tenants stand in an engine's queue: as the file says now, or all alike."""
    return lambda principal: Share() if limited is None else limited.now().share(principal)


def settlement_listener(limited: LimitServices | None) -> Callable[[Published], None]:
    """Who is to hear of what becomes durable."""
    return (lambda _: None) if limited is None else limited.settler.published


def admission_of(limited: LimitServices | None, engine: Engine, measures: Metrics) -> Admission | None:
    """Who is let in where the file names targets; and `measures` shows what limits do at a replica."""
    if limited is None:
        return None
    measures.targets_s = targets_s(limited.now)
    if isinstance(engine, HoldsKV):
        engine.holdings.ceiling = lambda tenant: limited.now().of(tenant).kv_bytes
    settler = limited.settler
    about = "Reservations that ended and could not be settled."
    measures.gauge("limits_not_settled", about, (), lambda: {(): settler.given_up}, grows=True)
    refused = measures.counter("admission_refused", "Turns that would have missed a target, by which.", "target")
    about = "Turns that the smaller model took, by the target that the model would have missed."
    replaced = measures.counter("admission_smaller_model", about, "target")
    made = Admission(engine, limited.now, time.monotonic, refused.add, replaced.add)
    measures.gauge("brownout_level", "How far brownout goes.", (), lambda: {(): made.level})
    return made


def targets_s(limits: LimitsNow) -> Callable[[int], tuple[float, float]]:
    """What answers of a priority are counted against: the file's targets, and those of `Metrics` where it has none."""

    def of(priority: int) -> tuple[float, float]:
        target = limits().target(priority)
        if target is None:
            return TTFT_TARGET_S, TPOT_TARGET_S
        return target.ttft_ms / 1000, target.tpot_ms / 1000

    return of


def _clock_ms() -> float:
    return time.monotonic() * 1000
