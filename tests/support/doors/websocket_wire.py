"""A client that can do what no proper client does: it writes its own WebSocket frames and reads raw bytes."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

WAIT_S = 60.0


class Closed(NamedTuple):
    """How the server ended it: its close code (1006: none came)."""

    code: int
    reason: str


class Handshake(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Wire:
    """One connection after its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handshake: Handshake) -> None:
        self.reader = reader
        self.writer = writer
        self.handshake = handshake
        self.frames: list[dict[str, Any]] = []

    def send(self, *messages: Any) -> None:
        """JSON messages, one WebSocket message each."""
        for message in messages:
            self.send_frame(0x81, json.dumps(message).encode())

    def send_frame(self, first_byte: int, data: bytes, *, masked: bool = True) -> None:
        mask = os.urandom(4) if masked else b""
        bit = 0x80 if masked else 0
        if len(data) < 126:
            head = struct.pack("!BB", first_byte, bit | len(data))
        elif len(data) < 65536:
            head = struct.pack("!BBH", first_byte, bit | 126, len(data))
        else:
            head = struct.pack("!BBQ", first_byte, bit | 127, len(data))
        if masked and data:
            pad = (mask * (len(data) // 4 + 1))[: len(data)]
            data = (int.from_bytes(data) ^ int.from_bytes(pad)).to_bytes(len(data))
        self.writer.write(head + mask + data)

    async def read_frame(self) -> tuple[int, bytes]:
        first, second = await self.reader.readexactly(2)
        length = second & 0x7F
        assert not second & 0x80, "a server masks nothing"
        if length == 126:
            length = int.from_bytes(await self.reader.readexactly(2))
        elif length == 127:
            length = int.from_bytes(await self.reader.readexactly(8))
        return first, await self.reader.readexactly(length)

    async def next(self) -> dict[str, Any] | Closed:
        """The next message, or how it ended. Pongs of WebSocket's own are passed over."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    first, data = await self.read_frame()
                except (asyncio.IncompleteReadError, ConnectionError):
                    return Closed(1006, "")
                if first == 0x88:
                    return Closed(int.from_bytes(data[:2]), data[2:].decode())
                if first == 0x81:
                    message: dict[str, Any] = json.loads(data)
                    self.frames.append(message)
                    return message

    async def until(self, **wanted: Any) -> dict[str, Any]:
        """Reads on to the first message with these fields."""
        while True:
            message = await self.next()
            assert isinstance(message, dict), f"closed with {message} before {wanted}"
            if all(message.get(name) == value for name, value in wanted.items()):
                return message

    async def event(self, kind: str) -> dict[str, Any]:
        """Reads on to the first event of a type."""
        while True:
            message = await self.until(type="event")
            if message["event"]["type"] == kind:
                return message

    async def closed(self) -> Closed:
        """Reads on to the end."""
        while True:
            message = await self.next()
            if isinstance(message, Closed):
                return message

    async def hello(self, **fields: Any) -> dict[str, Any]:
        self.send({"type": "hello", **fields})
        return await self.until(type="ready")

    def cut(self) -> None:
        """The network is gone: no close frame."""
        transport = self.writer.transport
        transport.abort()


async def shake_hands(
    port: int,
    *,
    path: str = "/v1/ws",
    subprotocols: Sequence[str] = ("sessile.v1+json",),
    headers: Mapping[str, str] | None = None,
) -> Wire:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields = {
        "Host": f"127.0.0.1:{port}",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        **({"Sec-WebSocket-Protocol": ", ".join(subprotocols)} if subprotocols else {}),
        **(headers or {}),
    }
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    writer.write("\r\n".join(lines).encode())
    async with asyncio.timeout(WAIT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status = int(head.split(" ", 2)[1])
        got = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head.splitlines()[1:] if line)
        }
        body = b"" if status == 101 else await reader.read()
    return Wire(reader, writer, Handshake(status, got, body))


@asynccontextmanager
async def wire(port: int, **options: Any) -> AsyncIterator[Wire]:
    connection = await shake_hands(port, **options)
    try:
        yield connection
    finally:
        connection.writer.close()
        with suppress(ConnectionError):
            await connection.writer.wait_closed()
