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
from actors.results.cache import make_results
from deploy.limit_services import LimitServices, admission_of, limits_now, open_limits, settlement_listener
from inference import personal_texts
from inference.brownout_engine import make_brownout_engine
from inference.simulated import SimulatedEngine, SimulatedOptions
from inference.tools.added_tools import AddedToolRules
from inference.tools.tools_file import ToolsFile
from persistence.keys import MemoryKeyStore
from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from persistence.memory.store import MemoryStore
from sessions.actor.actor_context import ActorLimits
from sessions.billing.prices import PriceBook
from sessions.clock import Clock
from sessions.governance.memory_reader import memory_reader
from sessions.load_history import LoadHistory
from sessions.metrics import Metrics
from sessions.model.types import Principal, ReplicaId, UnixMs
from sessions.ports import Engine, FilterSet, ImageDecoder, Member, TextExtractor
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.documents.inline import InlineDocuments
from tests.support.engines.made_up_embedder import made_up_retrieval
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator
from transport.gateway import Gateway, GatewayLimits, GatewayServices
from transport.http_api.server import Server, ServerLimits
from transport.model_catalog import card_of
from transport.ops.metric_sources import register_engine_metrics, register_runtime_metrics
from transport.ops.operator_api import local_operator_api
from transport.push.door import PushDoor


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
            prepare_s=60.0,  # only what hangs: beside other work ten seconds can pass
            share=lambda principal: limits_now(limited).share(principal),
            admission=admission_of(limited, engine, measures),
        )
    )


def _inference(
    engine: Engine, filters: FilterSet, limited: LimitServices | None, measures: Metrics, store: MemoryStore
) -> Inference:
    memories = memory_reader(store.end_users, limited)
    results = make_results("", 64, None, limited, personal_texts(filters), measures)
    return Inference(engine, filters, results=results, memories=memories)


def _engine(given: SimulatedOptions | Engine | None, smaller: SimulatedOptions | None) -> Engine:
    if given is None or isinstance(given, SimulatedOptions):
        given = SimulatedEngine(given or SimulatedOptions(step_base_s=0.001))
    if smaller is None:
        return given
    assert isinstance(given, SimulatedEngine)
    return make_brownout_engine(given, lambda _: SimulatedEngine(smaller))


@asynccontextmanager
async def assembled(
    *,
    keys: Mapping[str, Principal] | None = None,
    engine: SimulatedOptions | Engine | None = None,
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
    push: PushDoor | None = None,
    documents: TextExtractor | None = None,
    images: ImageDecoder | None = None,
    ignores_unknown: bool = False,
) -> AsyncIterator[Assembly]:
    """Listens on a free port, unless `port` is one; leaving it stops everything. `admit`: instead of `keys`."""
    stored = MemoryStore(store)
    journal = stored.journal
    directory, measures = MemoryDirectory(), Metrics()
    simulated = _engine(engine, smaller)
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
                inference=_inference(simulated, filters or KeywordFilterSet(), limited, measures, stored),
                clock=Clock(now_ms, new_id),
                limits=runtime_limits or _runtime_limits(limited, simulated, measures),
                accounting=Accounting(measures, prices, settlement_listener(limited)),
            ) as runtime,
            LoadHistory(measures, simulated, lambda: runtime.num_present, now_ms) as history,
            made_up_retrieval(now_ms, measures) as retrieval,
        ):
            without = Authenticator(keys or {}, clock=asyncio.get_running_loop().time, now_ms=now_ms)
            access, ring = (without, None) if admit is None else admit(journal)
            register_engine_metrics(measures, simulated)
            register_runtime_metrics(measures, runtime)
            clock = Clock(now_ms, new_id)
            eraser = Eraser(runtime, Stores(stored, directory, MemoryKeyStore()), simulated, clock)
            services = GatewayServices(
                models=lambda: (card_of(simulated.info, created=0),),
                keys=ring,
                operator_api=local_operator_api(lambda: member, runtime, simulated, history),
                erase=eraser.sweep,
                push=push,
                retrieval=retrieval,
                documents=documents or InlineDocuments(),
                images=images,
                added_tools=AddedToolRules(ToolsFile()),
                ignores_unknown=ignores_unknown,
                inspect=lambda principal, _, question: runtime.inspector.inspect(principal, question),
            )
            core, quotas = (runtime, stored, access, clock), limited and limited.quotas
            gateway = Gateway(*core, limits=gateway_limits, quotas=quotas, measures=measures, services=services)
            server = Server(
                gateway, host="127.0.0.1", port=port, limits=limits, readiness=lambda: simulated.stats().away
            )
            await server.start()
            try:
                yield Assembly(server, gateway, runtime, journal, simulated, limited)
            finally:
                await server.stop()
    finally:
        await simulated.close()
        await directory.close()
        await stored.close()
