"""A cluster of real processes, started as an operator starts them, with a fault proxy at every joint if wanted.

    device ── gateway ──[the replica's peer proxy]── replica ──[its directory and journal proxies]── Valkey, PostgreSQL

Gateways and replicas are `app.py gateway` and `app.py replica`; what they log goes to a file each. Proxies run in the
loop of whoever uses this module. Nothing outlives `chaos_cluster`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from persistence.open_store import open_store
from sessions.model.types import LOCAL_PRINCIPAL, SessionId, SessionKey
from testbed.chaos.device import Device
from testbed.chaos.proxy import Proxy
from testbed.chaos.verdict import judge, log_of
from testbed.postgres_server import PostgresServer
from testbed.valkey_server import Server as Valkey
from testbed.valkey_server import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
TOKEN: Final = {"SESSILE_PEER_TOKEN": "the chaos runs' own"}
PATIENCE_S: Final = 60.0
READY: Final = ("Sessile is ready: ", "Replica is ready: ")
SIMULATED: Final = ("--engine", "sim", "--sim-answer-tokens", "0", "--slots", "64")


class Member:
    """One gateway or replica process, and the proxies that lie between it and others."""

    def __init__(self, name: str, role: str) -> None:
        self.name = name
        self.role = role
        self.url = ""  # of a gateway
        self.directory: Proxy | None = None
        self.journal: Proxy | None = None
        self.peers: Proxy | None = None  # before a replica's port
        self.process: Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def proxies(self) -> list[Proxy]:
        return [proxy for proxy in (self.directory, self.journal, self.peers) if proxy is not None]

    async def run(self, command: list[str], log: Path, tree: Path) -> None:
        """Starts the process in a checkout; returns when it has said that it is ready."""
        with log.open("ab") as errors:
            self.process = await asyncio.create_subprocess_exec(
                *command, cwd=tree, env=os.environ | TOKEN, stdout=PIPE, stderr=errors
            )
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := (await self.process.stdout.readline()).decode():
                if line.startswith(READY):
                    self.url = line.removeprefix(READY[0]).strip().rstrip("/").replace("http", "ws", 1) + "/v1/ws"
                    self._reading = asyncio.create_task(self._drain(self.process.stdout))
                    return
        raise AssertionError(f"{self.name} ended before it was ready:\n{log.read_text()[-2000:]}")

    @staticmethod
    async def _drain(stream: asyncio.StreamReader) -> None:
        while await stream.readline():
            pass

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def kill(self) -> None:
        """kill -9. Idempotent."""
        if self.process is not None:
            if self.process.returncode is None:
                self.process.kill()
            await self.process.wait()
            self.process = None
        if self._reading is not None:
            await self._reading
            self._reading = None

    async def end(self) -> None:
        await self.kill()
        for proxy in self.proxies:
            await proxy.stop()


class ChaosCluster:
    """The servers, the members, and the journal as this process reads it."""

    def __init__(
        self, valkey: Valkey, postgres: PostgresServer, folder: Path, flags: list[str], proxied: bool, python: str
    ) -> None:
        self.valkey = valkey
        self.postgres = postgres
        self.folder = folder
        self.members: dict[str, Member] = {}
        self.devices: list[Device] = []
        self.key = ""  # everybody is let in
        self.trees: dict[str, Path] = {}  # members that run another release's program, and where it lies
        self.store = open_store(postgres.dsn, folder=None)
        self.journal = self.store.journal
        self._flags = flags
        self._proxied = proxied
        self._python = python

    @property
    def replicas(self) -> list[Member]:
        return [member for member in self.members.values() if member.role == "replica"]

    @property
    def urls(self) -> list[str]:
        return [member.url for member in self.members.values() if member.role == "gateway"]

    async def start(self, name: str, *flags: str) -> Member:
        """Starts a member, or one of the same name again: `g…` is a gateway, anything else a replica."""
        role = "gateway" if name.startswith("g") else "replica"
        before = self.members.get(name)
        if before is not None:
            await before.end()
        member = self.members[name] = Member(name, role)
        command = [self._python, "app.py", role, "--name", name]
        directory, journal = self.valkey.url, self.postgres.dsn
        if self._proxied:
            member.directory = await self._proxy(("127.0.0.1", self.valkey.port))
            member.journal = await self._proxy(self.postgres.socket)
            directory = f"redis://127.0.0.1:{member.directory.port}"
            journal = f"postgresql://postgres@127.0.0.1:{member.journal.port}/postgres?sslmode=disable"
        command += ["--directory", directory, "--journal", journal, "--data", str(self.folder / name)]
        if role == "gateway":
            command += ["--port", "0"]
        elif self._proxied:
            port = free_port()
            member.peers = await self._proxy(("127.0.0.1", port))
            command += ["--peer-port", str(port), "--peer-address", f"127.0.0.1:{member.peers.port}"]
        await member.run([*command, *self._flags, *flags], self.folder / f"{name}.log", self.trees.get(name, ROOT))
        return member

    @staticmethod
    async def _proxy(target: tuple[str, int] | str) -> Proxy:
        proxy = Proxy(target)
        await proxy.start()
        return proxy

    async def owner(self, session: str) -> Member:
        """The replica that was granted a session last, by the journal's word."""
        head = await self.journal.head(key_of(session))
        assert head is not None
        return self.members[head.owner.rpartition("/")[0]]

    async def findings(
        self, devices: Iterable[Device], sessions: Iterable[str], *, restored: bool = False
    ) -> list[str]:
        """The verdict over these sessions, when every device has been told all of them."""
        logs = {session: await log_of(self.journal, key_of(session)) for session in sessions}
        return judge(devices, logs, restored=restored)

    def said(self, name: str) -> str:
        """What a member has logged."""
        return (self.folder / f"{name}.log").read_text()

    def errors(self) -> str:
        """What the members have logged as errors, with the stacks, and what they wrote beside their logs."""
        lines = [
            f"{log.stem}: {line}"
            for log in sorted(self.folder.glob("*.log"))
            for line in log.read_text(errors="replace").splitlines()
            if '"level": "error"' in line or not line.startswith("{")
        ]
        return "\n".join(lines[-400:])


