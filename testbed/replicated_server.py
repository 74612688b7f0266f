"""A real server whose journal is replicated, under load, killed at once with its Litestream; and its logs."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websockets

from persistence import connect_store
from sessions.model.events import Record
from sessions.model.types import SessionId, SessionKey, TenantId, UnixMs
from transport.cli.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
LOCAL = TenantId("local")


class Client:
    """A WebSocket that sends commands and waits for frames."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._num_sent = 0
        self._name = secrets.token_hex(9).upper()  # ids of its own: a restored server knows those of the rounds before

    async def until(self, *types: str) -> dict[str, Any]:
        """The next frame, or event, of one of these types."""
        while True:
            frames = json.loads(await asyncio.wait_for(self._connection.recv(), 60))
            for frame in frames if isinstance(frames, list) else [frames]:
                if frame["type"] in types or frame.get("event", {}).get("type") in types:
                    return dict(frame)

    async def send(self, type_: str, **frame: Any) -> None:
        self._num_sent += 1
        numbered = {"id": f"01J{self._name}{self._num_sent:05d}"} if type_ not in ("hello", "ack") else {}
        await self._connection.send(json.dumps({"type": type_, **numbered, **frame}))


def connect(url: str) -> Any:
    return websockets.connect(url.replace("http", "ws") + "/v1/ws", subprotocols=["sessile.v1+json"])  # type: ignore[list-item]


class Talks:
    """Conversations that go on until the server is gone."""

    def __init__(self, url: str, count: int) -> None:
        self.offsets: dict[str, tuple[str, int]] = {}
        """The epoch and the last offset that a reader of each session has seen."""
        self._turned = asyncio.Event()
        self.num_turns = [0] * count
        self._tasks = [asyncio.create_task(self._talk(url, number)) for number in range(count)]

    async def each_had(self, turns: int) -> None:
        """Returns when every conversation has had so many turns. Raises what ended one."""
        while min(self.num_turns) < turns:
            self._turned.clear()
            bell = asyncio.create_task(self._turned.wait())
            done, _ = await asyncio.wait([bell, *self._tasks], timeout=60, return_when=asyncio.FIRST_COMPLETED)
            if not done or done - {bell}:
                bell.cancel()
                raise AssertionError(f"conversations ended or stand still: {done}")

    async def ended(self) -> None:
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)

    async def _talk(self, url: str, number: int) -> None:
        try:
            async with connect(url) as connection:
                client = Client(connection)
                await client.send("hello")
                await client.until("ready")
                await client.send("session.create")
                session = (await client.until("ok"))["session"]
                await client.send("subscribe", session=session, offset=0)
                while True:
                    await client.send("message.create", session=session, content="Hello " * 50)
                    seen = await client.until("response.completed")
                    self.offsets[session] = (seen["epoch"], seen["offset"])
                    await client.send("ack", session=session, offset=seen["offset"])
                    self.num_turns[number] += 1
                    self._turned.set()
        except (websockets.ConnectionClosed, OSError):
            return


async def resumed_at(url: str, session: str, epoch: str, offset: int) -> dict[str, str]:
    """Returns what a reader is told that comes back after the loss."""
    async with connect(url) as connection:
        client = Client(connection)
        await client.send("hello", resume=[{"session": session, "epoch": epoch, "offset": offset}])
        return await client.until("resumed")


async def go_on(url: str, session: str) -> None:
    """Has a turn on a restored log, or finds one under way: that which was open is finished by the new server."""
    async with connect(url) as connection:
        client = Client(connection)
        await client.send("hello")
        await client.until("ready")
        await client.send("message.create", session=session, content="Go on")
        await client.until("ok", "error")


class ReplicatedServer:
    def __init__(self, process: subprocess.Popen[str], url: str, own: Path) -> None:
        self.process = process
        self.url = url
        self._own = own

    def ask_litestream(self, method: str, path: str, body: object = None) -> Any:
        """Asks Litestream on its control socket."""
        sockets = self._own.glob("sessile-litestream-*/control.sock")  # of servers that were killed too
        path_of_socket = max(sockets, key=lambda path: path.stat().st_mtime)
        connection = http.client.HTTPConnection("litestream", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(str(path_of_socket))
        connection.request(method, path, json.dumps(body))
        answer = connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status == 200, content
        return content

    def sync(self, data: Path) -> None:
        self.ask_litestream("POST", "/sync", {"path": str(data / "journal.db"), "wait": True, "timeout": 60})

    def kill(self) -> None:
        """The loss of the machine: the copier dies first, so that there is no last sync."""
        os.kill(self.ask_litestream("GET", "/info")["pid"], signal.SIGKILL)
        self.process.kill()
        self.process.wait(60)


@contextmanager
def replicated(data: Path, own: Path, *flags: str, environment: Mapping[str, str] = {}) -> Iterator[ReplicatedServer]:
    """`own`: a folder for the server's temporary files, with a short name."""
    words = ["serve", "--engine", "sim", "--port", "0", "--data", str(data), "--sim-tokens-per-s", "500", *flags]
    with subprocess.Popen(
        [sys.executable, "app.py", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment, "TMPDIR": str(own)},
    ) as process:
        try:
            assert process.stdout is not None
            ready = re.search(r"ready: (\S+)/", process.stdout.readline())
            assert ready
            yield ReplicatedServer(process, ready[1], own)
        finally:
            process.kill()


def run(*words: str, environment: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "app.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def bring_keys(lost: Path, data: Path) -> None:
    """What an operator keeps apart from the replica."""
    data.mkdir(parents=True)
    for name in ("keys.db", "master.key"):
        shutil.copy(lost / name, data / name)


async def logs_in(data: Path, sessions: list[str]) -> dict[str, list[Record]]:
    """Every record of these sessions, read as a server reads them."""
    return await logs_of(Settings(data=str(data)), sessions)


async def logs_of(settings: Settings, sessions: list[str]) -> dict[str, list[Record]]:
    logs: dict[str, list[Record]] = {}
    async with connect_store(settings, lambda: UnixMs(0)) as store:
        for session in sessions:
            key, records = SessionKey(LOCAL, SessionId(session)), logs.setdefault(session, [])
            while page := await store.journal.read(key, after=len(records), limit=1000, bytes_max=1 << 24):
                if not page.records:
                    break
                records += page.records
    return logs
