"""Clients that mean no good: generated frames, giants, deep nests, half-open and slow sockets, floods.

    python -m bench.moderation.hostile --frames 100000 --seed 1

Every kind of misbehaviour is played twice: a small round that brings the server's memory to where it works, then the
full one. After each kind: the server still answers, every connection ended with a code that fits what it did (or lives
and answers), every command that was read got exactly one answer, and in the end its resident memory is within 5% of
what it was after the small round. The client is this process and writes its own WebSocket frames.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgpack
import psutil

from bench.support import report, run_bench
from tests.support.doors.server_process import ServerProcess

Outcome = collections.Counter[str]
CLOSED_HOW = {1000, 1002, 1003, 1007, 1009, 4400, 4408, 4412}
FIELDS = (
    *("type", "id", "session", "offset", "epoch", "content", "resume", "auth", "limit", "after", "title", "metadata"),
    *("tools", "parent_id", "seed", "stop", "queue", "respond", "item_id", "response_id", "call_id", "output"),
)
TYPES = (
    *("hello", "subscribe", "unsubscribe", "ack", "ping", "pong", "session.create", "message.create", "message.edit"),
    *("response.create", "response.cancel", "tool.output", "session.update", "session.delete", "session.get"),
    *("session.list", "session.warm", "event", "nonsense"),
)
PARALLEL = 32
SLOW_AT_ONCE = 12
SETTLE_S = 12.0  # the server's sweeps have been through
ANSWER_S = 45.0
SLOW_S = 37.0  # the server's 30 s, the 5 s that it gives a close, and some


class Peer:
    """One connection that writes what it likes and reads whole frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, encoding: str) -> None:
        self.reader = reader
        self.writer = writer
        self.encoding = encoding

    @classmethod
    async def dial(cls, port: int, encoding: str = "json") -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            (
                f"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                f"Sec-WebSocket-Protocol: sessile.v1+{encoding}\r\n\r\n"
            ).encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in head:
            raise RuntimeError(f"no handshake: {head!r}")
        return cls(reader, writer, encoding)

    def send(self, message: Any) -> None:
        if self.encoding == "json":
            self.write(0x81, json.dumps(message).encode())
        else:
            self.write(0x82, msgpack.packb(message))

    def write(self, first_byte: int, data: bytes, length: int | None = None) -> None:
        """A masked frame (with zeros); `length` may lie about the data."""
        length = len(data) if length is None else length
        if length < 126:
            head = bytes((first_byte, 0x80 | length))
        elif length < 65536:
            head = struct.pack("!BBH", first_byte, 0x80 | 126, length)
        else:
            head = struct.pack("!BBQ", first_byte, 0x80 | 127, length)
        self.writer.write(head + b"\0\0\0\0" + data)

    async def next(self) -> dict[str, Any] | int:
        """The next message, or the close code (1006: none came)."""
        try:
            while True:
                first, second = await self.reader.readexactly(2)
                length = second & 127
                if length > 125:
                    length = int.from_bytes(await self.reader.readexactly(2 if length == 126 else 8))
                data = await self.reader.readexactly(length)
                if first == 0x88:
                    return int.from_bytes(data[:2])
                if first in (0x81, 0x82):
                    message: dict[str, Any] = json.loads(data) if first == 0x81 else msgpack.unpackb(data)
                    return message
        except (asyncio.IncompleteReadError, ConnectionError):
            return 1006

    async def closed(self) -> int:
        while True:
            message = await self.next()
            if isinstance(message, int):
                return message

    async def hello(self, **fields: Any) -> None:
        self.send({"type": "hello", **fields})
        said = []
        while not isinstance(message := await self.next(), int):
            if message["type"] == "ready":
                return
            said.append(message)
        raise RuntimeError(f"closed with {message} instead of ready: {said}")

    def cut(self) -> None:
        self.writer.transport.abort()


# -- generated frames --------------------------------------------------------------------------------------------------


