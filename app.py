"""Sessile's entry point: the only module that knows every package, and the only one that reads the environment.

Settings come from flags, `SESSILE_*` variables and a TOML file, in this order: `python app.py serve --help` lists them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import uvloop

from actors.cluster.compatibility import fingerprint_of
from actors.cluster.placement import BoundedRendezvous
from actors.directory.memory import MemoryDirectory
from actors.hosting.ownership import Identity
from actors.hosting.runtime import Runtime, RuntimeLimits
from actors.hosting.services import Accounting, Inference, Stores
from actors.hosting.standalone import announce_periodically, standalone_member
from actors.maintenance.sweeps import Sweeps
from actors.peer.client import Connector
from actors.peer.server import PeerEndpoint
from actors.replica import PeerNetwork, Replica, ReplicaLimits
from actors.routing.router import Router
from inference import audit_policies, make_engine, open_filters
from persistence import AnyJournal, KeyStore, api_keys_of, audit_of, connect_journal, open_journal, open_key_store
from persistence.end_users import end_users_of
from persistence.reviews import reviews_of
from persistence.store_views import StoreViews
from persistence.usage import usage_of
from persistence.usage_stream.relay import UsageRelay, open_usage_sink
from sessions.actor.actor_context import ActorLimits
from sessions.billing.reconcile import reconcile
from sessions.clock import Clock
from sessions.metrics import Metrics
from sessions.model.errors import SessileError
from sessions.model.types import ReplicaId, TenantId, UnixMs
from sessions.ports import Engine, Journal, Member, Sessions
from sessions.turn.generation_task import GenerationLimits
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.credentials import Credentials, open_credentials
from transport.cli import audit, logs, users
from transport.cli.arguments import check_role, parser, taken_sessions
from transport.cli.audit import AuditAsked, taken_audit
from transport.cli.cluster import directory_of, drain_replica, show_replicas, show_sessions, turns_at
from transport.cli.keys import Asked, on_ring, on_server, printed, taken_keys
from transport.cli.operator import Wanted
from transport.cli.prices import PriceFile
from transport.cli.reconciliation_text import reconciled_text
from transport.cli.retention import RetentionFile
from transport.cli.security import peer_security, tls_of
from transport.cli.settings import BadSetting, Settings, read_keys, read_settings, secrets_in
from transport.cli.users import UsersAsked, taken_users
from transport.end_user_data import EndUserStores
from transport.gateway import Gateway, GatewayLimits
from transport.gateway_store.open_store import open_gateway_stores
from transport.http.routes.health import Readiness
from transport.http.server import Server
from transport.limits_setup import LimitServices, admission_of, open_limits, settlement_listener, share_function
from transport.openai.model_catalog import ModelCatalog, Models, card_of
from transport.ops.metric_sources import register_engine_metrics, register_router_metrics, register_runtime_metrics
from transport.ops.metrics_server import exporting_traces, serving_metrics
from transport.ops.operator_api import ClusterOperatorApi, local_operator_api
from transport.ops.process_tuning import tune_process
from transport.ops.prometheus import MetricsExposition
from transport.peer import GrpcDialer, PeerServer
from transport.tasks import background_tasks

if TYPE_CHECKING:
    from transport.grpc_api import GrpcServer

log = structlog.get_logger("sessile")

VERSION = "0.1.0"
GOODBYE_MS = 250
Administering = Asked | AuditAsked | UsersAsked
TAKEN: dict[str, Callable[[Any], Administering]] = {"keys": taken_keys, "audit": taken_audit, "users": taken_users}
READY_REPLICA = "Replica is ready: "
READY_GRPC = "gRPC is ready: "


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["chat"]:
        sys.path.insert(0, str(Path(__file__).parent / "clients" / "python"))
        from sessile_client import terminal

        return terminal.main(list(arguments[1:]))
    given = vars(parser().parse_args(arguments))
    role = given.pop("role")
    config = given.pop("config", None)
    try:
        wanted, as_json = taken_sessions(given) if role == "sessions" else (Wanted(), False)
        asked = TAKEN[role](given) if role in TAKEN else None
        as_json = given.pop("json", as_json)
        tenant = given.pop("tenant", "")
        given.pop("action", None)
        target = given.pop("replica", "")
        settings = read_settings(given, dict(os.environ), config)
        logs.configure(settings.log_level, settings.log_format, secrets=secrets_in(settings))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            check_role(role, settings)
            if asked is not None:
                return runner.run(administer(settings, asked))
            match role:
                case "gateway":
                    return runner.run(gateway_role(settings))
                case "replica":
                    return runner.run(replica_role(settings))
                case "replicas":
                    return runner.run(show_replicas(settings))
                case "sessions":
                    return runner.run(show_sessions(settings, wanted, as_json=as_json))
                case "usage":
                    return runner.run(reconcile_usage(settings, tenant, as_json=as_json))
                case "drain":
                    return runner.run(drain_replica(settings, target))
            return runner.run(serve(settings))
    except (BadSetting, SessileError, BaseExceptionGroup) as error:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup) and len(cause.exceptions) == 1:
            cause = cause.exceptions[0]
        if not isinstance(cause, BadSetting | SessileError):
            raise
        print(f"sessile: {cause.public_message if isinstance(cause, SessileError) else cause}", file=sys.stderr)
        return 2


# -- wiring --------------------------------------------------------------------------------------------------------


def now_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def new_id() -> str:
    return secrets.token_hex(10)


CLOCK = Clock(now_ms, new_id)


def limits(settings: Settings, limited: LimitServices | None, engine: Engine, measures: Metrics) -> RuntimeLimits:
    return RuntimeLimits(
        actors_max=settings.actors,
        idle_s=settings.idle_s,
        orphan_policy=settings.orphan_policy,
        orphan_after_s=settings.orphan_after_s,
        actor=ActorLimits(
            content_bytes=settings.content_bytes,
            tool_deadline_s=settings.tool_deadline_s,
            turn=GenerationLimits(rollup_s=settings.rollup_ms / 1000),
            share=share_function(limited),
            admission=admission_of(limited, engine, measures),
        ),
    )


def credentials_of(settings: Settings, journal: AnyJournal) -> AbstractAsyncContextManager[Credentials]:
    return open_credentials(
        api_keys_of(journal),
        keys=read_keys(settings.keys) if settings.keys else {},
        demand_keys=settings.auth == "keys",
        issuers=settings.issuers,
        origins=settings.origins,
        now_ms=now_ms,
        incarnation=lambda: journal.incarnation,
    )


def gateway_of(
    sessions: Sessions,
    journal: Journal,
    measures: Metrics,
    admitted: Credentials,
    limits: LimitServices | None,
    models: Models = tuple,
) -> Gateway:
    return Gateway(
        sessions=sessions,
        journal=journal,
        access=admitted.access,
        limits=GatewayLimits(),
        now_ms=now_ms,
        new_id=new_id,
        models=models,
        measures=measures,
        quotas=None if limits is None else limits.quotas,
        usage=usage_of(journal),
        reviews=reviews_of(journal),
        keys=admitted.ring,
        audit=audit_of(journal),
    )


def people_of(journal: AnyJournal, erase: Callable[[], Awaitable[int]] | None = None) -> EndUserStores:
    return EndUserStores(end_users_of(journal), journal, usage_of(journal), audit_of(journal), erase)


def retention_of(settings: Settings, journal: AnyJournal) -> RetentionFile:
    """Raises BadSetting."""
    days = {"deleted_days": settings.retention_days, "audit_days": settings.audit_days}
    return RetentionFile(settings.retention, **days, audit=audit_of(journal), now_ms=now_ms)


def doors_of(
    settings: Settings, gateway: Gateway, exposition: MetricsExposition, readiness: Readiness = lambda: None
) -> tuple[Server, GrpcServer | None]:
    """The public doors, not listening yet. gRPC's is imported only where there is one. Raises BadSetting, BadInput."""
    tls, host, port = tls_of(settings), settings.host, settings.port
    server = Server(gateway, host=host, port=port, version=VERSION, readiness=readiness, exposition=exposition, tls=tls)
    if settings.grpc_port < 0:
        return server, None
    from transport.grpc_api import GrpcServer

    return server, GrpcServer(gateway, host=host, port=settings.grpc_port, tls=tls)


