"""Hostile requests of 70 kinds, with and without a key: what the server keeps of them, and how long they hold its loop.

    python -m bench.doors.hostile --requests 100000
    python -m bench.doors.hostile --requests 100000 --kinds 1-30
    python -m bench.doors.hostile --requests 300 --quiet-s 5 --only cut

Each kind is a request as nobody sends it in good faith: bodies that are deep, wide, long in their keys, compressed,
broken off; answers that nobody reads; streams that are opened and left; names made up anew each time; WebSocket frames
and gRPC calls of such kinds. The requests are shared out among all kinds, one kind after the other, `--at-once`
requests at a time. Before, each kind is sent `WARM` times. `--kinds` runs a part, with as many of each as the whole run
has.

The whole storm comes twice. The first fills what has a bound: caches, and the interpreter's arenas, which are as large
as the busiest moment needed. What the second adds, a third would add too. The bar holds for each of them.

Figures: memory of the server with its children before, and after each storm and `--quiet-s` of quiet, and at most; of
each kind of each storm, printed as it ends, the seconds, how often the loop came over 100 ms late by the server's own
histogram, the longest hold that its watchdog named, memory, and what became of the requests.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import re
import socket
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import grpc
import grpc.aio
import httpx
import psutil

from bench.support import Option, is_faultless, report, run_bench
from deploy.cluster import free_port
from testbed.server_process import ServerProcess
from transport.auth.authenticator import key_digest

GOOD: Final = "sk-of-the-bench"
WARM: Final = 60
STORMS: Final = 2
ANSWER_S: Final = 60.0
GROWTH_MAX: Final = 0.10
HELD_MAX_S: Final = 0.1
STALLED: Final = re.compile(r'"running": ?"([^"]*)"')
BUCKET: Final = re.compile(r'^sessile_loop_delay_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
SAMPLE_S: Final = 0.5
IDLE_S: Final = 2.0  # sessions that were begun leave memory within the quiet
LIMITS: Final = "[default]\n"  # no ceilings: what is refused costs nothing
CHAT: Final = "POST /v1/chat/completions"
RESPONSES: Final = "POST /v1/responses"
Leaving = Literal["read", "cut", "unread", "cut_on", "unread_on"]  # `_on`: once the status has come
Run = Callable[["Stranger", int], Awaitable[str]]


class Kind(NamedTuple):
    name: str
    run: Run


def body(**more: Any) -> bytes:
    return json.dumps({"model": "simulated", "messages": [{"role": "user", "content": "hi"}], **more}).encode()


def nested(left: str, right: str, count: int) -> bytes:
    return b'{"model": "simulated", "messages": ' + (left * count + "1" + right * count).encode() + b"}"


SHORT: Final = {"max_tokens": 4}  # what is measured is the way in
KEYS: Final = ",".join(f'"{"k" * 200}{number}": 1' for number in range(2_000))
BODIES: Final[dict[str, bytes]] = {
    "deep lists": nested("[", "]", 100_000),
    "deep objects": nested('{"a":', "}", 60_000),
    "wide object": ("{" + KEYS + "}").encode(),
    "wide list": b'{"messages": [' + b"1," * 500_000 + b"1]}",
    "long key": b'{"' + b"k" * 2_000_000 + b'": [' + b"[]," * 1_000 + b"[]]}",
    "long keys, deep": (('{"' + "k" * 20_000 + '":') * 60 + "1" + "}" * 60).encode(),
    "long text": body(messages=[{"role": "user", "content": "x" * 2_000_000}]),
    "escapes": b'{"messages": "' + b"\\u0041" * 300_000 + b'"}',
    "half characters": b'{"messages": "' + b"\\ud800" * 100_000 + b'"}',
    "no UTF-8": b'{"messages": "' + b"\xff" * 500_000 + b'"}',
    "numbers": b'{"seed": ' + b"9" * 200_000 + b"}",
    "no JSON": b"<" * 500_000,
    "many messages": body(messages=[{"role": "user", "content": "x"}] * 5_000),
    "many parts": body(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * 256}] * 20, **SHORT),
    "many tools": body(tools=[{"type": "function", "function": {"name": f"f{n}"}} for n in range(128)]),
    "deep schema": body(
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"allOf": [{"not": {}}] * 2_000}}}]
    ),
    "wide biases": body(logit_bias={str(n): 1 for n in range(1_024)}, **SHORT),
    "many stops": body(stop=["x" * 256] * 16, **SHORT),
    "same key twice": b'{"model": "simulated",' + b'"messages": [],' * 10_000 + b'"n": 1}',
}


def http(
    line: str, data: bytes = b"", *fields: str, key: bool = True, leave: Leaving = "read", sent: int | None = None
) -> Run:
    """A request with NUMBER in its line, fields and body replaced by a number; `sent`: so many bytes of its body."""

    async def run(stranger: Stranger, number: int) -> str:
        lines = [f"{line} HTTP/1.1", "host: localhost", "content-type: application/json", *fields]
        if key:
            lines.append(f"authorization: Bearer {GOOD}")
        if not any(each.lower().startswith("transfer-encoding") for each in fields):
            lines.append(f"content-length: {len(data)}")
        head = "\r\n".join([*lines, "", ""]).replace("NUMBER", str(number)).encode()
        return await stranger.exchange(head + data[:sent], leave)

    return run


def upgrade(*frames: bytes, key: bool = True, leave: Leaving = "read") -> Run:
    """A WebSocket, and messages on it."""

    async def run(stranger: Stranger, number: int) -> str:
        lines = ["GET /v1/ws HTTP/1.1", "host: localhost", "connection: upgrade", "upgrade: websocket"]
        lines += ["sec-websocket-version: 13", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA=="]
        lines += [f"authorization: Bearer {GOOD}"] if key else []
        head = "\r\n".join([*lines, "", ""]).encode()
        return await stranger.exchange(head, leave, *frames)

    return run


def frame(data: bytes, opcode: int = 0x81) -> bytes:
    """One frame, masked with zeros."""
    size = bytes((0x80 | len(data),)) if len(data) < 126 else b"\xff" + len(data).to_bytes(8, "big")
    return bytes((opcode,)) + size + b"\0\0\0\0" + data


def rpc(method: str, data: bytes, *, key: bool = True, streams: bool = False) -> Run:
    """A gRPC call; of one that streams the first answer, and then it is left."""

    async def run(stranger: Stranger, number: int) -> str:
        metadata = (("authorization", f"Bearer {GOOD}"),) if key else ()
        channel: Any = stranger.channel
        try:
            if streams:
                call = channel.unary_stream(method)(data, metadata=metadata)
                await call.read()
                call.cancel()
            else:
                await channel.unary_unary(method)(data, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"

    return run


def kinds() -> Iterator[Kind]:
    small = body(**SHORT)
    stream = body(stream=True, max_tokens=500, ignore_eos=True)
    for name, data in BODIES.items():
        yield Kind(name, http(CHAT, data))
    for name in ("deep lists", "long key", "wide object", "long text"):
        yield Kind(f"{name}, no key", http(CHAT, BODIES[name], key=False))
        yield Kind(f"{name}, cut", http(CHAT, BODIES[name], leave="cut", sent=len(BODIES[name]) // 2))
        yield Kind(f"{name}, Responses", http(RESPONSES, BODIES[name]))
    packed = gzip.compress(b"[" * 4_000_000)
    yield Kind("compressed", http(CHAT, packed, "content-encoding: gzip"))
    yield Kind("compressed, cut", http(CHAT, packed, "content-encoding: gzip", leave="cut", sent=len(packed) - 9))
    yield Kind("chunks, cut", http(CHAT, b"fffff\r\n" + b"x" * 1_000, "transfer-encoding: chunked", leave="cut"))
    yield Kind("chunks of one byte", http(CHAT, b"1\r\nx\r\n" * 5_000 + b"0\r\n\r\n", "transfer-encoding: chunked"))
    yield Kind("stream, unread", http(CHAT, stream, leave="unread"))
    yield Kind("stream, left", http(CHAT, stream, leave="cut"))
    yield Kind("16 choices, left", http(CHAT, body(stream=True, n=16, temperature=1, max_tokens=200), leave="cut"))
    short = b'{"model": "simulated", "input": "x", "background": true, "max_output_tokens": 4}'
    yield Kind("background", http(RESPONSES, short))
    yield Kind("half a head", http("GET /v1/models", b"", "x: " + "y" * 2_000, leave="cut"))
    yield Kind("long field", http("GET /v1/models", b"", "x: " + "y" * 60_000))
    yield Kind("many fields", http("GET /v1/models", b"", *(f"x{n}: y" for n in range(500))))
    yield Kind("long path", http("GET /" + "a" * 30_000))
    yield Kind("spellings of a file", http("GET /" + "./" * 20 + "chat.js?NUMBER", key=False))
    yield Kind("paths made up", http("GET /v1/sessions/sNUMBER"))
    yield Kind("logs made up", http("GET /v1/sessions/sNUMBER/events", leave="cut"))
    yield Kind("users made up", http("GET /v1/sessions", b"", "x-sessile-user: uNUMBER"))
    yield Kind("keys made up", http(CHAT, small, "authorization: Bearer sk-NUMBER", key=False))
    yield Kind("tokens made up", http(CHAT, small, "authorization: Bearer e30.e30.NUMBER", key=False))
    yield Kind("repeats made up", http(CHAT, small, "idempotency-key: kNUMBER"))
    yield Kind("ids made up", http(CHAT, stream, "x-sessile-event-ids: 1", "last-event-id: e.rNUMBER.000000000000:1"))
    yield Kind("shares made up", http("GET /v1/shares/tNUMBER", key=False))
    yield Kind("search", http("GET /v1/sessions/search?q=wordNUMBER"))
    yield Kind("files, cut", http("POST /v1/files", b"--b\r\ncontent-disposition: form-data", leave="cut"))
    yield Kind("moderations", http("POST /v1/moderations", b'{"input": ["' + b"\\u0130" * 4_000 + b'"]}'))
    yield Kind("commands", http("POST /v1/commands", BODIES["long keys, deep"]))
    yield Kind("h2c", http(CHAT, small, "connection: upgrade", "upgrade: h2c"))
    yield Kind("pipelined", http("GET /healthz", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50, key=False))
    yield Kind("socket, left", upgrade(leave="cut"))
    yield Kind("socket, no key", upgrade(frame(b'{"type": "hello"}'), key=False))
    yield Kind("socket, long first", upgrade(frame(b'{"type": "hello", "auth": "' + b"x" * 60_000 + b'"}'), key=False))
    yield Kind("socket, deep", upgrade(frame(b'{"type":' + b"[" * 50_000)))
    yield Kind("socket, long key", upgrade(frame(b'{"' + b"k" * 200_000 + b'": [' + b"[]," * 500 + b"[]]}")))
    yield Kind("socket, binary", upgrade(frame(b"\x9f" * 1_000, 0x82)))
    yield Kind("socket, half a frame", upgrade(frame(b"x" * 10_000)[:500], leave="cut"))
    yield Kind("socket, pings", upgrade(*[frame(b"x", 0x89)] * 200, leave="unread"))
    yield Kind("health watched", rpc("/grpc.health.v1.Health/Watch", b"", key=False, streams=True))
    yield Kind("gRPC, no message", rpc("/sessile.v1.Sessions/Create", b"\xff" * 100_000))
    yield Kind("gRPC, no key", rpc("/sessile.v1.Sessions/Create", b"x" * 500_000, key=False))
    yield Kind("gRPC, nulls", rpc("/sessile.v1.Sessions/Create", b"\x22" + b"\x00" * 200_000))


class Stranger:
    """Sends requests to one server."""

    def __init__(self, port: int, grpc_port: int) -> None:
        self._port = port
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}")
        self._unread: list[asyncio.StreamWriter] = []

    async def exchange(self, data: bytes, leave: Leaving, *frames: bytes) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        made: socket.socket = writer.get_extra_info("socket")
        if leave == "unread":
            writer.writelines((data, *frames))
            self._leave_unread(reader, writer)
            return "unread"
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            writer.write(data)
            if leave == "cut":
                await writer.drain()
                return "cut"
            status = (await reader.readuntil(b"\r\n\r\n")).split(None, 2)[1].decode()
            if leave == "unread_on":
                self._leave_unread(reader, writer)
                return status
            for each in frames:
                writer.write(each)
            if frames:
                await reader.read(65_536)
            return status
        finally:
            if writer not in self._unread:
                writer.transport.abort()

    def _leave_unread(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        self._unread.append(writer)
        if len(self._unread) > 64:
            self._unread.pop(0).transport.abort()

    async def send(self, kind: Kind, number: int) -> str:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await kind.run(self, number)
        except TimeoutError:
            return "no answer"
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return "closed"

    def leave_unread(self) -> None:
        """Cuts the connections of which nothing is read."""
        for writer in self._unread:
            writer.transport.abort()
        self._unread.clear()

    async def close(self) -> None:
        self.leave_unread()
        await self.channel.close()


def memory(pid: int) -> int:
    process = psutil.Process(pid)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


class KindReport(NamedTuple):
    """The figures of one kind: how many requests, how long, and what they did to the loop and the memory."""

    name: str
    requests: int
    seconds: float
    loop_over_100_ms: float
    longest_hold_ms: float
    rss_mib: float
    outcomes: dict[str, int]

    def described(self) -> str:
        held = f"loop held {self.loop_over_100_ms:.0f} x, longest {self.longest_hold_ms:.0f} ms"
        did = f"{self.name:24} {self.requests} in {self.seconds:.1f} s"
        return f"{did}, {held}, {self.rss_mib:.0f} MiB, {self.outcomes}"


async def repeat(stranger: Stranger, kind: Kind, requests: int, at_once: int) -> dict[str, int]:
    """Sends a kind so often; returns what became of it."""
    outcomes, numbers = Counter[str](), iter(range(requests))

    async def one() -> None:
        for number in numbers:
            outcomes[await stranger.send(kind, number)] += 1

    await asyncio.gather(*(one() for _ in range(at_once)))
    stranger.leave_unread()  # else what comes behind waits for slots
    return dict(outcomes)


class Watch:
    """Reads how often and how long the loop of a server was held since it was asked before."""

    def __init__(self, metrics_port: int, log: Path) -> None:
        self._port = metrics_port
        self._log = log
        self._late = dict[float, float]()
        self._lines = 0

    async def held(self) -> tuple[float, float]:
        """How many beats came over `HELD_MAX_S` late, and the longest hold that the watchdog named, in ms."""
        now = await loop_delays(self._port)
        late = {bound: many - self._late.get(bound, 0.0) for bound, many in now.items()}
        lines = self._log.read_text(errors="replace").splitlines()
        told = (json.loads(line) for line in lines[self._lines :] if '"loop_stalled"' in line)
        longest = max((float(line["stalled_ms"]) for line in told), default=0.0)
        self._late, self._lines = now, len(lines)
        return max(late.values()) - max(many for bound, many in late.items() if bound <= HELD_MAX_S), longest


async def loop_delays(port: int) -> dict[float, float]:
    """Returns for each upper bound, in seconds, how often the loop was at most so late."""
    async with httpx.AsyncClient(timeout=30) as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    return {float(bound): float(count) for bound, count in BUCKET.findall(text)}


def stalls(log: str) -> dict[str, int]:
    """Returns what held the loop, by the three innermost calls, the most frequent first."""
    lines = (STALLED.search(line) for line in log.splitlines() if '"loop_stalled"' in line)
    return dict(Counter(" < ".join(line[1].split(" < ")[:3]) for line in lines if line).most_common())


async def main(options: argparse.Namespace) -> bool:
    every = [kind for kind in kinds() if options.only in kind.name]
    first, _, last = options.kinds.partition("-")
    chosen = every[int(first or 1) - 1 : int(last or len(every))]
    each = -(-options.requests // len(every))
    grpc_port, metrics_port = free_port(), free_port()
    rows = list[KindReport]()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        keys.write_text(f'[[keys]]\nid = "good"\ntenant = "acme"\nrole = "service"\nsha256 = "{key_digest(GOOD)}"\n')
        limits = Path(folder) / "limits.toml"
        limits.write_text(LIMITS)
        flags = ["--limits", str(limits), "--keys", str(keys), "--grpc-port", str(grpc_port)]
        flags += ["--metrics-port", str(metrics_port), "--loop-stall-ms", "100", "--idle-s", str(IDLE_S)]
        flags += ["--log-level", "warning", "--log-format", "json"]
        log = Path(folder) / "log"
        with ServerProcess("--engine", "sim", *flags, log=log) as server:
            stranger, watch = Stranger(server.port, grpc_port), Watch(metrics_port, log)
            for kind in chosen:
                await repeat(stranger, kind, WARM, options.at_once)
            await asyncio.sleep(options.quiet_s)
            await watch.held()
            sizes, most = [memory(server.pid)], 0
            for _ in range(STORMS):
                for number, kind in enumerate(chosen, int(first or 1)):
                    began = time.monotonic()
                    work = asyncio.create_task(repeat(stranger, kind, each, options.at_once))
                    while not (await asyncio.wait((work,), timeout=SAMPLE_S))[0]:
                        most = max(most, memory(server.pid))
                    rss = memory(server.pid)
                    most = max(most, rss)
                    row = KindReport(
                        kind.name, each, time.monotonic() - began, *await watch.held(), rss / 2**20, work.result()
                    )
                    rows.append(row)
                    print(f"{number:3} {row.described()}", flush=True)
                await asyncio.sleep(options.quiet_s)
                sizes.append(memory(server.pid))
            await stranger.close()
        held_by = stalls(log.read_text(errors="replace"))
    held = sum(row.loop_over_100_ms for row in rows)
    growth = [after / before - 1 for before, after in itertools.pairwise(sizes)]
    faults = [f"memory grew by {each:.1%} in storm {n}" for n, each in enumerate(growth, 1) if each > GROWTH_MAX]
    faults += [f"the loop was held over {HELD_MAX_S} s {held:.0f} times"] if held else []
    faults += [f"no answer to {row.name!r}" for row in rows if row.outcomes.get("no answer")]
    report(
        "hostile",
        {
            "kinds": len(chosen),
            "requests": each * len(rows),
            "seconds": sum(row.seconds for row in rows),
            "rss_mib_quiet": [round(size / 2**20) for size in sizes],
            "rss_mib_at_most": most / 2**20,
            "growth": [round(each, 3) for each in growth],
            "loop_over_100_ms": held,
            "loop_held_by": held_by,
            "slowest_s": {row.name: round(row.seconds, 1) for row in sorted(rows, key=lambda row: -row.seconds)[:5]},
            "verdict": "met" if not faults else "NOT MET",
        },
    )
    return is_faultless(faults)


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        requests=100_000,
        at_once=Option(16, "requests under way"),
        quiet_s=Option(60.0, "before memory is read"),
        kinds=Option("", "from-to, by number: 1-30, 31-, a part of a run that is too long for once"),
        only=Option("", "kinds with this in their names"),
    )
