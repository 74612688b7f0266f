"""Puts a unix socket's server at a port on loopback, where it can be cut off like a machine that dies."""

from __future__ import annotations

import asyncio


class Relay:
    """`async with Relay(path)`; `url` names it. `cut` ends its connections and takes no more; `back` takes them again
    at the same port. With `silent`, requests for answers are taken and never answered, and probes fail."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0
        self.requests = 0
        self.silent: list[asyncio.StreamWriter] | None = None  # where answers should come, and never do

    @property
    def streams(self) -> int:
        """How many connections are open."""
        return len(self._writers) // 2

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Relay:
        await self.back()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def back(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests += 1
        line = await reader.readline()
        if self.silent is not None and line.startswith((b"POST /completion ", b"GET /health ")):
            if line.startswith(b"GET"):
                writer.close()
            else:
                self.silent.append(writer)
            return
        there = await asyncio.open_unix_connection(self._path)
        there[1].write(line)
        self._writers |= {writer, there[1]}
        try:
            await asyncio.gather(_copied(reader, there[1]), _copied(there[0], writer))
        finally:
            self._writers -= {writer, there[1]}


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # the other side learns of it by its own connection
    finally:
        writer.close()
