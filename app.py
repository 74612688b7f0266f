"""Sessile's entry point: the only module that knows every package, and the only one that reads the environment.

Settings come from flags, `SESSILE_*` variables and a TOML file, in this order: `python app.py serve --help` lists them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import random
import secrets
import signal
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
import structlog
import uvloop
from msgspec import Meta

from actors.directory.memory import MemoryDirectory
from actors.directory.valkey import ValkeyDirectory
from actors.peer_host import PeerHost
from actors.peer_link import Connector
from actors.placement import BoundedRendezvous
from actors.replica import Replica, ReplicaLimits
from actors.router import Router
from actors.runtime import Runtime, RuntimeLimits
from actors.upkeep import Upkeep, UpkeepLimits
from inference import make_engine
from persistence import open_journal
from sessions.errors import SessileError
from sessions.filters import KeywordFilterSet
from sessions.ports import Engine, Journal, Member, Sessions
from sessions.turn import TurnLimits
from sessions.types import Principal, ReplicaId, UnixMs
from sessions.world import ActorLimits
from transport.access import Access
from transport.gateway import Gateway, GatewayLimits
from transport.openai.models import Models, card_of
from transport.peer import GrpcDialer, PeerSecurity, PeerServer
from transport.peer.operator import described, drained, members_of
from transport.server import Server

log = structlog.get_logger("sessile")

VERSION = "0.1.0"
ANNOUNCE_S = 2.0
GOODBYE_MS = 250
READY_REPLICA = "Replica is ready: "
GC_THRESHOLDS = (50_000, 20, 50)
MODEL_PATH = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"


def setting(about: str, **limits: Any) -> Meta:
    return Meta(description=about, **limits)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set, with its limits. Field names are the flags', the variables' and the file's."""

    host: Annotated[str, setting("address to listen on; without keys only a loopback address")] = "127.0.0.1"
    port: Annotated[int, setting("port for WebSocket and HTTP; 0 picks a free one", ge=0, le=65535)] = 8080
    data: Annotated[str, setting("folder for the journal and spilled KV", min_length=1)] = "data"
    journal: Annotated[
        str, setting("sqlite (in the data folder), postgresql://..., or memory, which forgets everything")
    ] = "sqlite"
    directory: Annotated[str, setting("of a cluster: redis://, rediss://, redis+sentinel:// or redis+cluster://")] = ""
    name: Annotated[str, setting("of this gateway or replica in its cluster; empty: one of its own making")] = ""
    peer_host: Annotated[str, setting("address that a replica's peer link listens on")] = "127.0.0.1"
    peer_port: Annotated[int, setting("its port; 0 picks a free one", ge=0, le=65535)] = 0
    peer_token: Annotated[str, setting("what gateways and replicas show each other; the same on all")] = ""
    engine: Annotated[Literal["llama", "sim"], setting("what generates: llama.cpp, or simulated text for tests")] = (
        "llama"
    )
    model: Annotated[str, setting("path of a GGUF file")] = MODEL_PATH
    chat_template: Annotated[str, setting("the model's own chat template, or chatml")] = "model"
    threads: Annotated[int, setting("engine threads; 0: one less than the cores", ge=0, le=1024)] = 0
    slots: Annotated[int, setting("answers that run at the same time", ge=1, le=4096)] = 4
    context: Annotated[int, setting("context window per session in tokens; 0: the model's", ge=0)] = 0
    kv_disk_mb: Annotated[int, setting("bound of the folder for spilled KV, MB; 0: no spill", ge=0)] = 2048
    idle_s: Annotated[float, setting("a session leaves memory after idling for so long", gt=0)] = 600.0
    actors: Annotated[int, setting("sessions in memory at most", ge=1)] = 20_000
    tool_deadline_s: Annotated[float, setting("how long a turn waits for its tools", gt=0)] = 600.0
    orphan_policy: Annotated[
        Literal["continue", "pause", "cancel"], setting("what an answer does when nobody reads it any more")
    ] = "continue"
    orphan_after_s: Annotated[float, setting("how long nobody must have read for that", ge=0)] = 30.0
    rollup_ms: Annotated[float, setting("deltas are rolled up for so long", ge=0, le=1000)] = 25.0
    content_bytes: Annotated[int, setting("size of one message at most", ge=1)] = 1_000_000
    retention_days: Annotated[float, setting("deleted sessions are purged after so many days", ge=0)] = 30.0
    drain_s: Annotated[float, setting("how long open answers may go on after SIGTERM", ge=0)] = 10.0
    keys: Annotated[str, setting("TOML file of API keys; empty: loopback only, one local principal")] = ""
    origins: Annotated[
        tuple[str, ...], setting("browser origins that may connect, beside the server's own; comma-separated")
    ] = ()
    input_keywords: Annotated[tuple[str, ...], setting("phrases that a message must not contain")] = ()
    output_keywords: Annotated[tuple[str, ...], setting("phrases that an answer is withheld from")] = ()
    sim_tokens_per_s: Annotated[float, setting("simulated engine: decode rate of a stream", gt=0)] = 50.0
    sim_prefill_per_s: Annotated[float, setting("simulated engine: prefill rate", gt=0)] = 20_000.0
    sim_answer_tokens: Annotated[int, setting("simulated engine: mean length of an answer", ge=0)] = 64
    log_level: Annotated[Literal["debug", "info", "warning", "error"], setting("least level that is logged")] = "info"
    log_format: Annotated[Literal["json", "console"], setting("json lines, or text for people")] = "json"


