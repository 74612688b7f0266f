"""A provider of chat completions that answers what a test says, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import msgspec

from inference.remote.engine import RemoteEngine
from inference.remote.options import RemoteOptions

BUSY = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: %d\r\ncontent-length: 0\r\n\r\n"
AWAY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: %d\r\ncontent-length: 0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def delta(**fields: Any) -> bytes:
    return b"data: " + msgspec.json.encode({"choices": [{"delta": fields}]}) + b"\n\n"


def end(reason: str = "stop") -> bytes:
    return b'data: {"choices":[{"delta":{},"finish_reason":"%s"}]}\n\ndata: [DONE]\n\n' % reason.encode()


class ChatProvider:
    """Each chat gets the next of `answers`, and the last of them again; then its connection ends."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"get"):
            writer.write(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
        else:
            length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            self.bodies.append(msgspec.json.decode(await reader.readexactly(length)))
            writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        await writer.drain()
        writer.close()


@asynccontextmanager
async def chat_engine(*providers: ChatProvider) -> AsyncIterator[RemoteEngine]:
    """An engine, not started yet, in front of providers that run as long."""
    async with AsyncExitStack() as stack:
        urls = tuple([(await stack.enter_async_context(each)).url for each in providers])
        yield RemoteEngine(RemoteOptions(urls=urls, chat_model="m", context_window=2000))