async def start_doors(server: Server, grpc: GrpcServer | None) -> None:
    await server.start()
    if grpc is not None and await grpc.start():
        print(f"{READY_GRPC}{grpc.address}", flush=True)


async def stop_doors(server: Server, grpc: GrpcServer | None) -> None:
    """Says goodbye on every door, then closes them; the gateway behind them closes last."""
    if grpc is not None:
        await grpc.drain()
    await server.drain("restart", after_ms=GOODBYE_MS)
    if grpc is not None:
        await grpc.stop()
    await server.stop()


@contextlib.asynccontextmanager
async def running(journal: Journal, keys: KeyStore, engine: Engine) -> AsyncIterator[None]:
    """Journal, key store and engine, opened; closed in the order that loses nothing."""
    async with contextlib.AsyncExitStack() as stack:
        for part in (journal, keys):
            await part.open()
            stack.push_async_callback(part.close)
        await engine.start()
        stack.push_async_callback(engine.close)
        yield


async def serve(settings: Settings) -> int:
    """Everything in one process, until SIGTERM or Ctrl-C."""
    stop = stop_signal()
    journal = open_journal(settings.journal, folder=Path(settings.data), audit_key=settings.audit_key)
    keys = open_key_store(settings.journal, folder=Path(settings.data), master_key=settings.master_key)
    engine = make_engine(settings, keys)
    directory = MemoryDirectory()
    measures, prices = Metrics(), PriceFile(settings.prices)
    exposition = MetricsExposition(measures, version=VERSION, role="serve")
    async with (
        open_filters(settings, measures) as filters,
        running(journal, keys, engine),
        open_limits(settings.limits, "", journal) as limited,
        Runtime(
            Identity(ReplicaId("local"), new_id()),
            journal=journal,
            directory=directory,
            inference=Inference(engine, filters),
            clock=CLOCK,
            limits=limits(settings, limited, engine, measures),
            accounting=Accounting(measures, prices.book, settlement_listener(limited)),
        ) as runtime,
        serving_metrics(exposition, settings.metrics_host, settings.metrics_port),
        exporting_traces(settings.otlp, measures, role="serve", name="local", version=VERSION),
        credentials_of(settings, journal) as admitted,
    ):
        register_engine_metrics(measures, engine)
        register_runtime_metrics(measures, runtime)
        retention = retention_of(settings, journal)
        started_at = now_ms() // 1000
        gateway = gateway_of(
            runtime, journal, measures, admitted, limited, lambda: (card_of(engine.info, created=started_at),)
        )
        member = standalone_member(runtime.identity, engine, fingerprint_of(engine))
        gateway.operator_api = local_operator_api(lambda: member, runtime, engine)
        server, grpc = doors_of(settings, gateway, exposition, lambda: engine.stats().away)
        stores = Stores(StoreViews(journal), directory, keys)
        sweeper = Sweeps(runtime, stores, engine, CLOCK, retention=retention.now)
        gateway.people = people_of(journal, sweeper.eraser.sweep)
        await directory.open()
        await audit_policies(filters, audit_of(journal), now_ms)
        async with asyncio.TaskGroup() as tasks:
            lease = tasks.create_task(announce_periodically(directory, member))
            sweeps = tasks.create_task(sweeper.run())
            others = [
                tasks.create_task(work)
                for work in (*relays(settings, journal, measures), prices.run(), retention.run())
            ]
            await start_doors(server, grpc)
            tune_process()
            print(f"Sessile is ready: {server.url}/", flush=True)
            await stop.wait()
            log.info("stopping")
            sweeps.cancel()
            await runtime.quiesce(settings.drain_s)
            await stop_doors(server, grpc)
            await runtime.close()
            for each in (lease, *others):
                each.cancel()
    return 0