# -- configuration -----------------------------------------------------------------------------------------------


class BadSetting(Exception):
    """A setting has a value that is not allowed; the message names it and says what is."""


def read_settings(flags: dict[str, str], environment: dict[str, str], config: str | None) -> Settings:
    """Merges the sources. Raises BadSetting."""
    values: dict[str, Any] = {}
    if config is not None:
        try:
            values.update(tomllib.loads(Path(config).read_text()))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise BadSetting(f"--config {config}: {error}") from error
    known = set(Settings.__struct_fields__)
    for name, value in environment.items():
        field = name.removeprefix("SESSILE_").lower()
        if name.startswith("SESSILE_") and field in known:
            values[field] = value
    values.update(flags)
    hints = get_type_hints(Settings, include_extras=True)
    for name, value in values.items():
        if name not in known:
            raise BadSetting(f"{name} (in the configuration file) is not a setting; see --help for those that are")
        if isinstance(value, str) and name in ("origins", "input_keywords", "output_keywords"):
            given: Any = [part.strip() for part in value.split(",") if part.strip()]
        else:
            given = value
        try:
            values[name] = msgspec.convert(given, hints[name], strict=False)
        except msgspec.ValidationError as error:
            raise BadSetting(f"{name} = {value!r}: {error}. Allowed: {allowed(hints[name])}") from error
    return Settings(**values)


def allowed(hint: Any) -> str:
    """What a setting takes, for people."""
    base, meta = hint.__origin__, hint.__metadata__[0]
    if hasattr(base, "__args__") and getattr(base, "__origin__", None) is Literal:
        return " | ".join(base.__args__)
    limits = {"ge": "at least", "gt": "above", "le": "at most", "min_length": "length at least"}
    bounds = [f"{words} {getattr(meta, name)}" for name, words in limits.items() if getattr(meta, name) is not None]
    name = getattr(base, "__name__", str(base))
    return ", ".join([{"int": "a whole number", "float": "a number", "str": "text"}.get(name, "a list"), *bounds])


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="app.py", description="Sessile: chat sessions as actors that own their KV.")
    roles = top.add_subparsers(dest="role", required=True)
    add_settings(roles.add_parser("serve", help="run everything in one process"))
    add_settings(roles.add_parser("gateway", help="run a gateway of a cluster: clients connect to it"))
    add_settings(roles.add_parser("replica", help="run a replica of a cluster: an engine with its actors"))
    add_settings(roles.add_parser("replicas", help="show the replicas of a cluster"))
    drain = roles.add_parser("drain", help="move everything off a replica")
    drain.add_argument("replica", help="its name, as `replicas` shows it")
    add_settings(drain)
    chat = roles.add_parser("chat", help="talk to a server in the terminal", add_help=False)
    chat.add_argument("arguments", nargs=argparse.REMAINDER)
    return top


