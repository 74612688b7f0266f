"""Opens the limits file for a process: what counts by it, and what is derived from it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, NamedTuple

from sessions.actor.admission import Admission
from sessions.limits import UNLIMITED, HoldsKV, Limiter, Limits, LimitsNow, Tallies
from sessions.metrics import Metrics
from sessions.model.knowledge.files import FileQuotas
from sessions.model.types import TenantId
from sessions.ports import Engine, Published
from transport.cli.start.config_files import limits_file
from transport.ops.metric_sources import latency_targets, register_limit_metrics
from transport.quotas import Quotas
from transport.tasks import background_tasks

if TYPE_CHECKING:
    from actors.limits.settlement import Settler


class LimitServices(NamedTuple):
    """Holds what a limits file makes of a process: the limits in force, and who counts by them."""

    now: LimitsNow
    quotas: Quotas  # for a gateway
    settler: Settler  # for a replica


def file_quotas(limited: LimitServices | None) -> Callable[[TenantId], FileQuotas]:
    """Returns the quotas of stored files that are in force for a tenant."""
    return lambda tenant: FileQuotas() if limited is None else limited.now().of(tenant).file_quotas


@contextlib.asynccontextmanager
async def open_limits(
    file: str, directory: str, tallies: Tallies, *, default: Limits | None = None
) -> AsyncIterator[LimitServices | None]:
    """Opens the limits file, which is watched, with its counters: in this process's memory, or with a directory in the
    cluster's Valkey. Yields None if there is neither a file nor a `default` for it. Raises BadSetting, and BadInput for
    a file or an address that is wrong."""
    if not file and default is None:
        yield None
        return
    from actors.limits.memory import MemoryLimiter
    from actors.limits.settlement import Settler

    limits = limits_file(file, default)
    async with contextlib.AsyncExitStack() as stack:
        limiter: Limiter = MemoryLimiter(lambda: time.monotonic() * 1000)
        if directory:
            from actors.limits.fallback import FallbackLimiter
            from actors.limits.valkey import ValkeyLimiter  # redis' client takes half a second to load

            shared = ValkeyLimiter(directory)
            stack.push_async_callback(shared.close)
            limiter = FallbackLimiter(shared, limits.now, lambda: time.monotonic() * 1000)
        settler = Settler(limiter, limits.now, time.monotonic)
        quotas = Quotas(limiter, limits.now, tallies, clock=time.monotonic)
        async with background_tasks(limits.run(), settler.run()):
            yield LimitServices(limits.now, quotas, settler)


def limits_now(limited: LimitServices | None) -> Limits:
    """Returns what the limits file says now; where there is none, all tenants are alike."""
    return UNLIMITED if limited is None else limited.now()


def settlement_listener(limited: LimitServices | None) -> Callable[[Published], None]:
    return (lambda _: None) if limited is None else limited.settler.published


def admission_of(limited: LimitServices | None, engine: Engine, measures: Metrics) -> Admission:
    """Makes the admission: by the engine's queue and, where there is a limits file, by service level. Metrics then
    follow the file's targets, and KV its ceilings."""
    about = "Turns that the queue had no place for, or that would have missed a target, by which."
    refused = measures.counter("admission_refused", about, "target")
    about = "Turns that the smaller model took, by the target that the model would have missed."
    replaced = measures.counter("admission_smaller_model", about, "target")
    if limited is None:
        return Admission(engine, lambda: UNLIMITED, time.monotonic, refused.add, replaced.add)
    measures.targets_s = latency_targets(limited.now)
    if isinstance(engine, HoldsKV):
        engine.holdings.ceiling = lambda tenant: limited.now().of(tenant).kv_bytes
    admission = Admission(engine, limited.now, time.monotonic, refused.add, replaced.add)
    register_limit_metrics(measures, limited.settler, admission)
    return admission
