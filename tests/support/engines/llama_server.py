"""A server on loopback that answers one request as llama-server might, or might not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from inference.http_client import HttpClient

Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[HttpClient, list[asyncio.StreamReader]]]:
    """A server that reads one request and lets `handler` write whatever it likes."""
    readers: list[asyncio.StreamReader] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        readers.append(reader)
        await handler(await reader.readexactly(length), writer)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield HttpClient(*server.sockets[0].getsockname()[:2]), readers
    finally:
        server.close()


def chunked(*bodies: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(body), body) for body in bodies) + b"0\r\n\r\n"


def event(**fields: object) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def answering(data: bytes, sizes: tuple[int, ...] = (1 << 20,)) -> Handler:
    async def handler(_: bytes, writer: asyncio.StreamWriter) -> None:
        at = index = 0
        while at < len(data):
            size = sizes[index % len(sizes)]
            writer.write(data[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)
            at, index = at + size, index + 1

    return handler