def value(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(12 if depth < 4 else 8):
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2:
            return rng.choice((0, 1, -1, 2**31, 2**53, -(2**60), rng.randrange(1 << 16)))
        case 3:
            return rng.choice((0.5, -1e300, 1e-9, 3.0))
        case 4 | 5:
            return "".join(rng.choices('aé日\x00\n"\\ ses_0', k=rng.randrange(20)))
        case 6:
            return rng.choice(TYPES)
        case 7:
            return f"ses_{rng.randrange(50)}"
        case 8 | 9:
            return [value(rng, depth + 1) for _ in range(rng.randrange(5))]
        case _:
            return {rng.choice(FIELDS): value(rng, depth + 1) for _ in range(rng.randrange(5))}


def frame(rng: random.Random) -> dict[str, Any]:
    """Mostly a frame of a known type with fields that may be right or wrong."""
    made: dict[str, Any] = {name: value(rng) for name in rng.sample(FIELDS, rng.randrange(1, 7))}
    if rng.random() < 0.95:
        made["type"] = rng.choice(TYPES[1:])
    if rng.random() < 0.7:
        made["session"] = f"ses_{rng.randrange(50)}"
    if rng.random() < 0.8:
        made["id"] = f"id-{rng.randrange(1 << 40)}"
    if made.get("type") in ("message.create", "message.edit") and rng.random() < 0.5:
        made.update(content="Say something.", max_output_tokens=2, respond=rng.random() < 0.2)
    return made


def messages(rng: random.Random, count: int) -> Iterator[tuple[int, bytes, int]]:
    """(first byte, payload, frames in it) until `count` frames are made; a few messages are not frames at all."""
    made = 0
    while made < count:
        luck = rng.random()
        binary = rng.random() < 0.5
        if luck < 0.01:
            yield (0x82 if binary else 0x81), rng.randbytes(rng.randrange(200)), 1
            made += 1
            continue
        frames = [frame(rng) for _ in range(rng.choice((1, 1, 1, 8)))]
        body = frames[0] if len(frames) == 1 else frames
        if luck < 0.02:  # cut or flipped on its way
            data = bytearray(json.dumps(body).encode())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            yield 0x81, bytes(data), len(frames)
        elif luck < 0.03:
            yield 0x82, msgpack.packb(body), len(frames)
        else:
            yield 0x81, json.dumps(body).encode(), len(frames)
        made += len(frames)


async def generated(port: int, rng: random.Random, count: int, outcome: Outcome) -> None:
    """Frames of every kind, on as many connections as it takes: a bad frame ends one, the next goes on."""
    stream = messages(rng, count)
    exhausted = False

    async def one() -> None:
        nonlocal exhausted
        peer = await Peer.dial(port)
        if rng.random() < 0.95:
            await peer.hello(resume=[{"session": f"ses_{rng.randrange(50)}"}])
        code: int | None = None
        while code is None and not exhausted:
            # A few at a time, then a ping: its pong says that the server has looked at them all and carries on.
            for _ in range(rng.randrange(1, 20)):
                first_byte, data, frames = next(stream, (0, b"", 0))
                if not first_byte:
                    exhausted = True
                    break
                peer.write(first_byte, data)
                outcome["frames"] += frames
            peer.send({"type": "ping"})
            code = await asyncio.wait_for(until_pong(peer, outcome), ANSWER_S)
        if code is None:
            peer.write(0x88, b"\x03\xe8")
            code = await asyncio.wait_for(peer.closed(), ANSWER_S)
        outcome[f"closed {code}"] += 1
        peer.writer.close()

    async def several() -> None:
        while not exhausted:
            await one()

    await asyncio.gather(*(several() for _ in range(PARALLEL)))
    check(outcome, {f"closed {code}" for code in CLOSED_HOW} | {"frames", "answers", "refusals", "events"})


async def until_pong(peer: Peer, outcome: Outcome) -> int | None:
    """Reads on to a pong, or to the close code."""
    while True:
        message = await peer.next()
        if isinstance(message, int):
            return message
        match message["type"]:
            case "pong":
                return None
            case "ok":
                outcome["answers"] += 1
            case "error":
                outcome["refusals"] += 1
            case "event":
                outcome["events"] += 1


# -- single misdeeds ---------------------------------------------------------------------------------------------------


async def expect(port: int, outcome: Outcome, code: int, *frames: tuple[int, bytes, int | None]) -> None:
    """Says hello, sends the frames, and must be closed with `code`."""
    peer = await Peer.dial(port)
    await peer.hello()
    for first_byte, data, length in frames:
        peer.write(first_byte, data, length)
    got = await asyncio.wait_for(peer.closed(), ANSWER_S)
    outcome[f"{code} as it should" if got == code else f"WRONG: {got} instead of {code}"] += 1
    peer.writer.close()


async def giants(port: int, rng: random.Random, count: int, outcome: Outcome) -> None:
    megabyte = b"x" * (1 << 20)
    for _ in range(count):
        await expect(port, outcome, 1009, (0x81, megabyte * 3, None))
        await expect(port, outcome, 1009, (0x81, b"", 1 << 62))
        await expect(port, outcome, 1009, (0x01, megabyte[:-10], None), (0x80, b"y" * 20, None))
    check(outcome, {"1009 as it should"})


async def nests(port: int, rng: random.Random, count: int, outcome: Outcome) -> None:
    for _ in range(count):
        depth = rng.randrange(65, 200_000)
        await expect(port, outcome, 4400, (0x81, b'{"type":"ping","x":' + b"[" * depth + b"]" * depth + b"}", None))
        await expect(port, outcome, 4400, (0x81, b'{"a":' * depth, None))
        await expect(port, outcome, 4400, (0x81, b'{"type":"ping","x":[' + b"0," * 200_000 + b"0]}", None))
        await expect(port, outcome, 4400, (0x81, b"[" + b'{"type":"ping"},' * 300 + b'{"type":"ping"}]', None))
    check(outcome, {"4400 as it should"})


async def wrong_types(port: int, rng: random.Random, count: int, outcome: Outcome) -> None:
    """Well-formed commands with one wrong field: each is answered under its id, and names the field."""
    peer = await Peer.dial(port)
    await peer.hello()
    wrong = (
        ("session.create", {"title": 3}),
        ("session.create", {"metadata": [1]}),
        ("session.create", {"metadata": {"k": 2**60}}),
        ("session.get", {"session": "no such characters!"}),
        ("message.create", {"session": "s", "content": {"text": "x"}}),
        ("message.create", {"session": "s", "content": "x", "temperature": "hot"}),
        ("subscribe", {"session": "s", "offset": "1"}),
        ("session.list", {"limit": 10**6}),
    )
    for number in range(count):
        kind, fields = rng.choice(wrong)
        peer.send({"type": kind, "id": str(number), **fields})
        answer = await asyncio.wait_for(peer.next(), ANSWER_S)
        good = isinstance(answer, dict) and answer.get("id") == str(number) and answer["type"] == "error"
        good = good and answer["error"]["code"] == "invalid_request" and bool(answer["error"]["param"])  # type: ignore[index]
        outcome["refused by name" if good else f"WRONG: {answer}"] += 1
    peer.writer.close()
    check(outcome, {"refused by name"})


async def half_open(port: int, rng: random.Random, count: int, outcome: Outcome) -> None:
    """Connections that stop in the middle of something; those that stay are ended by the server in its own time."""

    async def silent(data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(), ANSWER_S)
        outcome["408" if b" 408 " in answer else f"WRONG: {answer[:60]!r}"] += 1
        writer.close()

    async def mute() -> None:
        peer = await Peer.dial(port)
        code = await asyncio.wait_for(peer.closed(), ANSWER_S)
        outcome["hello in time or 4400" if code == 4400 else f"WRONG: {code}"] += 1
        peer.writer.close()

    async def torn() -> None:
        peer = await Peer.dial(port)
        await peer.hello(resume=[{"session": "ses_1", "offset": 0}])
        peer.writer.write(bytes((0x81, 0x80 | 126, 0xFF, 0xFF)) + b"\0\0\0\0half of a fr")
        await peer.writer.drain()
        peer.cut()
        outcome["torn"] += 1

    starts = (b"", b"G", b"GET /v1/ws HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: y")
    for wave in waves(count):
        await asyncio.gather(*(call for _ in range(wave) for call in (silent(rng.choice(starts)), mute(), torn())))
    check(outcome, {"408", "hello in time or 4400", "torn"})


async def slow_readers(port: int, rng: random.Random, count: int, outcome: Outcome) -> None:
    """Sockets that ask for much and read nothing; they are closed for it after 30 s."""

    async def one() -> None:
        peer = await Peer.dial(port)
        await peer.hello()
        # Nobody reads: the stream stops taking in when its own buffer is full, then the kernel's, then the server's.
        for number in range(3000):
            peer.send({"type": "session.get", "id": str(number), "session": "big"})
            if number % 15 == 0:
                await asyncio.sleep(0.05)
        await asyncio.sleep(SLOW_S)
        code = await asyncio.wait_for(peer.closed(), ANSWER_S)
        outcome[f"closed {code}" if code in (4408, 1006) else f"WRONG: {code}"] += 1
        peer.writer.close()

    await make_big(port, rng)
    for wave in waves(count, SLOW_AT_ONCE):
        await asyncio.gather(*(one() for _ in range(wave)))
    check(outcome, {"closed 4408", "closed 1006"})


def waves(count: int, at_once: int = PARALLEL) -> Iterator[int]:
    """At most so many at a time, in both rounds: what is compared is not how many there were at once."""
    while count > 0:
        yield min(count, at_once)
        count -= at_once


async def make_big(port: int, rng: random.Random) -> None:
    """A session whose state is 200 KB; made once."""
    peer = await Peer.dial(port)
    await peer.hello()
    peer.send({"type": "session.create", "id": f"big{rng.random()}", "session": "big"})
    if (await peer.next())["type"] == "error":  # type: ignore[index]
        return
    for number in range(40):
        content = "words " * 800
        peer.send(
            {"type": "message.create", "id": f"big{number}", "session": "big", "content": content, "respond": False}
        )
        await peer.next()
    peer.writer.close()


async def flood(port: int, rng: random.Random, count: int, outcome: Outcome) -> None:
    """As many commands as the socket takes, without waiting for answers: each is answered once, in whatever order."""
    each = max(1, count // PARALLEL)

    async def one(number: int) -> None:
        peer = await Peer.dial(port)
        await peer.hello()
        peer.send({"type": "session.create", "id": "create", "session": f"flood_{number}_{rng.randrange(1 << 40)}"})
        created = await peer.next()
        assert isinstance(created, dict)
        waiting = {str(n) for n in range(each)}

        async def read() -> None:
            while waiting:
                answer = await peer.next()
                assert isinstance(answer, dict), answer
                waiting.remove(answer["id"])
                code = answer.get("error", {}).get("code", "ok")
                outcome[code] += 1

        reading = asyncio.create_task(read())
        for n in range(each):
            command = {"type": "message.create", "id": str(n), "session": created["session"], "content": "x"}
            peer.send({**command, "respond": False})
            if n % 64 == 0:
                await peer.writer.drain()
        await asyncio.wait_for(reading, 4 * ANSWER_S)
        peer.writer.close()

    await asyncio.gather(*(one(number) for number in range(PARALLEL)))
    check(outcome, {"ok", "rate_limited", "overloaded", "session_full", "context_length_exceeded"})
    if not outcome["ok"] or not outcome["rate_limited"]:
        raise AssertionError(f"a flood is partly carried out and partly refused: {outcome}")


async def garbage_http(port: int, rng: random.Random, count: int, outcome: Outcome) -> None:
    for _ in range(count):
        data = rng.choice(
            (
                rng.randbytes(rng.randrange(1, 300)) + b"\r\n\r\n",
                b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
                b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 8000,
                b"POST /v1/ws/tickets HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                b"POST /v1/ws/tickets HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            )
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            answer = await asyncio.wait_for(reader.read(65536), ANSWER_S)
        except ConnectionError:
            answer = b""
        status = answer.split(b" ", 2)[1][:3].decode() if answer.startswith(b"HTTP/1.1 ") else "closed"
        outcome[status] += 1
        writer.close()
    check(outcome, {"400", "403", "408", "426", "431", "closed"})


# -- the whole ----------------------------------------------------------------------------------------------------


def check(outcome: Outcome, allowed: set[str]) -> None:
    odd = {name: count for name, count in outcome.items() if name not in allowed}
    if odd:
        raise AssertionError(f"{odd} beside {dict(outcome)}")


async def answers(port: int) -> None:
    """The server carries on: a new client is served at once."""
    peer = await Peer.dial(port, "msgpack")
    await asyncio.wait_for(peer.hello(), 10)
    peer.send({"type": "session.list", "id": "alive"})
    answer = await asyncio.wait_for(peer.next(), 10)
    if not isinstance(answer, dict) or answer["type"] != "ok":
        raise AssertionError(f"the server does not carry on: {answer}")
    peer.writer.close()


Kind = Callable[[int, random.Random, int, Outcome], Awaitable[None]]


async def play(server: ServerProcess, rng: random.Random, scale: float, frames: int) -> dict[str, Any]:
    kinds: tuple[tuple[Kind, int], ...] = (
        (generated, frames),
        (giants, 40),
        (nests, 40),
        (wrong_types, 4000),
        (half_open, 4 * PARALLEL),
        (flood, 64_000),
        (garbage_http, 2000),
        (slow_readers, 4 * SLOW_AT_ONCE),
    )
    figures: dict[str, Any] = {}
    for kind, count in kinds:
        outcome: Outcome = collections.Counter()
        started = time.monotonic()
        await kind(server.port, rng, max(1, round(count * scale)), outcome)
        await answers(server.port)
        name = kind.__name__
        figures[name] = ", ".join(f"{what}: {n}" for what, n in sorted(outcome.items()))
        print(f"  {name:<14} {time.monotonic() - started:6.1f} s  {figures[name]}", flush=True)
    return figures


async def main(arguments: argparse.Namespace) -> bool:
    rng = random.Random(arguments.seed)
    # Sessions are data, not a leak: they go to the disk, and their actors soon leave memory.
    flags = ("--engine", "sim", "--journal", "sqlite", "--sim-answer-tokens", "2", "--actors", "100", "--idle-s", "1")
    with ServerProcess(*flags) as server:
        process = psutil.Process(server.pid)
        print(f"seed {arguments.seed}; the small round:")
        await play(server, rng, 0.25, arguments.frames)
        await asyncio.sleep(SETTLE_S)
        before = process.memory_info().rss
        print("the full round:")
        figures = await play(server, rng, 1.0, arguments.frames)
        await asyncio.sleep(SETTLE_S)
        after = process.memory_info().rss
        open_files = process.num_fds()
        assert server.process is not None
        crashed = server.process.poll() is not None
    growth = after / before - 1
    report(
        "hostile",
        {
            **figures,
            "crashed": crashed,
            "rss_mib_before": before / 2**20,
            "rss_mib_after": after / 2**20,
            "rss_growth": growth,
            "open_files_after": open_files,
            "seed": arguments.seed,
        },
    )
    return not crashed and growth <= 0.05


if __name__ == "__main__":
    run_bench(main, __doc__, frames=100000, seed=int.from_bytes(os.urandom(3)))
