"""An MCP server over streamable HTTP on loopback, of the official package, in the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from mcp.server.mcpserver import MCPServer

Scope = MutableMapping[str, Any]


class HttpMcp:
    """What it was asked; `token`: the bearer token that it demands, "" for none."""

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.seen: list[str] = []  # authorization headers
        self.asked: list[str] = []
        self.server = MCPServer("tests")
        self.url = ""

        @self.server.tool(description="The weather in a city.")
        def weather(city: str) -> str:
            self.asked.append(city)
            return f"18 degrees in {city}"

        @self.server.tool(description="What it was asked with.")
        def look() -> str:
            return f"headers: {self.seen[-1]}"

    async def guarded(self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[..., Any]) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.seen.append(headers.get("authorization", ""))
            if self.token and headers.get("authorization") != f"Bearer {self.token}":
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[HttpMcp]:
        self._app: Any = self.server.streamable_http_app()
        config = uvicorn.Config(
            self.guarded, host="127.0.0.1", port=0, log_level="error", lifespan="on", interface="asgi3"
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.wait((task,), timeout=0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/mcp"
        try:
            yield self
        finally:
            server.should_exit = server.force_exit = True
            await asyncio.wait((task,), timeout=60)