def key_of(session: str) -> SessionKey:
    return SessionKey(LOCAL_PRINCIPAL.tenant, SessionId(session))


@asynccontextmanager
async def chaos_cluster(
    *flags: str,
    names: tuple[str, ...] = ("r1", "r2", "g1", "g2"),
    proxied: bool = False,
    keep_logs: bool = False,
    python: str = sys.executable,
    trees: Mapping[str, Path] | None = None,
    postgres: PostgresServer | None = None,
) -> AsyncIterator[ChaosCluster]:
    """`flags` are every member's (see `app.py replica --help`), and `python` runs them. `trees`: of members that run
    another release's program. `postgres`: one that is not to be made here."""
    folder = Path(tempfile.mkdtemp(prefix="sessile-chaos-"))
    valkey, postgres = Valkey(port=free_port()), postgres or PostgresServer()
    try:
        valkey.start()
        postgres.start()
        made = ChaosCluster(valkey, postgres, folder, [*(flags or SIMULATED), "--log-level", "info"], proxied, python)
        made.trees |= trees or {}
        try:
            # The first one makes the schema, which this process may then migrate; the others may start together.
            await made.start(names[0])
            await made.store.open()
            await asyncio.gather(*(made.start(name) for name in names[1:]))
            try:
                yield made
            except BaseException:
                print(made.errors())
                raise
        finally:
            for member in made.members.values():
                await member.end()
            await made.store.close()
    finally:
        valkey.stop()
        postgres.remove()
        if not keep_logs:
            shutil.rmtree(folder, ignore_errors=True)
