"""One process of a cluster, for tests and benches that kill, stop and drain real ones.

    python -m tests.support.cluster.node replica --name r1 --directory redis://… --journal postgresql://… --data DIR
    python -m tests.support.cluster.node drain --name r1 --directory redis://…

Wired as the application wires a replica. Prints a line when it is ready and one when it is drained; SIGTERM drains.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

import structlog

from actors.directory.valkey import ValkeyDirectory
from actors.hosting.services import Inference, Stores
from actors.peer.client import Connector
from actors.peer.frames import DrainProgress
from actors.peer.server import PeerEndpoint
from actors.replica import PeerNetwork, Replica
from inference.simulated import SimulatedEngine, SimulatedOptions
from persistence.open_store import open_store
from sessions.clock import Clock
from sessions.model.types import ReplicaId, UnixMs
from sessions.ports import Engine, Member
from sessions.turn.keyword_filter import KeywordFilterSet
from transport.peer import GrpcDialer, PeerSecurity, PeerServer

SECURITY = PeerSecurity(token="a token for the tests alone")


def now_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def new_id() -> str:
    return secrets.token_hex(10)


def engine_of(arguments: argparse.Namespace) -> Engine:
    if arguments.model:
        from inference.llama import LlamaEngine, LlamaOptions

        return LlamaEngine(
            LlamaOptions(
                model_path=Path(arguments.model),
                slots=arguments.slots,
                threads=1,
                disk_folder=Path(arguments.data) / "kv",
            )
        )
    return SimulatedEngine(
        SimulatedOptions(
            slots=arguments.slots,
            step_base_s=arguments.step_s,
            step_per_stream_s=arguments.stream_s,
            prefill_tokens_per_s=arguments.prefill_per_s,
            answer_tokens_mean=0,
        )
    )


async def replica(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = open_store(arguments.journal, folder=Path(arguments.data))
    directory = ValkeyDirectory(arguments.directory)
    engine = engine_of(arguments)
    servers: list[PeerServer] = []

    async def listen(host: PeerEndpoint) -> str:
        servers.append(PeerServer(host.accept, security=SECURITY))
        return f"127.0.0.1:{await servers[0].start('127.0.0.1', 0)}"

    await store.open()
    await directory.open()
    await engine.start()
    name = arguments.name
    fingerprint = f"{engine.info.model_fingerprint}/{engine.tokenizer.fingerprint}"
    member = Member(
        replica=ReplicaId(name), incarnation=new_id(), address="", model=engine.info.model, fingerprint=fingerprint
    )
    try:
        async with Replica(
            member,
            stores=Stores(store, directory),
            inference=Inference(engine, KeywordFilterSet()),
            network=PeerNetwork(
                listen, Connector(GrpcDialer(SECURITY), kind="replica", name=name, fingerprint=fingerprint)
            ),
            clock=Clock(now_ms, new_id),
        ) as running:
            print(f"ready {name}", flush=True)
            await stop.wait()
            await running.drain()
            print(f"drained {name}", flush=True)
        await servers[0].stop(0)
    finally:
        await engine.close()
        await directory.close()
        await store.close()


async def drain(arguments: argparse.Namespace) -> None:
    directory = ValkeyDirectory(arguments.directory)
    await directory.open()
    try:
        view = await directory.view()
        member = next(each for each in view.members if each.replica == arguments.name)
        link = await Connector(GrpcDialer(SECURITY), kind="operator", name="drain")(member)
        running = asyncio.create_task(link.run())
        reports: asyncio.Queue[DrainProgress] = asyncio.Queue()
        last = await link.drain(reports)
        print(f"drained {arguments.name}: {last.handed_off} handed off, {last.parked} parked", flush=True)
        await link.close()
        await running
    finally:
        await directory.close()


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["replica", "drain"])
    parser.add_argument("--name", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--journal", default="memory")
    parser.add_argument("--data", default=".")
    parser.add_argument("--model", default="", help="a GGUF file; without it the engine is simulated")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--stream-s", type=float, default=0.0)
    parser.add_argument("--prefill-per-s", type=float, default=20_000.0)
    parser.add_argument("--log", default="warning")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    given = parsed(arguments)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, given.log.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    roles: dict[str, Any] = {"replica": replica, "drain": drain}
    asyncio.run(roles[given.role](given))


if __name__ == "__main__":
    main(sys.argv[1:])
