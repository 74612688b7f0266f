"""Real processes: a Valkey, a PostgreSQL and replicas; the router of this process is their gateway."""

from __future__ import annotations

import asyncio
import random
import secrets
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from actors.cluster.placement import BoundedRendezvous
from actors.directory.valkey import ValkeyDirectory
from actors.peer.client import Connector
from actors.routing.router import Router
from actors.routing.router_limits import RouterLimits
from persistence.open_store import open_store
from sessions.ports import Journal
from testbed.postgres_server import PostgresServer
from testbed.valkey_server import Server, free_port
from tests.support.cluster.node import SECURITY
from transport.peer import GrpcDialer

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0
NODE = "tests.support.cluster.node"


class ReplicaProcess:
    """One replica. Its standard output says when it is ready and when it is drained."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process

    async def says(self, word: str, limit_s: float = PATIENCE_S) -> None:
        """Waits for a line that begins with a word."""
        assert self.process.stdout is not None
        async with asyncio.timeout(limit_s):
            while line := await self.process.stdout.readline():
                if line.decode().startswith(word):
                    return
        raise AssertionError(f"{self.name} ended without saying {word!r}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def end(self) -> None:
        if self.process.returncode is None:
            self.signal(signal.SIGCONT)
            await self.kill()


class Processes:
    """The servers, the replicas, and a router for each gateway that is asked for."""

    def __init__(self, valkey: Server, dsn: str, folder: Path, options: list[str], module: str) -> None:
        self.valkey = valkey
        self.replicas: dict[str, ReplicaProcess] = {}
        self._dsn = dsn
        self._folder = folder
        self._options = options
        self._module = module

    async def start(self, name: str) -> ReplicaProcess:
        folder = self._folder / f"{name}-{secrets.token_hex(3)}"
        folder.mkdir()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._module, "replica", "--name", name),
            *("--directory", self.valkey.url, "--journal", self._dsn, "--data", str(folder), *self._options),
            cwd=ROOT,
            stdout=PIPE,
        )
        made = self.replicas[name] = ReplicaProcess(name, process)
        await made.says("ready")
        return made

    @asynccontextmanager
    async def gateway(self, name: str, limits: RouterLimits | None = None) -> AsyncIterator[tuple[Router, Journal]]:
        store = open_store(self._dsn, folder=None)
        directory = ValkeyDirectory(self.valkey.url)
        await store.open()
        await directory.open()
        try:
            async with Router(
                gateway=name,
                directory=directory,
                journal=store.journal,
                placement=BoundedRendezvous(),
                connect=Connector(GrpcDialer(SECURITY), kind="gateway", name=name),
                rng=random.Random(1),
                limits=limits,
            ) as router:
                yield router, store.journal
        finally:
            await directory.close()
            await store.close()


@asynccontextmanager
async def processes(
    *options: str, names: tuple[str, ...] = ("r1", "r2"), module: str = NODE
) -> AsyncIterator[Processes]:
    """`options` are the replicas' (see `node`); `module` runs them, and takes what `node` takes."""
    folder = Path(tempfile.mkdtemp(prefix="sessile-cluster-"))
    valkey = Server(port=free_port())
    postgres = PostgresServer()
    try:
        valkey.start()
        postgres.start()
        made = Processes(valkey, postgres.dsn, folder, list(options), module)
        try:
            for name in names:
                await made.start(name)
            yield made
        finally:
            for replica in made.replicas.values():
                await replica.end()
    finally:
        valkey.stop()
        postgres.remove()
        shutil.rmtree(folder, ignore_errors=True)