def relays(settings: Settings, journal: Journal, measures: Metrics) -> list[Coroutine[Any, Any, None]]:
    """What passes usage rows on, where they are wanted. Raises BadInput."""
    if not settings.usage_stream:
        return []
    sink = open_usage_sink(settings.usage_stream, options=settings.usage_stream_options, turns_at=turns_at(settings))
    return [UsageRelay(usage_of(journal), sink, now_ms=now_ms, measures=measures).run()]


# -- a cluster -----------------------------------------------------------------------------------------------------


def stop_signal() -> asyncio.Event:
    """Set by SIGTERM and Ctrl-C."""
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    return stop


async def replica_role(settings: Settings) -> int:
    """An engine with its actors, a member of the cluster until SIGTERM has drained it."""
    stop = stop_signal()
    security = peer_security(settings)
    journal = open_journal(settings.journal, folder=Path(settings.data), audit_key=settings.audit_key)
    keys = open_key_store(settings.journal, folder=Path(settings.data), master_key=settings.master_key)
    engine = make_engine(settings, keys)
    name = settings.name or f"replica-{new_id()[:8]}"
    measures = Metrics()
    async with contextlib.AsyncExitStack() as stack:
        filters = await stack.enter_async_context(open_filters(settings, measures))
        directory = directory_of(settings)
        await directory.open()  # before the engine, whose model takes long to load
        stack.push_async_callback(directory.close)
        await stack.enter_async_context(running(journal, keys, engine))
        limited = await stack.enter_async_context(open_limits(settings.limits, settings.directory, journal))
        await audit_policies(filters, audit_of(journal), now_ms)

        async def listen(host: PeerEndpoint) -> str:
            server = PeerServer(host.accept, security=security)
            port = await server.start(settings.peer_host, settings.peer_port)
            stack.push_async_callback(server.stop, 0)
            return settings.peer_address or f"{settings.peer_host}:{port}"

        fingerprint, prices = fingerprint_of(engine), PriceFile(settings.prices)
        retention = retention_of(settings, journal)
        exposition = MetricsExposition(measures, version=VERSION, role="replica")
        await stack.enter_async_context(
            exporting_traces(settings.otlp, measures, role="replica", name=name, version=VERSION)
        )
        await stack.enter_async_context(serving_metrics(exposition, settings.metrics_host, settings.metrics_port))
        replica = await stack.enter_async_context(
            Replica(
                Member(
                    replica=ReplicaId(name),
                    incarnation=new_id(),
                    address="",
                    model=engine.info.model,
                    fingerprint=fingerprint,
                ),
                stores=Stores(StoreViews(journal), directory, keys),
                inference=Inference(engine, filters),
                network=PeerNetwork(
                    listen, Connector(GrpcDialer(security), kind="replica", name=name, fingerprint=fingerprint)
                ),
                clock=CLOCK,
                limits=ReplicaLimits(runtime=limits(settings, limited, engine, measures)),
                accounting=Accounting(measures, prices.book, settlement_listener(limited)),
                retention=retention.now,
            )
        )
        await stack.enter_async_context(
            background_tasks(*relays(settings, journal, measures), prices.run(), retention.run())
        )
        register_engine_metrics(measures, engine)
        register_runtime_metrics(measures, replica.runtime)
        tune_process()
        print(f"{READY_REPLICA}{name}", flush=True)
        await stop.wait()
        log.info("draining", replica=name)
        await replica.drain()
    return 0


