"""Sessile's entry point: the only module that knows every package, and the only one that reads the environment.

Settings come from flags, `SESSILE_*` variables and a TOML file, in this order: `./sessile serve --help` lists them.
"""

from __future__ import annotations

if __name__ == "__main__":
    import os
    import signal
    import sys
    import time

    from deploy.environment import enter_environment

    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:  # else a shell in the background has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `main`: Ctrl-C while modules are loaded ends it, quietly
    enter_environment()  # whatever Python this is: what follows needs our packages
    from deploy.commands.entry import run_command_line
    from sessions.model.types import UnixMs
    from transport.cli.standard_output import run_and_flush

    signal.signal(signal.SIGINT, on_interrupt)
    wall_ms = lambda: UnixMs(time.time_ns() // 1_000_000)  # noqa: E731 - `now_ms` needs what follows
    status = run_and_flush(lambda: run_command_line(sys.argv[1:], os.environ, wall_ms))
    if status is not None:
        sys.exit(status)  # it needed nothing of what follows, which takes two seconds to load
    if on_interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import os

# Else gRPC's handlers abort a child that is forked while calls are under way. Ours execute a program at once.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import asyncio
import contextlib
import random
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from actors.cluster.compatibility import fingerprint_of
from actors.directory.memory import MemoryDirectory
from actors.hosting.ownership import Identity
from actors.hosting.runtime import Runtime, RuntimeLimits
from actors.hosting.services import Accounting, Inference, Stores
from actors.hosting.standalone import announce_periodically, standalone_member
from actors.maintenance.sweeps import Sweeps
from deploy.commands.entry import run_command_line
from deploy.limit_services import LimitServices, admission_of, file_quotas, limits_now, open_limits, settlement_listener
from deploy.retrieval import equipped, open_retrieval
from deploy.shipped_models import SHIPPED, TOY_ANSWER_TOKENS, notice_of
from inference import (
    audit_policies,
    make_engine,
    open_added_tool_check,
    open_filters,
    open_image_fetcher,
    open_tools,
    personal_texts,
)
from inference.file_workers.pool import FileWorkers
from inference.schemas.checker import SchemaWorkers
from persistence import OpenableStores, Reach, make_stores, open_and_replicate, reach_once
from persistence.folder_lock import announce_server
from sessions.actor.actor_context import ActorLimits
from sessions.clock import Clock
from sessions.file_watcher import refused_as
from sessions.governance.memory_reader import memory_reader
from sessions.limits import DEFAULT_LIMITS
from sessions.load_history import LoadHistory
from sessions.metrics import Metrics
from sessions.model.errors import BadInput
from sessions.model.types import ReplicaId, UnixMs
from sessions.ports import Engine, FilterSet
from sessions.routing.models_file import ModelPools
from sessions.store import Store
from sessions.turn.output_accumulator import GenerationLimits
from transport.addresses import joined
from transport.cli import commands
from transport.cli.commands import VERSION
from transport.cli.settings import Settings
from transport.cli.standard_output import run_and_flush
from transport.cli.start.config_files import (
    ConfigFile,
    PriceFile,
    RetentionFile,
    default_limits,
    models_file,
    share_limits,
)
from transport.cli.start.credentials import open_credentials
from transport.cli.start.preflight import check_ports, checked_start
from transport.cli.start.security import certificate_watchers, peer_security, tls_of
from transport.cli.start.startup import Startup
from transport.cli.start.stop_signal import AT_ONCE, stop_signal
from transport.gateway import Gateway, GatewayServices
from transport.gateway_store.history_file import open_history
from transport.http.tls import ServerTls
from transport.http_api.server import Server, ServerLimits
from transport.model_catalog import ModelCatalog, PooledModels, card_of
from transport.ops.loop_watchdog import LoopWatchdog
from transport.ops.metric_sources import register_engine_metrics, register_router_metrics, register_runtime_metrics
from transport.ops.opening import open_metrics, open_telemetry
from transport.ops.operator_api import ClusterOperatorApi, local_operator_api
from transport.ops.process_tuning import collect_when_idle, tune_process
from transport.ops.prometheus import MetricsExposition
from transport.ops.service_manager import ServiceManager
from transport.push.opening import push_door, push_relays
from transport.push.settings import sends_pushes
from transport.tasks import Tasks, background_tasks

if TYPE_CHECKING:
    from actors.directory.valkey import ValkeyDirectory
    from actors.limits.tool_breakers import ValkeyBreakers
    from actors.peer.client import Connector
    from actors.peer.server import PeerEndpoint
    from persistence.usage_stream.relay import UsageSink
    from transport.grpc_api.server import GrpcServer
    from transport.peer import PeerSecurity

log = structlog.get_logger("sessile")

GOODBYE_MS = 250
READY_REPLICA = "Replica is ready: "
READY_GRPC = "gRPC is ready: "


def main(arguments: Sequence[str]) -> int:
    return run_command_line(arguments, os.environ, now_ms, run_role) or 0


async def run_role(options: object, settings: Settings) -> int:
    """Runs a server or a member of a cluster until it is told to end; returns the status to exit with. Raises
    BadSetting, SessileError, StartStopped."""
    match options:
        case commands.RunGateway():
            check_ports(settings, ("port", "grpc_port", "metrics_port"))
            return await gateway_role(settings)
        case commands.RunReplica():
            with checked_start(settings, ("peer_port", "metrics_port")):
                check_optional_files(settings)
                return await replica_role(settings)
    with checked_start(settings, ("port", "grpc_port", "metrics_port")):
        check_optional_files(settings)
        return await serve(settings)


def check_optional_files(settings: Settings) -> None:
    """Raises BadInput for a wrong file of tools or embedding models, before anything is made in the data folder.
    Imports what reads a file only if the settings name one."""
    if settings.tools:
        from inference.tools.tools_file import read_tools

        with refused_as("tools", settings.tools):
            read_tools(Path(settings.tools))
    if settings.embeddings:
        from inference.embedding.models_file import read_embedding_file

        with refused_as("embeddings", settings.embeddings):
            read_embedding_file(Path(settings.embeddings))


# -- wiring --------------------------------------------------------------------------------------------------------


def now_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def new_id() -> str:
    return secrets.token_hex(10)


CLOCK = Clock(now_ms, new_id)


def limits(settings: Settings, limited: LimitServices | None, engine: Engine, measures: Metrics) -> RuntimeLimits:
    writes_titles = settings.titles == "model" or (settings.titles == "auto" and settings.engine != "sim")
    general = None if settings.context_policy == "auto" else settings.context_policy
    return RuntimeLimits(
        actors_max=settings.actors,
        idle_s=settings.idle_s,
        orphan_policy=settings.orphan_policy,
        orphan_after_s=settings.orphan_after_s,
        push=sends_pushes(settings),
        actor=ActorLimits(
            content_bytes=settings.content_bytes,
            tool_deadline_s=settings.tool_deadline_s,
            turn=GenerationLimits(rollup_s=settings.rollup_ms / 1000),
            titles=(lambda tenant: limits_now(limited).of(tenant).titles) if writes_titles else None,
            context_policy=lambda tenant: limits_now(limited).of(tenant).context_policy or general,
            answer_room=settings.answer_room,
            answer_tokens=settings.answer_tokens or (TOY_ANSWER_TOKENS if notice_of(settings.model) else None),
            share=lambda principal: limits_now(limited).share(principal),
            admission=admission_of(limited, engine, measures),
        ),
    )


def own_models(settings: Settings, engine: Engine, pools: ConfigFile[ModelPools]) -> PooledModels:
    """Returns the models that a server alone has: its engine's, under all of its names."""
    created, notice = now_ms() // 1000, notice_of(settings.model)
    return PooledModels(lambda: (card_of(engine.info, created=created, notice=notice),), pools.now, lambda _: 1)


def replica_connector(security: PeerSecurity, name: str, fingerprint: str, engine: Engine) -> Connector:
    from actors.peer.client import Connector
    from transport.peer import GrpcDialer

    model = engine.info.model
    return Connector(
        GrpcDialer(security), kind="replica", name=name, fingerprint=fingerprint, model=model, version=VERSION
    )


def retention_of(settings: Settings, store: Store) -> RetentionFile:
    """Raises BadSetting."""
    days = {"deleted_days": settings.retention_days, "audit_days": settings.audit_days}
    return RetentionFile(settings.retention, **days, audit=store.audit, now_ms=now_ms)


def doors_of(
    settings: Settings,
    gateway: Gateway,
    exposition: MetricsExposition,
    tls: ServerTls | None,
    readiness: Callable[[], str | None] = lambda: None,
) -> tuple[Server, GrpcServer | None]:
    """Makes the public doors, which do not listen yet. Imports gRPC's only where there is one. Raises BadInput."""
    host, port = settings.host, settings.port
    limits = ServerLimits(shares=share_limits(settings), keep_alive_s=settings.keep_alive_s)
    server = Server(gateway, host=host, port=port, limits=limits, readiness=readiness, exposition=exposition, tls=tls)
    if settings.grpc_port < 0:
        return server, None
    from transport.grpc_api.server import GrpcLimits, GrpcServer

    calls = GrpcLimits(shares=limits.shares)
    return server, GrpcServer(gateway, host=host, port=settings.grpc_port, limits=calls, tls=tls)


async def start_doors(server: Server, grpc: GrpcServer | None) -> None:
    await server.start()
    if grpc is not None and await grpc.start():
        print(f"{READY_GRPC}{grpc.address}", flush=True)


async def load_doors(server: Server) -> None:
    """Loads what was not needed to be ready: HTTP's common routes, which then live as long as the process."""
    await server.load()
    tune_process()


async def stop_doors(server: Server, grpc: GrpcServer | None, *, spread: bool = False) -> None:
    """Says goodbye on every door, then closes them; the gateway behind them closes last."""
    if grpc is not None:
        await grpc.drain()
    await server.drain("restart", after_ms=GOODBYE_MS, spread=spread)
    if grpc is not None:
        await grpc.stop()
    await server.stop()


@contextlib.asynccontextmanager
async def running(
    settings: Settings, stores: OpenableStores, engine: Engine, measures: Metrics, reach: Reach = reach_once
) -> AsyncIterator[Callable[[], float | None]]:
    """Opens the store, its keys and the engine, and closes them in the order that loses nothing. Yields the function
    for the lag of the journal's replica."""
    async with open_and_replicate(settings, stores, measures, os.environ, reach) as replication_lag_s:
        await engine.start()
        try:
            yield replication_lag_s
        finally:
            await engine.close()


async def serve(settings: Settings) -> int:
    """Runs everything in one process, until SIGTERM or Ctrl-C. Returns the exit status."""
    stop, stores = stop_signal(), make_stores(settings, folder=Path(settings.data), now_ms=now_ms)
    store, keys, startup = stores.store, stores.keys, Startup(stop, rng=random.Random())
    engine, tls, directory = make_engine(settings, keys, os.environ), tls_of(settings), MemoryDirectory()
    prices, pools, usage_sink = PriceFile(settings.prices), models_file(settings.models), usage_sink_of(settings)
    async with (
        ServiceManager(os.environ, startup.readiness) as manager,
        open_metrics(settings, "serve", "local", VERSION) as measures,
        open_telemetry(settings, measures, "serve", VERSION, startup.readiness) as exposition,
        open_filters(settings, measures) as filters,
        SchemaWorkers(measures) as schemas,
        FileWorkers(measures) as file_workers,
        open_image_fetcher(settings.image_hosts) as fetch_image,
        running(
            settings, stores, engine, measures, startup.reach if "://" in settings.journal else reach_once
        ) as replication_lag_s,
        open_added_tool_check(settings) as added_tools,
        open_limits(settings.limits, "", store.tallies, default=default_limits(settings)) as limited,
        open_tools(settings, measures, os.environ, schemas, store, now_ms, file_quotas(limited)) as tools,
        open_retrieval(settings, stores, measures, os.environ, CLOCK, prices.book, limited) as retrieval,
        Runtime(
            Identity(ReplicaId("local"), new_id()),
            journal=store.journal,
            directory=directory,
            inference=equipped(
                inference_of(settings, stores, limited, engine, filters, schemas, measures, pools), retrieval, tools
            ),
            clock=CLOCK,
            limits=limits(settings, limited, engine, measures),
            accounting=Accounting(measures, prices.book, settlement_listener(limited)),
        ) as runtime,
        LoadHistory(measures, engine, lambda: runtime.num_present, now_ms) as history,
        LoopWatchdog(measures, stall_ms=settings.loop_stall_ms),
        open_credentials(settings, store, stores.server_keys, now_ms) as (access, api_keys),
        open_history(Path(settings.data), keys, clock=time.monotonic, now_ms=now_ms) as places,
    ):
        register_engine_metrics(measures, engine)
        register_runtime_metrics(measures, runtime)
        retention, reencryption = retention_of(settings, store), stores.reencryption(measures)
        member = standalone_member(runtime.identity, engine, fingerprint_of(engine))
        sweeper = Sweeps(runtime, Stores(store, directory, keys), engine, CLOCK, retention=retention.now)
        services = GatewayServices(
            models=own_models(settings, engine, pools),
            unlisted=SHIPPED,
            pools=pools.now,
            keys=api_keys,
            history=places,
            operator_api=local_operator_api(lambda: member, runtime, engine, history),
            schemas=schemas,
            documents=file_workers,
            images=file_workers,
            fetch_image=fetch_image,
            file_bytes=settings.file_bytes,
            push=push_door(settings),
            retrieval=retrieval,
            added_tools=added_tools,
            erase=sweeper.eraser.sweep,
            replication_lag_s=replication_lag_s,
            encryption=stores.administration(reencryption),
            prices=prices.book,
            ignores_unknown=settings.unknown_parameters == "ignore",
            inspect=lambda principal, _, question: runtime.inspector.inspect(principal, question),
        )
        gateway = Gateway(
            runtime, store, access, CLOCK, quotas=limited and limited.quotas, measures=measures, services=services
        )
        server, grpc = doors_of(settings, gateway, exposition, tls, startup.readiness)
        await directory.open()
        await audit_policies(filters, store.audit, now_ms)
        async with asyncio.TaskGroup() as tasks:
            lease = tasks.create_task(announce_periodically(directory, member))
            sweeps = tasks.create_task(sweeper.run())
            works = (
                *relays(settings, usage_sink, store, measures),
                *(each.run() for each in certificate_watchers(settings, tls)),
            )
            works += (
                collect_when_idle(time.process_time),
                prices.run(),
                pools.run(),
                retention.run(),
                *stores.background(reencryption),
            )
            others = [*map(tasks.create_task, works)]
            await start_doors(server, grpc)
            tune_process()
            startup.finish(lambda: "draining" if gateway.draining else engine.stats().away)
            manager.ready()
            if settings.journal == "sqlite":
                announce_server(Path(settings.data), server.local_url)
            print(f"Sessile is ready: {server.url}/", flush=True)
            others.append(tasks.create_task(load_doors(server)))
            await stop.wait()
            manager.stopping()
            log.info("stopping", answers_s=settings.drain_s, hint=AT_ONCE)
            sweeps.cancel()
            await finish_answers(runtime, server, grpc, settings.drain_s)
            for each in (lease, *others):
                each.cancel()
    return 0


async def finish_answers(runtime: Runtime, server: Server, grpc: GrpcServer | None, drain_s: float) -> None:
    """Answers under way may end within `drain_s`; then the doors end what is left of them and close, and the actors
    leave memory."""
    await runtime.quiesce(drain_s)
    server.gateway.drain(answers=True)
    await stop_doors(server, grpc)
    await runtime.close()


def usage_sink_of(settings: Settings) -> UsageSink | None:
    """Makes what usage rows are passed on to, which connects at its first use; None if the settings name nothing.
    Raises BadInput."""
    if not settings.usage_stream:
        if settings.usage_stream_options:
            problem = "usage_stream is not set: give --usage-stream URL too, or leave this out"
            raise BadInput("invalid_setting", f"usage_stream_options: {problem}", param="usage_stream_options")
        return None
    from persistence.usage_stream.open_sink import open_usage_sink

    return open_usage_sink(
        settings.usage_stream, options=settings.usage_stream_options, lock_client=lock_client(settings)
    )


def relays(
    settings: Settings, usage_sink: UsageSink | None, store: Store, measures: Metrics
) -> list[Coroutine[Any, Any, None]]:
    """Returns the tasks that pass usage rows on and that tell devices of answers, as far as the settings want them.
    Raises BadInput."""
    pushing = push_relays(settings, store.push, now_ms, measures)
    if usage_sink is None:
        return pushing
    from persistence.usage_stream.relay import UsageRelay

    return [*pushing, UsageRelay(store.usage, usage_sink, now_ms=now_ms, metrics=measures).run()]


def directory_of(settings: Settings) -> ValkeyDirectory:
    """Makes the cluster's directory, which is not open yet. Imports its module here, so that a start on one machine
    need not wait for redis' client."""
    from actors.directory.valkey import ValkeyDirectory

    return ValkeyDirectory(settings.directory)


def breakers_of(settings: Settings) -> ValkeyBreakers:
    """Makes the breakers of tools that a cluster's replicas share."""
    from actors.limits.tool_breakers import ValkeyBreakers

    return ValkeyBreakers(settings.directory)


def lock_client(settings: Settings) -> Any:
    """Makes a client of the directory's server, for work that only one process of a cluster may do at a time; None
    where there is no cluster."""
    if not settings.directory:
        return None
    from actors.directory.address import connect

    return connect(settings.directory)


# -- a cluster -----------------------------------------------------------------------------------------------------


async def replica_role(settings: Settings) -> int:
    """Runs an engine with its actors as a member of the cluster, until SIGTERM has drained it. Returns the exit
    status. Imports the rooms of a cluster here, as `gateway_role` does: a server that is alone needs none of them."""
    from actors.replica import PeerNetwork, Replica, ReplicaLimits
    from actors.results.cache import make_results
    from transport.peer import PeerServer

    stop, security = stop_signal(), peer_security(settings)
    startup = Startup(stop, rng=random.Random())
    security.check_address(settings.peer_host)  # before the model is loaded, which takes long
    stores = make_stores(settings, folder=Path(settings.data), now_ms=now_ms)
    store, keys = stores.store, stores.keys
    engine, directory = make_engine(settings, keys, os.environ), directory_of(settings)
    name = settings.name or f"replica-{new_id()[:8]}"
    async with contextlib.AsyncExitStack() as stack:
        measures = await stack.enter_async_context(open_metrics(settings, "replica", name, VERSION))
        manager = await stack.enter_async_context(ServiceManager(os.environ, startup.readiness))
        telemetry = open_telemetry(settings, measures, "replica", VERSION, startup.readiness)
        await stack.enter_async_context(telemetry)  # first: it says that this process lives, and what it waits for
        filters = await stack.enter_async_context(open_filters(settings, measures))
        schemas = await stack.enter_async_context(SchemaWorkers(measures))
        stack.push_async_callback(directory.close)
        await startup.reach("directory", directory.open)  # before the engine, whose model takes long to load
        await stack.enter_async_context(running(settings, stores, engine, measures, startup.reach))
        breakers = breakers_of(settings)
        stack.push_async_callback(breakers.close)
        # A gateway that demands keys has these where no file is named: what it reserved is settled here.
        settled = open_limits(settings.limits, settings.directory, store.tallies, default=DEFAULT_LIMITS)
        limited = await stack.enter_async_context(settled)
        opened = open_tools(settings, measures, os.environ, schemas, store, now_ms, file_quotas(limited), breakers)
        tools = await stack.enter_async_context(opened)
        await startup.reach("journal", lambda: audit_policies(filters, store.audit, now_ms))

        async def listen(host: PeerEndpoint) -> str:
            server = PeerServer(host.accept, security=security)
            port = await server.start(settings.peer_host, settings.peer_port)
            stack.push_async_callback(server.stop, 0)
            return settings.peer_address or joined(settings.peer_host, port)

        cached, texts = settings.result_cache_mb, personal_texts(filters)
        results = make_results(settings.directory, cached, stores.tenant_keys, limited, texts, measures)
        if results is not None:
            stack.push_async_callback(results.close)
        replica_limits = ReplicaLimits(runtime=limits(settings, limited, engine, measures))
        fingerprint, prices, pools = fingerprint_of(engine), PriceFile(settings.prices), models_file(settings.models)
        retrieval = await stack.enter_async_context(
            open_retrieval(settings, stores, measures, os.environ, CLOCK, prices.book, limited)
        )
        memories, retention = memory_reader(store.end_users, limited), retention_of(settings, store)
        await stack.enter_async_context(LoopWatchdog(measures, stall_ms=settings.loop_stall_ms))
        await startup.reach("directory", directory.view)  # it may have left while the model was loaded
        replica = await stack.enter_async_context(
            Replica(
                standalone_member(Identity(ReplicaId(name), new_id()), engine, fingerprint, VERSION),
                stores=Stores(store, directory, keys),
                inference=equipped(
                    Inference(engine, filters, schemas, results, memories, pools.now if settings.models else None),
                    retrieval,
                    tools,
                ),
                network=PeerNetwork(listen, replica_connector(security, name, fingerprint, engine)),
                clock=CLOCK,
                limits=replica_limits,
                accounting=Accounting(measures, prices.book, settlement_listener(limited)),
                retention=retention.now,
            )
        )
        await stack.enter_async_context(
            background_tasks(
                *relays(settings, usage_sink_of(settings), store, measures),
                *(each.run() for each in certificate_watchers(settings, None, security)),
                prices.run(),
                pools.run(),
                retention.run(),
                collect_when_idle(time.process_time),
                *stores.background(stores.reencryption(measures)),
            )
        )
        register_engine_metrics(measures, engine)
        register_runtime_metrics(measures, replica.runtime)
        tune_process()
        startup.finish(replica.unready)
        manager.ready()
        print(f"{READY_REPLICA}{name}", flush=True)
        await stop.wait()
        manager.stopping()
        log.info("draining", replica=name, answers_s=replica_limits.drain.drain_s, hint=AT_ONCE)
        await replica.drain()
    return 0


async def gateway_role(settings: Settings) -> int:
    """Runs a process where clients connect: it holds no session, reads the journal and routes to replicas. Returns the
    exit status."""
    from actors.cluster.placement import BoundedRendezvous
    from actors.peer.client import Connector
    from actors.routing.router import Router
    from transport.gateway_store.opening import open_shared_state
    from transport.http_api.starting_door import StartingDoor
    from transport.peer import GrpcDialer

    stop, name = stop_signal(), settings.name or f"gateway-{new_id()[:8]}"
    security, tls, prices = peer_security(settings), tls_of(settings), PriceFile(settings.prices)
    pools = models_file(settings.models)
    stores, directory = make_stores(settings, folder=None, now_ms=now_ms), directory_of(settings)
    startup = Startup(stop, rng=random.Random())
    async with contextlib.AsyncExitStack() as stack:
        measures = await stack.enter_async_context(open_metrics(settings, "gateway", name, VERSION))
        manager = await stack.enter_async_context(ServiceManager(os.environ, startup.readiness))
        telemetry = open_telemetry(settings, measures, "gateway", VERSION, startup.readiness)
        exposition = await stack.enter_async_context(telemetry)
        starting = StartingDoor(startup.readiness, host=settings.host, port=settings.port, tls=tls)
        await stack.enter_async_context(starting)
        store = await stack.enter_async_context(stores.opened(startup.reach))
        stack.push_async_callback(directory.close)
        await startup.reach("directory", directory.open)
        router = await stack.enter_async_context(
            Router(
                gateway=name,
                directory=directory,
                journal=store.journal,
                placement=BoundedRendezvous(),
                connect=Connector(GrpcDialer(security), kind="gateway", name=name, version=VERSION),
                rng=random.Random(),
                pools=pools.now,
            )
        )
        catalog = ModelCatalog(lambda: router.routes.view, clock=time.monotonic, created=now_ms() // 1000)
        states = router.routes.pool_states
        models = PooledModels(catalog, pools.now, lambda name: states()[name].replicas if name in states() else 0)
        counted = open_limits(settings.limits, settings.directory, store.tallies, default=default_limits(settings))
        limited = await stack.enter_async_context(counted)
        await stack.enter_async_context(LoopWatchdog(measures, stall_ms=settings.loop_stall_ms))
        schemas = await stack.enter_async_context(SchemaWorkers(measures))
        retrieval = await stack.enter_async_context(
            open_retrieval(settings, stores, measures, os.environ, CLOCK, prices.book, limited)
        )
        file_workers = await stack.enter_async_context(FileWorkers(measures))
        fetch_image = await stack.enter_async_context(open_image_fetcher(settings.image_hosts))
        register_router_metrics(measures, router)
        secret = store.audit.sealer.names_key("history")
        shared = open_shared_state(settings.directory, secret, time.monotonic)
        tickets, history = await stack.enter_async_context(shared)
        access, api_keys = await stack.enter_async_context(
            open_credentials(settings, store, stores.server_keys, now_ms, tickets)
        )
        drains = Tasks()
        stack.push_async_callback(drains.close)
        services = GatewayServices(
            models=models,
            unlisted=SHIPPED,
            pools=pools.now,
            keys=api_keys,
            history=history,
            operator_api=ClusterOperatorApi(lambda: router.routes.view, security, drains),
            schemas=schemas,
            documents=file_workers,
            images=file_workers,
            fetch_image=fetch_image,
            file_bytes=settings.file_bytes,
            encryption=stores.administration(stores.reencryption()),
            prices=prices.book,
            ignores_unknown=settings.unknown_parameters == "ignore",
            inspect=router.inspect,
            is_attached=router.subscriptions.is_attached,
            push=push_door(settings),
            retrieval=retrieval,
            added_tools=await stack.enter_async_context(open_added_tool_check(settings)),
        )
        works = [
            collect_when_idle(time.process_time),
            prices.run(),
            pools.run(),
            *(each.run() for each in certificate_watchers(settings, tls, security)),
        ]
        await stack.enter_async_context(background_tasks(*works, *stores.background(None)))
        gateway = Gateway(
            router, store, access, CLOCK, quotas=limited and limited.quotas, measures=measures, services=services
        )
        server, grpc = doors_of(settings, gateway, exposition, tls, startup.readiness)
        await starting.stop()
        await start_doors(server, grpc)
        tune_process()
        startup.finish(lambda: "draining" if gateway.draining else router.unready())
        manager.ready()
        print(f"Sessile is ready: {server.url}/", flush=True)
        await stack.enter_async_context(background_tasks(load_doors(server)))
        await stop.wait()
        manager.stopping()
        await stop_doors(server, grpc, spread=True)
    return 0


# -- parts that are opened ---------------------------------------------------------------------------------------------


def inference_of(
    settings: Settings,
    stores: OpenableStores,
    limited: LimitServices | None,
    engine: Engine,
    filters: FilterSet,
    schemas: SchemaWorkers,
    measures: Metrics,
    pools: ConfigFile[ModelPools],
) -> Inference:
    """Returns what a process that is alone makes answers with, among it its own result cache and users' memories."""
    results = None
    if limited is not None:
        from actors.results.cache import make_results

        texts = personal_texts(filters)
        results = make_results("", settings.result_cache_mb, stores.tenant_keys, limited, texts, measures)
    memories = memory_reader(stores.store.end_users, limited)
    return Inference(engine, filters, schemas, results, memories, pools.now if settings.models else None)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, on_interrupt)
    sys.exit(run_and_flush(lambda: main(sys.argv[1:])))
