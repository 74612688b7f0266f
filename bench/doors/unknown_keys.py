"""Requests without a valid key over all doors: what each costs the server, and whether anybody else notices.

    python -m bench.doors.unknown_keys --requests 100000 --flood-s 20

HTTP (routes that exist and that do not), WebSockets (a wrong key in the handshake and in hello) and gRPC, with no key,
a wrong one and a token, and bodies that are no JSON, of up to the door's limit, some of which never end. A body that
was parsed shows by its answer: 400 instead of 401 or 429.

**CPU.** The requests come one behind the other, each (but for gRPC's) on a connection of its own. A request's figure is
what the scheduler has accounted to all threads of the server's process between two of them (`schedstat`, nanoseconds;
exact for threads that sleep, as these do then; /proc/*/stat counts in hundredths of a second and would show nothing).
So it holds user and kernel time: accepting and closing the TCP connection, which nobody can leave out (a server that
does nothing else takes 0.07 ms of it), reading, writing; the work of the loopback device that the kernel does in the
name of who sends, acknowledgements too; what the request before it left behind; and whatever the process does beside
them, timers and collections. It is the dearest way to be asked: the caches are cold each time, and in a flood several
are taken in with one wake-up. How much of it other threads than the event loop's took is shown: it is gRPC's C core,
there. A client that gives up resets its connection: what it had not sent yet would be freed by the kernel in the
server's name, on loopback only.

**A flood.** Then `FLOOD` strangers at once send as fast as they get answers, from one address, for `--flood-s`, while
somebody with a key lists the models from another: each must be answered, and none late.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import random
import socket
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
import httpx

from bench.support import report, run_bench
from tests.support.doors.server_process import ServerProcess
from tests.support.percentiles import percentile
from transport.auth.authenticator import key_digest

GOOD: Final = "sk-of-the-bench"
CPU_MS_MAX: Final = 0.3
ANSWER_S: Final = 10.0
BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # as `transport.http.app` has it
HTTP: Final = (
    "POST /v1/chat/completions",
    "POST /v1/responses",
    "POST /v1/conversations",
    "PATCH /v1/sessions/x",
    "POST /v1/keys",
    "POST /v1/nothing",
    "PUT /nothing",
)
CREDENTIALS: Final = ("", "Bearer sk-wrong", "Bearer eyJhbGciOiJSUzI1NiJ9.e30.AAAA", "Basic YTpi")
GRPC_BYTES_MAX: Final = 1_000_000
HELLO_BYTES_MAX: Final = 64_000
FRAME_KEY: Final = b"\0\0\0\0"  # a mask of zeros
Door = Callable[[], Awaitable[str]]


FLOOD: Final = 64
LATE_MS: Final = 1_000.0


class Cpu(NamedTuple):
    """CPU time of a process, in ns."""

    every: int
    loop: int  # of the first thread

    @classmethod
    def of(cls, pid: int) -> Cpu:
        spent = {
            int(path.parent.name): int(path.read_text().split()[0])
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
        }
        return cls(sum(spent.values()), spent[pid])


class Strangers:
    """Who has no key. Each door answers with what became of one request."""

    def __init__(self, port: int, grpc_port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self._channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}")
        self._filler = b'{"model": [' + b"0," * (BODY_BYTES_MAX // 2)
        self.doors: dict[str, Door] = {"http": self.http, "handshake": self.handshake, "hello": self.hello}
        if grpc_port:
            self.doors["grpc"] = self.grpc

    def _body(self, most: int) -> bytes:
        """Of any order of size: as often below 1 kB as above 1 MB."""
        return self._filler[: int(most ** self._random.random())]

    async def _answer(self, data: bytes, *, frame: bytes = b"") -> str:
        """The status of what is written; with `frame` what becomes of that, behind a handshake."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        connected: socket.socket = writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            if frame and b" 101 " in head[:20]:
                writer.write(frame)
                error = await reader.readuntil(b"}")
                return "refused" if b"unauthorized" in error or b"rate_limited" in error else "other"
            return head.split(None, 2)[1].decode()
        finally:
            writer.transport.abort()

    async def http(self) -> str:
        method, path = self._random.choice(HTTP).split()
        credential, body = self._random.choice(CREDENTIALS), self._body(BODY_BYTES_MAX)
        lines = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        if credential:
            lines += f"Authorization: {credential}\r\n"
        length = len(body) * self._random.choice((1, 1, 2))  # a third are never whole
        return await self._answer(f"{lines}Content-Length: {length}\r\n\r\n".encode() + body)

    def _upgrade(self, *lines: str) -> bytes:
        head = (
            *("GET /v1/ws HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket"),
            *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", *lines, "", ""),
        )
        return "\r\n".join(head).encode()

    async def handshake(self) -> str:
        return await self._answer(self._upgrade(f"Authorization: {self._random.choice(CREDENTIALS[1:])}"))

    async def hello(self) -> str:
        body = b'{"type": "hello", "auth": "sk-wrong", "device": "' + b"x" * len(self._body(HELLO_BYTES_MAX)) + b'"}'
        short = len(body) < 126
        size = bytes((0x80 | len(body),)) if short else b"\xfe" + len(body).to_bytes(2, "big")
        return await self._answer(self._upgrade(), frame=b"\x81" + size + FRAME_KEY + body)

    async def grpc(self) -> str:
        credential = self._random.choice(CREDENTIALS)
        metadata = (("authorization", credential),) if credential else ()
        call = self._channel.unary_unary(f"/sessile.v1.Sessions/{self._random.choice(('Create', 'Send', 'Get'))}")
        try:
            await call(self._body(GRPC_BYTES_MAX), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"

    async def refused_by(self, door: str) -> str:
        """What became of one request; "late" where nothing did."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self.doors[door]()
        except TimeoutError:
            return "late"

    async def close(self) -> None:
        await self._channel.close()


REFUSED: Final = {"401", "429", "503", "refused", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}


async def list_models(url: str, waits_ms: list[float], stop: asyncio.Event) -> None:
    """Has a key and an address of its own, and a new connection each time; how long each answer took."""
    while not stop.is_set():
        began = time.monotonic()
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=url, transport=transport, timeout=60) as http:
            (await http.get("/v1/models", headers={"authorization": f"Bearer {GOOD}"})).raise_for_status()
        waits_ms.append((time.monotonic() - began) * 1000)
        await asyncio.sleep(0.1)


async def flood(strangers: Strangers, server: ServerProcess, seconds: float) -> dict[str, Any]:
    outcomes: collections.Counter[str] = collections.Counter()
    waits_ms: list[float] = []
    stop = asyncio.Event()

    async def one() -> None:
        while not stop.is_set():
            for door in strangers.doors:
                try:
                    outcome = await strangers.refused_by(door)
                except OSError:  # the connection itself is refused or cut: an answer too
                    outcome = "cut"
                outcomes[outcome if outcome in REFUSED or outcome == "cut" else "not refused"] += 1

    before = Cpu.of(server.pid)
    working = [asyncio.create_task(one()) for _ in range(FLOOD)]
    working.append(asyncio.create_task(list_models(f"http://127.0.0.1:{server.port}", waits_ms, stop)))
    await asyncio.sleep(seconds)
    stop.set()
    await asyncio.gather(*working)
    spent = Cpu.of(server.pid)
    return {
        "requests": outcomes.total(),
        "outcomes": dict(outcomes),
        "cpu_ms each": (spent.every - before.every) / 1e6 / outcomes.total(),
        "with a key, ms": {"p50": percentile(waits_ms, 0.5), "p99": percentile(waits_ms, 0.99), "worst": max(waits_ms)},
        "with a key, answered": len(waits_ms),
    }


async def attack(strangers: Strangers, pid: int, requests: int, seed: int) -> dict[str, Any]:
    chance, costs = random.Random(seed), collections.defaultdict[str, list[float]](list)
    beside: collections.Counter[str] = collections.Counter()
    outcomes: collections.Counter[str] = collections.Counter()
    for _ in range(requests):
        door = chance.choice(list(strangers.doors))
        before = Cpu.of(pid)
        outcome = await strangers.refused_by(door)
        outcomes[f"{door} {outcome}"] += 1
        spent = Cpu.of(pid)
        costs[door].append((spent.every - before.every) / 1e6)
        beside[door] += spent.every - before.every - (spent.loop - before.loop)
        outcomes["not refused"] += outcome not in REFUSED
    every = [cost for each in costs.values() for cost in each]
    return {
        "cpu_ms": {"p50": percentile(every, 0.5), "p99": percentile(every, 0.99)},
        "cpu_ms_by_door": {
            door: {
                "p50": percentile(each, 0.5),
                "p99": percentile(each, 0.99),
                "mean": sum(each) / len(each),
                "mean beside the loop's thread": beside[door] / 1e6 / len(each),
            }
            for door, each in sorted(costs.items())
        },
        "outcomes": dict(outcomes),
    }


async def main(options: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        keys = Path(folder) / "keys.toml"
        keys.write_text(f'[[keys]]\nid = "good"\ntenant = "acme"\nrole = "service"\nsha256 = "{key_digest(GOOD)}"\n')
        free.bind(("127.0.0.1", 0))
        grpc_port = int(free.getsockname()[1])
        free.close()
        flags = ("--engine", "sim", "--journal", "memory", "--keys", str(keys), "--grpc-port", str(grpc_port))
        with ServerProcess(*flags) as server:
            strangers = Strangers(server.port, grpc_port, options.seed)
            await attack(strangers, server.pid, min(200, options.requests), options.seed)
            result = await attack(strangers, server.pid, options.requests, options.seed + 1)
            flooded = result["flood"] = await flood(strangers, server, options.flood_s)
            await strangers.close()
    parsed = result["outcomes"]["not refused"] + flooded["outcomes"].get("not refused", 0)
    met = result["cpu_ms"]["p99"] <= CPU_MS_MAX and not parsed and flooded["with a key, ms"]["worst"] <= LATE_MS
    report("unknown_keys", {"requests": options.requests, "bar_ms": CPU_MS_MAX, "met": met, **result})
    return bool(met)


if __name__ == "__main__":
    run_bench(main, __doc__, positional=(), requests=100_000, seed=1, flood_s=20.0)
