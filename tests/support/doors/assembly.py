"""A whole server in this process: memory journal, memory directory, simulated engine, real actors, real sockets."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from actors.directory.memory import MemoryDirectory
from actors.hosting.ownership import Identity
from actors.hosting.runtime import Runtime, RuntimeLimits
from actors.hosting.services import Accounting, Inference, Stores
from actors.maintenance.erasure import Eraser
from app import LimitServices, admission_of, limits_now, open_limits, settlement_listener
from inference.brownout_engine import make_brownout_engine
from inference.simulated import SimulatedEngine, SimulatedOptions
from persistence.keys import MemoryKeyStore
from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from persistence.memory.store import MemoryStore
from sessions.actor.actor_context import ActorLimits
from sessions.billing.prices import PriceBook
from sessions.clock import Clock
from sessions.load_history import LoadHistory
from sessions.metrics import Metrics
from sessions.model.types import Principal, ReplicaId, UnixMs
from sessions.ports import Engine, FilterSet, Member
from sessions.turn.keyword_filter import KeywordFilterSet
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator
from transport.gateway import Gateway, GatewayLimits, GatewayServices
from transport.http.server import Server, ServerLimits
from transport.openai.model_catalog import card_of
from transport.ops.metric_sources import register_engine_metrics, register_runtime_metrics
from transport.ops.operator_api import local_operator_api


class Assembly(NamedTuple):
    server: Server
    gateway: Gateway
    runtime: Runtime
    journal: MemoryJournal
    engine: Engine
    limited: LimitServices | None = None

    @property
    def ws(self) -> str:
        return self.server.url.replace("http", "ws") + "/v1/ws"


def wall_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def strict_clock() -> Callable[[], UnixMs]:
    """The time of day in ms, each reading later than the one before: what is ordered by time is in order."""
    last = 0

    def now_ms() -> UnixMs:
        nonlocal last
        last = max(last + 1, wall_ms())
        return UnixMs(last)

    return now_ms


def new_id() -> str:
    return secrets.token_hex(10)


def _runtime_limits(limited: LimitServices | None, engine: Engine, measures: Metrics) -> RuntimeLimits:
    """As `app.py` makes them of a file of limits."""
    return RuntimeLimits(
        actor=ActorLimits(
            share=lambda principal: limits_now(limited).share(principal),
            admission=admission_of(limited, engine, measures),
        )
    )


def _engine(given: SimulatedOptions | SimulatedEngine | None) -> SimulatedEngine:
    return (
        given if isinstance(given, SimulatedEngine) else SimulatedEngine(given or SimulatedOptions(step_base_s=0.001))
    )


@asynccontextmanager
async def assembled(
    *,
    keys: Mapping[str, Principal] | None = None,
    engine: SimulatedOptions | SimulatedEngine | None = None,
    smaller: SimulatedOptions | None = None,
    limits: ServerLimits | None = None,
    gateway_limits: GatewayLimits | None = None,
    runtime_limits: RuntimeLimits | None = None,
    store: MemoryDatabase | None = None,
    limits_file: Path | None = None,
    prices: PriceBook | None = None,
    admit: Callable[[MemoryJournal], tuple[Authenticator, ApiKeyCache | None]] | None = None,
    filters: FilterSet | None = None,
    port: int = 0,
) -> AsyncIterator[Assembly]:
    """Listens on a free port, unless `port` is one; leaving it stops everything. `admit` says who may come in, instead
    of `keys`."""
    stored = MemoryStore(store)
    journal = stored.journal
    directory, measures = MemoryDirectory(), Metrics()
    simulated: Engine = _engine(engine)
    if smaller is not None:
        simulated = make_brownout_engine(simulated, lambda _: SimulatedEngine(smaller))
    now_ms, replica, incarnation = strict_clock(), ReplicaId("local"), new_id()
    await stored.open()
    await directory.open()
    await simulated.start()
    member = Member(replica=replica, incarnation=incarnation, address="", model="simulated", fingerprint="f")
    try:
        await directory.announce(member)
        async with (
            open_limits(str(limits_file or ""), "", stored.tallies) as limited,
            Runtime(
                Identity(replica, incarnation),
                journal=journal,
                directory=directory,
                inference=Inference(simulated, filters or KeywordFilterSet()),
                clock=Clock(now_ms, new_id),
                limits=runtime_limits or _runtime_limits(limited, simulated, measures),
                accounting=Accounting(measures, prices, settlement_listener(limited)),
            ) as runtime,
            LoadHistory(measures, simulated, lambda: runtime.num_present, now_ms) as history,
        ):
            ring: ApiKeyCache | None = None
            if admit is None:
                access = Authenticator(keys or {}, clock=asyncio.get_running_loop().time, now_ms=now_ms)
            else:
                access, ring = admit(journal)
            register_engine_metrics(measures, simulated)
            register_runtime_metrics(measures, runtime)
            eraser = Eraser(runtime, Stores(stored, directory, MemoryKeyStore()), simulated, Clock(now_ms, new_id))
            services = GatewayServices(
                models=lambda: (card_of(simulated.info, created=0),),
                keys=ring,
                operator_api=local_operator_api(lambda: member, runtime, simulated, history),
                erase=eraser.sweep,
                inspect=lambda principal, _, question: runtime.inspector.inspect(principal, question),
            )
            gateway = Gateway(
                runtime,
                stored,
                access,
                Clock(now_ms, new_id),
                limits=gateway_limits,
                quotas=None if limited is None else limited.quotas,
                measures=measures,
                services=services,
            )
            away = simulated.stats
            server = Server(gateway, host="127.0.0.1", port=port, limits=limits, readiness=lambda: away().away)
            await server.start()
            try:
                yield Assembly(server, gateway, runtime, journal, simulated, limited)
            finally:
                await server.stop()
    finally:
        await simulated.close()
        await directory.close()
        await stored.close()
