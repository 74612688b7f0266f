"""Serves `/metrics`, `/healthz` and `/readyz` of any role on a port of their own, without keys.

Replicas have no other HTTP port. It listens on loopback unless configured otherwise, and answers under loopback's names
only there, so that no web page reads it through a name of its own. Whoever lets it listen elsewhere keeps strangers
away from it by the network, as one does with every exporter. Nothing can be changed through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.server import ServerState

from sessions.model.errors import Forbidden
from transport.addresses import is_loopback, joined
from transport.auth.origins import OriginPolicy
from transport.http.http_connection import listen
from transport.http.middleware import App, Receive, Scope, Send


class Exposition(Protocol):
    async def text(self) -> tuple[bytes, str]:
        """Returns (body, media type) of the metrics."""


class MetricsServer:
    """An HTTP server for metrics and health on a port of its own, between `start` and `stop`."""

    def __init__(
        self, exposition: Exposition, *, host: str, port: int, readiness: Callable[[], str | None] = lambda: None
    ) -> None:
        """`readiness` returns why no traffic is wanted, or None."""
        self._exposition = exposition
        self._readiness = readiness
        self._host = host
        self._port = port
        self._state = ServerState()
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._listener is not None
        return f"http://{joined(self._host, self._listener.sockets[0].getsockname()[1])}"

    async def start(self) -> None:
        """Starts to listen. Raises Unavailable if the address is taken."""
        routes = {"/metrics": self._metrics, "/healthz": self._alive, "/readyz": self._ready}
        app = Starlette(routes=[Route(path, answer) for path, answer in routes.items()])
        door = _OwnNames(app) if is_loopback(self._host) else app
        self._listener = await listen(door, self._state, (self._host, self._port))

    async def stop(self) -> None:
        """Closes the port and all connections. Idempotent."""
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        for task in self._state.tasks:
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()

    async def _metrics(self, _: Request) -> Response:
        body, media_type = await self._exposition.text()
        return Response(body, media_type=media_type)

    async def _alive(self, _: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def _ready(self, _: Request) -> Response:
        reason = self._readiness()
        return Response(f"{reason or 'ok'}\n", status_code=200 if reason is None else 503, media_type="text/plain")


class _OwnNames:
    """ASGI middleware that refuses a Host header which is no loopback name."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._origins = OriginPolicy()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._origins.check_host(Headers(scope=scope).get("host"))
        except Forbidden:
            text = "This port answers under loopback's names only: 127.0.0.1, localhost, [::1].\n"
            await Response(text, 403, media_type="text/plain")(scope, receive, send)
            return
        await self._app(scope, receive, send)
