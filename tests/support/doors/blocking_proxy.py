"""A byte-level proxy that lets no WebSocket through, in the ways that networks have, or answers in the server's place.

It reads the head of each connection's first request and nothing else; what it lets through it does not touch.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

Mode = Literal["open", "refuse", "strip", "hang", "cut", "portal", "redirect"]
_UPGRADE = re.compile(rb"\r\n(?:upgrade|connection|sec-websocket-[a-z]+):[^\r\n]*", re.IGNORECASE)
_PAGE = b"<html><body>Welcome to our Wi-Fi. Please sign in.</body></html>"


@dataclass(eq=False)
class BlockingProxy:
    """Listens inside its block. `mode` may change at any time; connections that are open keep theirs until `cut`."""

    target_port: int
    mode: Mode = "open"
    cut_after: int = 0  # bytes from the server, on a connection with an upgrade
    elsewhere: str = ""  # where "redirect" sends
    heads: list[bytes] = field(default_factory=list)  # of every request, as it came
    upgraded: int = 0  # WebSockets that were let through
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def __aenter__(self) -> BlockingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/ws"

    def cut(self) -> None:
        """Ends what is open."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):  # a loop that ends cancels us
                await self._answer(await reader.readuntil(b"\r\n\r\n"), reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(head)
        upgrade = b"upgrade: websocket" in head.lower()
        if self.mode == "portal":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n" + _PAGE)
            await writer.drain()
        elif self.mode == "redirect":
            place = self.elsewhere.encode()
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
        elif upgrade and self.mode == "refuse":
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        elif upgrade and self.mode == "hang":
            await reader.read()
        else:
            if upgrade and self.mode == "strip":
                head = _UPGRADE.sub(b"", head)
            else:
                self.upgraded += upgrade
            await self._relay(head, reader, writer, self.cut_after if upgrade and self.mode == "cut" else None)

    async def _relay(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_max: int | None
    ) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        self._writers.add(to_writer)
        try:
            to_writer.write(head)
            up = asyncio.ensure_future(_pour(reader, to_writer, None))
            down = asyncio.ensure_future(_pour(to_reader, writer, bytes_max))
            _, left = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
        finally:
            self._writers.discard(to_writer)
            to_writer.transport.abort()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_max: int | None) -> None:
    """Until one end is closed, or so many bytes have gone."""
    left = bytes_max
    while data := await reader.read(65_536):
        data = data if left is None else data[:left]
        writer.write(data)
        await writer.drain()
        if left is not None and (left := left - len(data)) <= 0:
            return