async def gateway_role(settings: Settings) -> int:
    """Where clients connect: holds no session, reads the journal, routes to replicas."""
    stop = stop_signal()
    security = peer_security(settings)
    name = settings.name or f"gateway-{new_id()[:8]}"
    async with contextlib.AsyncExitStack() as stack:
        journal = open_journal(settings.journal, folder=None, audit_key=settings.audit_key)
        await journal.open()
        stack.push_async_callback(journal.close)
        directory = directory_of(settings)
        await directory.open()
        stack.push_async_callback(directory.close)
        router = await stack.enter_async_context(
            Router(
                gateway=name,
                directory=directory,
                journal=journal,
                placement=BoundedRendezvous(),
                connect=Connector(GrpcDialer(security), kind="gateway", name=name),
                rng=random.Random(),
            )
        )
        models = ModelCatalog(
            lambda: router.routes.view, clock=asyncio.get_running_loop().time, created=now_ms() // 1000
        )
        limited = await stack.enter_async_context(open_limits(settings.limits, settings.directory, journal))
        measures = Metrics()
        exposition = MetricsExposition(measures, version=VERSION, role="gateway")
        await stack.enter_async_context(
            exporting_traces(settings.otlp, measures, role="gateway", name=name, version=VERSION)
        )
        await stack.enter_async_context(serving_metrics(exposition, settings.metrics_host, settings.metrics_port))
        register_router_metrics(measures, router)
        admitted = await stack.enter_async_context(credentials_of(settings, journal))
        gateway = gateway_of(router, journal, measures, admitted, limited, models)
        gateway.use_stores(await stack.enter_async_context(open_gateway_stores(settings.directory)))
        gateway.people = people_of(journal)
        gateway.operator_api = ClusterOperatorApi(lambda: router.routes.view, security, gateway.tasks)
        server, grpc = doors_of(settings, gateway, exposition)
        await start_doors(server, grpc)
        tune_process()
        print(f"Sessile is ready: {server.url}/", flush=True)
        await stop.wait()
        await stop_doors(server, grpc)
    return 0


async def reconcile_usage(settings: Settings, tenant: str, *, as_json: bool) -> int:
    """Holds the usage rows against the logs and says what differs."""
    async with connect_journal(settings) as journal:
        found = await reconcile(journal, usage_of(journal), tenant=TenantId(tenant) if tenant else None)
    print(msgspec.json.encode(found).decode() if as_json else reconciled_text(found))
    return 1 if found.num_differences else 0


async def administer(settings: Settings, asked: Administering) -> int:
    """Keys, the audit log, end users: in a journal that nobody uses or through a server."""
    if isinstance(asked, UsersAsked):
        if asked.url:
            return await asyncio.to_thread(users.on_server, asked, settings.api_key)
        async with connect_journal(settings) as journal:
            return await users.on_journal(people_of(journal), asked, now_ms, wait="://" in settings.journal)
    if isinstance(asked, AuditAsked):
        if asked.url:
            rows = await audit.on_server(asked, settings.api_key)
        else:
            async with connect_journal(settings) as journal:
                rows = await audit.on_log(audit_of(journal), asked)
        print(audit.printed(asked, rows))
        return 1 if audit.broken(asked, rows) else 0
    if asked.url:
        outcome = await on_server(asked, settings.api_key, now_ms())
    else:
        async with connect_journal(settings) as journal:
            ring = ApiKeyCache(api_keys_of(journal), now_ms=now_ms, clock=asyncio.get_running_loop().time)
            outcome = await on_ring(ring, asked, now_ms())
    print(printed(outcome, as_json=asked.as_json))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
