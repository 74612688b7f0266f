"""Requests without a valid key over all doors: what each costs the server, and whether anybody else notices.

    python -m bench.doors.unknown_keys --requests 100000 --flood-s 20
    python -m bench.doors.unknown_keys --requests 4000 --only hello --flood-s 0

HTTP (routes that exist and that do not), WebSockets (a wrong key in the handshake and in hello) and gRPC, with no key,
a wrong one and a token, and bodies that are no JSON, of up to the door's limit, some of which never end. A body that
was parsed shows by its answer: 400 instead of 401 or 429.

**CPU.** The requests come one behind the other, each (but for gRPC's) on a connection of its own. A request's figure is
what the scheduler has accounted to all threads of the server's process from the one before it on (`schedstat`,
nanoseconds; read when the event loop's thread sleeps, which is when it is exact; /proc/*/stat counts in hundredths of a
second and would show nothing). So it holds user and kernel time: accepting and closing the TCP connection, which nobody
can leave out, reading, writing; the work of the loopback device that the kernel does in the name of who sends,
acknowledgements too; and whatever the process does beside them, timers and collections. That is the costliest case:
the caches are cold each time, and in a flood several are taken in with one wake-up. How much of it other threads
than the event loop's took is shown: it is gRPC's C core, there. A client that gives up resets its connection: what it
had not sent yet would be freed by the kernel in the server's name, on loopback only.

**Floors.** The same requests to servers that refuse everything without looking (`bench.doors.bare_doors`): what uvloop,
`websockets` and grpcio cost by themselves.

**A flood.** Then `FLOODERS` processes of `FLOOD` strangers each send as fast as they get answers, from one address, for
`--flood-s`, while somebody with a key lists the models from another: each must be answered, and none late.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import multiprocessing
import os
import random
import socket
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
import httpx

from bench.support import Option, free_ports, percentile, report, run_bench
from tests.support.doors.server_process import ServerProcess
from transport.auth.authenticator import key_digest

GOOD: Final = "sk-of-the-bench"
CPU_MS_MAX: Final = 0.3
ANSWER_S: Final = 10.0
BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # as `transport.http_api.app` has it
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


DOORS: Final = ("http", "handshake", "hello", "grpc")
FLOODERS: Final = 2
FLOOD: Final = 32
LATE_MS: Final = 1_000.0
RESTED_S: Final = 0.05  # for its thread to sleep again; later, what it still does counts as the next request's
THREADS_READ: Final = 500  # requests between two looks at which threads there are


class Spent(NamedTuple):
    """CPU time of a process, in ns."""

    every: int
    loop: int  # of the first thread


class CpuMeter:
    """Reads what the scheduler has accounted to the threads of a process."""

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._state = os.open(self._tasks / str(pid) / "stat", os.O_RDONLY)
        self._pid = pid
        self._files: dict[int, int] = {}
        self._reads = 0

    def rested(self) -> Spent:
        """When the event loop's thread sleeps."""
        until = time.monotonic() + RESTED_S
        while os.pread(self._state, 64, 0).rpartition(b")")[2][1:2] == b"R" and time.monotonic() < until:
            time.sleep(0)
        return self.spent()

    def spent(self) -> Spent:
        if self._reads % THREADS_READ == 0:
            for each in self._tasks.iterdir():
                if int(each.name) not in self._files:
                    self._files[int(each.name)] = os.open(each / "schedstat", os.O_RDONLY)
        self._reads += 1
        spent = {}
        for thread, file in list(self._files.items()):
            try:
                spent[thread] = int(os.pread(file, 64, 0).split()[0])
            except ProcessLookupError:  # the thread has ended
                os.close(self._files.pop(thread))
        return Spent(sum(spent.values()), spent[self._pid])

    def close(self) -> None:
        for file in (self._state, *self._files.values()):
            os.close(file)


class Ports(NamedTuple):
    http: int
    websocket: int  # where a first message has the key
    grpc: int


