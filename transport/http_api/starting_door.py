"""Answers on the public port while a process starts, so that whoever looks sees a process that lives and is not ready.

`/healthz` is 200. Everything else, WebSocket handshakes too, is 503 with the reason and `Retry-After`, as a client
that repeats its request expects it. Nothing of a request is read. The real doors take the port when this one is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from uvicorn.server import ServerState

from sessions.model.errors import Unavailable
from transport.http.http_connection import listen
from transport.http.tls import HANDSHAKE_S, ServerTls

METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
RETRY_AFTER_S: Final = 2


class StartingDoor:
    """A listening port while a process starts: open inside the `async with` block, or until `stop`. With port 0 it does
    not listen, because the server itself will choose a port."""

    def __init__(
        self, readiness: Callable[[], str | None], *, host: str, port: int, tls: ServerTls | None = None
    ) -> None:
        self._readiness = readiness
        self._address = (host, port)
        self._tls = tls
        self._state = ServerState()
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> StartingDoor:
        """Starts to listen. Raises Unavailable if the address is taken."""
        if self._address[1] > 0:
            routes = [Route("/healthz", self._alive), Route("/{path:path}", self._starting, methods=METHODS)]
            options: dict[str, Any] = {}
            if self._tls is not None:
                options = {"ssl": self._tls.context(), "ssl_handshake_timeout": HANDSHAKE_S}
            self._listener = await listen(Starlette(routes=routes), self._state, self._address, **options)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Closes the port and all connections to it. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        for connection in list(self._state.connections):
            connection.transport.close()

    async def _alive(self, _: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "reason": None})

    async def _starting(self, request: Request) -> JSONResponse:
        reason = self._readiness() or "starting"
        headers = {"retry-after": str(RETRY_AFTER_S), "connection": "close"}
        if request.url.path in ("/health", "/readyz"):
            return JSONResponse({"status": "unavailable", "reason": reason}, 503, headers)
        error = Unavailable("starting", f"The server is {reason}. Try again.", retry_after_ms=RETRY_AFTER_S * 1000)
        return JSONResponse({"error": error.public()}, 503, headers)