def add_settings(role: argparse.ArgumentParser) -> None:
    role.add_argument("--config", metavar="FILE", help="TOML file of settings")
    hints = get_type_hints(Settings, include_extras=True)
    defaults = Settings()
    for name in Settings.__struct_fields__:
        about = hints[name].__metadata__[0].description.replace("%", "%%")
        default = getattr(defaults, name)
        default = ",".join(default) if isinstance(default, tuple) else default
        role.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="VALUE",
            default=argparse.SUPPRESS,
            help=f"{about} ({allowed(hints[name])}; default: {default!s}; SESSILE_{name.upper()})",
        )


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["chat"]:
        sys.path.insert(0, str(Path(__file__).parent / "clients" / "python"))
        from sessile_client import terminal

        return terminal.main(list(arguments[1:]))
    given = vars(parser().parse_args(arguments))
    role = given.pop("role")
    config = given.pop("config", None)
    target = given.pop("replica", "")
    try:
        settings = read_settings(given, dict(os.environ), config)
        configure_logs(settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if role in ("gateway", "replica", "replicas", "drain") and not settings.directory:
                raise BadSetting(f"directory: a {role} needs one, for example --directory redis://127.0.0.1:6379")
            match role:
                case "gateway":
                    return runner.run(gateway_role(settings))
                case "replica":
                    return runner.run(replica_role(settings))
                case "replicas":
                    return runner.run(show_replicas(settings))
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


def configure_logs(settings: Settings) -> None:
    level = getattr(logging, settings.log_level.upper())
    renderer: Any = (
        structlog.processors.JSONRenderer() if settings.log_format == "json" else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


# -- wiring --------------------------------------------------------------------------------------------------------


def now_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def new_id() -> str:
    return secrets.token_hex(10)


def limits(settings: Settings) -> RuntimeLimits:
    return RuntimeLimits(
        actors_max=settings.actors,
        idle_s=settings.idle_s,
        orphan_policy=settings.orphan_policy,
        orphan_after_s=settings.orphan_after_s,
        actor=ActorLimits(
            content_bytes=settings.content_bytes,
            tool_deadline_s=settings.tool_deadline_s,
            turn=TurnLimits(rollup_s=settings.rollup_ms / 1000),
        ),
    )


def filters_of(settings: Settings) -> KeywordFilterSet:
    return KeywordFilterSet(input_phrases=settings.input_keywords, output_phrases=settings.output_keywords)


def fingerprint_of(engine: Engine) -> str:
    """What must be equal for a session to move from one replica to another."""
    return f"{engine.info.model_fingerprint}/{engine.tokenizer.fingerprint}"


def gateway_of(settings: Settings, sessions: Sessions, journal: Journal, models: Models = tuple) -> Gateway:
    access = Access(
        read_keys(settings.keys) if settings.keys else {},
        clock=asyncio.get_running_loop().time,
        origins=settings.origins,
    )
    return Gateway(
        sessions=sessions,
        journal=journal,
        access=access,
        limits=GatewayLimits(),
        now_ms=now_ms,
        new_id=new_id,
        models=models,
    )


@contextlib.asynccontextmanager
async def running(journal: Journal, engine: Engine) -> AsyncIterator[None]:
    """Journal and engine, opened; closed in the order that loses nothing."""
    await journal.open()
    try:
        await engine.start()
        try:
            yield
        finally:
            await engine.close()
    finally:
        await journal.close()


def read_keys(path: str) -> dict[str, Principal]:
    """The keys file: `[[keys]]` tables with `id`, `tenant`, `sha256` and, if wanted, `user` and `role`."""
    try:
        tables = tomllib.loads(Path(path).read_text()).get("keys", [])
        keys: dict[str, Principal] = {}
        for number, table in enumerate(tables, 1):
            digest = table.pop("sha256", "")
            if len(digest) != 64:
                raise BadSetting(f"keys = {path!r}: key {number} needs `sha256`, 64 hex digits")
            table["key_id"] = table.pop("id", "")
            keys[digest.lower()] = msgspec.convert(table, Principal)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadSetting(f"keys = {path!r}: {error}") from error
    return keys


async def serve(settings: Settings) -> int:
    """Everything in one process, until SIGTERM or Ctrl-C."""
    stop = stop_signal()
    journal = open_journal(settings.journal, folder=Path(settings.data))
    engine = make_engine(settings)
    directory = MemoryDirectory()
    async with (
        running(journal, engine),
        Runtime(
            replica=ReplicaId("local"),
            incarnation=new_id(),
            journal=journal,
            directory=directory,
            engine=engine,
            filters=filters_of(settings),
            limits=limits(settings),
            now_ms=now_ms,
            new_id=new_id,
        ) as runtime,
    ):
        started_at = now_ms() // 1000
        gateway = gateway_of(settings, runtime, journal, lambda: (card_of(engine.info, created=started_at),))
        server = Server(gateway, host=settings.host, port=settings.port, version=VERSION)
        upkeep = Upkeep(
            runtime,
            journal=journal,
            directory=directory,
            engine=engine,
            limits=UpkeepLimits(retention_s=settings.retention_days * 86_400),
            now_ms=now_ms,
        )
        await directory.open()
        async with asyncio.TaskGroup() as tasks:
            lease = tasks.create_task(keep_announced(directory, runtime, engine))
            sweeps = tasks.create_task(upkeep.run())
            await server.start()
            gc.freeze()  # what lives as long as the process is not worth looking at again and again
            gc.set_threshold(*GC_THRESHOLDS)
            print(f"Sessile is ready: {server.url}/", flush=True)
            await stop.wait()
            log.info("stopping")
            sweeps.cancel()
            await runtime.quiet(settings.drain_s)
            await server.drain("restart", after_ms=GOODBYE_MS)
            await server.stop()
            await runtime.close()
            lease.cancel()
    return 0


async def keep_announced(directory: MemoryDirectory, runtime: Runtime, engine: Engine) -> None:
    """Keeps the one replica of this process a member of its own directory."""
    while True:
        await directory.announce(
            Member(
                replica=runtime.replica,
                incarnation=runtime.incarnation,
                address="",
                model=engine.info.model,
                fingerprint=fingerprint_of(engine),
            )
        )
        await asyncio.sleep(ANNOUNCE_S)


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
    security = PeerSecurity(token=settings.peer_token)
    journal = open_journal(settings.journal, folder=Path(settings.data))
    engine = make_engine(settings)
    name = settings.name or f"replica-{new_id()[:8]}"
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(journal, engine))
        directory = ValkeyDirectory(settings.directory)
        await directory.open()
        stack.push_async_callback(directory.close)

        async def listen(host: PeerHost) -> str:
            server = PeerServer(host.accept, security=security)
            port = await server.start(settings.peer_host, settings.peer_port)
            stack.push_async_callback(server.stop, 0)
            return f"{settings.peer_host}:{port}"

        fingerprint = fingerprint_of(engine)
        replica = await stack.enter_async_context(
            Replica(
                Member(
                    replica=ReplicaId(name),
                    incarnation=new_id(),
                    address="",
                    model=engine.info.model,
                    fingerprint=fingerprint,
                ),
                journal=journal,
                directory=directory,
                engine=engine,
                filters=filters_of(settings),
                listen=listen,
                connect=Connector(GrpcDialer(security), kind="replica", name=name, fingerprint=fingerprint),
                placement=BoundedRendezvous(session_load=1 / settings.slots),
                limits=ReplicaLimits(
                    runtime=limits(settings), upkeep=UpkeepLimits(retention_s=settings.retention_days * 86_400)
                ),
                now_ms=now_ms,
                new_id=new_id,
            )
        )
        print(f"{READY_REPLICA}{name}", flush=True)
        await stop.wait()
        log.info("draining", replica=name)
        await replica.drain()
    return 0


async def gateway_role(settings: Settings) -> int:
    """Where clients connect: holds no session, reads the journal, routes to replicas."""
    stop = stop_signal()
    security = PeerSecurity(token=settings.peer_token)
    name = settings.name or f"gateway-{new_id()[:8]}"
    async with contextlib.AsyncExitStack() as stack:
        journal = open_journal(settings.journal, folder=None)
        await journal.open()
        stack.push_async_callback(journal.close)
        directory = ValkeyDirectory(settings.directory)
        await directory.open()
        stack.push_async_callback(directory.close)
        router = await stack.enter_async_context(
            Router(
                gateway=name,
                directory=directory,
                journal=journal,
                placement=BoundedRendezvous(session_load=1 / settings.slots),
                connect=Connector(GrpcDialer(security), kind="gateway", name=name),
                rng=random.Random(),
            )
        )
        server = Server(gateway_of(settings, router, journal), host=settings.host, port=settings.port, version=VERSION)
        await server.start()
        print(f"Sessile is ready: {server.url}/", flush=True)
        await stop.wait()
        await server.drain("restart", after_ms=GOODBYE_MS)
        await server.stop()
    return 0


async def show_replicas(settings: Settings) -> int:
    """Prints the cluster's members."""
    print(described(await members_of(ValkeyDirectory(settings.directory))))
    return 0


async def drain_replica(settings: Settings, name: str) -> int:
    """Tells a replica to hand everything off, and waits until it has."""
    last = await drained(ValkeyDirectory(settings.directory), PeerSecurity(token=settings.peer_token), name)
    print(f"{name} is empty: {last.handed_off} sessions handed off, {last.parked} parked")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