class Strangers:
    """Who has no key. Each door answers with what became of one request."""

    def __init__(self, ports: Ports, seed: int, only: str = "") -> None:
        self._ports = ports
        self._random = random.Random(seed)
        self._channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}")
        self._filler = memoryview(b'{"model": [' + b"0," * (BODY_BYTES_MAX // 2))
        self.doors: dict[str, Door] = {name: getattr(self, name) for name in DOORS if name == (only or name)}

    def _body(self, most: int) -> memoryview:
        """Of any order of size: as often below 1 kB as above 1 MB."""
        return self._filler[: int(most ** self._random.random())]

    async def _answer(self, data: bytes, *, body: bytes | memoryview = b"", frame: bytes = b"") -> str:
        """The status of what is written; with `frame` what becomes of that, behind a handshake."""
        port = self._ports.websocket if frame else self._ports.http
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connected: socket.socket = writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            writer.writelines((data, body))
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
        return await self._answer(f"{lines}Content-Length: {length}\r\n\r\n".encode(), body=body)

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
            await call(bytes(self._body(GRPC_BYTES_MAX)), metadata=metadata)
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


def flood_from_here(ports: Ports, seed: int, seconds: float, only: str, results: Any) -> None:
    """A process of strangers: sends what became of their requests."""

    async def send() -> collections.Counter[str]:
        outcomes: collections.Counter[str] = collections.Counter()
        strangers, until = Strangers(ports, seed, only), time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < until:
                for door in strangers.doors:
                    try:
                        outcome = await strangers.refused_by(door)
                    except OSError:  # the connection itself is refused or cut: an answer too
                        outcome = "cut"
                    outcomes[outcome if outcome in REFUSED or outcome == "cut" else "not refused"] += 1

        await asyncio.gather(*(one() for _ in range(FLOOD)))
        await strangers.close()
        return outcomes

    results.send(dict(asyncio.run(send())))


async def flood(ports: Ports, pid: int, options: argparse.Namespace) -> dict[str, Any]:
    outcomes: collections.Counter[str] = collections.Counter()
    waits_ms: list[float] = []
    stop, meter = asyncio.Event(), CpuMeter(pid)
    context = multiprocessing.get_context("spawn")
    before = meter.spent()
    beside = asyncio.create_task(list_models(f"http://127.0.0.1:{ports.http}", waits_ms, stop))
    flooders = []
    for number in range(FLOODERS):
        results, sending = context.Pipe(duplex=False)
        arguments = (ports, options.seed + 2 + number, options.flood_s, options.only, sending)
        flooders.append((context.Process(target=flood_from_here, args=arguments), results))
        flooders[-1][0].start()
    for process, results in flooders:
        outcomes.update(await asyncio.to_thread(results.recv))
        await asyncio.to_thread(process.join)
    stop.set()
    await beside
    spent = meter.spent()
    meter.close()
    return {
        "requests": outcomes.total(),
        "outcomes": dict(outcomes),
        "cpu_ms each": (spent.every - before.every) / 1e6 / outcomes.total(),
        "with a key, ms": {"p50": percentile(waits_ms, 0.5), "p99": percentile(waits_ms, 0.99), "worst": max(waits_ms)},
        "with a key, answered": len(waits_ms),
    }


class Attacked(NamedTuple):
    """CPU time by door, in ms: of all threads, and of those beside the event loop's."""

    costs: dict[str, list[float]]
    beside: dict[str, list[float]]
    outcomes: collections.Counter[str]

    @property
    def p99(self) -> float:
        return percentile([cost for each in self.costs.values() for cost in each], 0.99)

    def rows(self) -> dict[str, dict[str, float]]:
        return {
            door: {
                "requests": len(each),
                "p50": round(percentile(each, 0.5), 3),
                "p99": round(percentile(each, 0.99), 3),
                "mean": round(sum(each) / len(each), 3),
                "mean beside the loop's thread": round(sum(self.beside[door]) / len(each), 3),
            }
            for door, each in sorted(self.costs.items())
        }


async def attack(strangers: Strangers, pid: int, requests: int, seed: int) -> Attacked:
    chance, doors, meter = random.Random(seed), list(strangers.doors), CpuMeter(pid)
    done = Attacked(collections.defaultdict(list), collections.defaultdict(list), collections.Counter())
    before = meter.rested()
    for _ in range(requests):
        door = chance.choice(doors)
        outcome = await strangers.refused_by(door)
        spent = meter.rested()
        every, loop = spent.every - before.every, spent.loop - before.loop
        done.costs[door].append(every / 1e6)
        done.beside[door].append((every - loop) / 1e6)
        done.outcomes[f"{door} {outcome}"] += 1
        done.outcomes["not refused"] += outcome not in REFUSED
        before = spent
    meter.close()
    return done


async def measured(ports: Ports, pid: int, requests: int, options: argparse.Namespace) -> Attacked:
    """Behind some that are not counted, by which the process has taken its size."""
    strangers = Strangers(ports, options.seed, options.only)
    try:
        await attack(strangers, pid, min(200, requests), options.seed)
        return await attack(strangers, pid, requests, options.seed + 1)
    finally:
        await strangers.close()


@contextmanager
def serving(keys: Path) -> Iterator[tuple[ServerProcess, Ports]]:
    keys.write_text(f'[[keys]]\nid = "good"\ntenant = "acme"\nrole = "service"\nsha256 = "{key_digest(GOOD)}"\n')
    (grpc_port,) = free_ports(1)
    flags = ("--engine", "sim", "--journal", "memory", "--keys", str(keys), "--grpc-port", str(grpc_port))
    with ServerProcess(*flags) as server:
        yield server, Ports(server.port, server.port, grpc_port)


@contextmanager
def serving_bare() -> Iterator[tuple[ServerProcess, Ports]]:
    websocket_port, grpc_port = free_ports(2)
    flags = ("--websocket-port", str(websocket_port), "--grpc-port", str(grpc_port))
    with ServerProcess(*flags, program=("-m", "bench.doors.bare_doors")) as server:
        yield server, Ports(server.port, websocket_port, grpc_port)


async def main(options: argparse.Namespace) -> bool:
    flooded: dict[str, Any] = {}
    begun_at = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "keys.toml") as (server, ports):
        ours = await measured(ports, server.pid, options.requests, options)
        if options.flood_s:
            flooded = await flood(ports, server.pid, options)
    with serving_bare() as (server, ports):
        floors = await measured(ports, server.pid, options.floor_requests, options)
    parsed = ours.outcomes["not refused"] + flooded.get("outcomes", {}).get("not refused", 0)
    kept_out = bool(flooded) and flooded["with a key, ms"]["worst"] > LATE_MS
    met = ours.p99 <= CPU_MS_MAX and not parsed and not kept_out
    figures = {
        "requests": options.requests,
        "seconds": time.monotonic() - begun_at,
        "bar_ms": CPU_MS_MAX,
        "met": met,
        "cpu_ms_p99": ours.p99,
        **{f"cpu_ms {door}": row for door, row in ours.rows().items()},
        **{f"cpu_ms {door}, bare": row for door, row in floors.rows().items()},
        "outcomes": dict(ours.outcomes),
        "flood": flooded,
    }
    report("unknown_keys", figures)
    return bool(met)


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        positional=(),
        requests=100_000,
        floor_requests=Option(4_000, "to the bare servers"),
        seed=1,
        flood_s=20.0,
        only=Option("", "one door", ("", *DOORS)),
    )
