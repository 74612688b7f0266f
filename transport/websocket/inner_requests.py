"""Requests that a connection makes of the server's own HTTP application, on behalf of who holds it.

Whatever a request is judged by (scopes, limits, filters, sizes, schemas) and whatever is answered, errors included, is
so what the same request gets over HTTP: the same code runs. The application is called as any ASGI server calls it; the
principal stands in the request's state, as the gate leaves it there for others.

Does not know: what is sent, or how an answer is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from sessions.model.types import Principal

App = Callable[..., Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]


class SocketTurn(NamedTuple):
    """The properties of the WebSocket frame that a request was made from. It is in the request's state."""

    generate: bool = True  # false: prepares for an answer without writing one


SOCKET_TURN = "socket_turn"
"""The name of the `SocketTurn` in a request's state."""


class InnerRequest(NamedTuple):
    """One HTTP request to make. `headers` are added to those that all requests of the connection have."""

    method: str
    path: str
    query: bytes = b""
    body: bytes = b""
    headers: Headers = ()
    turn: SocketTurn = SocketTurn()


class InnerRequests:
    """Makes HTTP requests of one WebSocket to the application in this process, until `leave`."""

    def __init__(
        self, app: App, principal: Principal | None, *, host: str, client: tuple[str, int] | None, scheme: str
    ) -> None:
        self._app = app
        self._principal = principal
        self._host = host
        self._client = client
        self._scheme = scheme
        self._left = asyncio.Event()

    def leave(self) -> None:
        """Tells running requests that their client has left."""
        self._left.set()

    async def stream(
        self, request: InnerRequest, begun: Callable[[int], None], chunk: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Makes a request. Calls `begun` with the answer's status, then awaits `chunk` for each piece as it is made."""
        unread = True

        async def receive() -> dict[str, Any]:
            nonlocal unread
            if unread:
                unread = False
                return {"type": "http.request", "body": request.body, "more_body": False}
            await self._left.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                begun(message["status"])
            elif message.get("body"):
                await chunk(message["body"])

        await self._app(self._scope(request), receive, send)

    async def whole(self, request: InnerRequest) -> tuple[int, bytes]:
        """Makes a request and returns its status and whole body."""
        status, body = 500, b""

        def begun(given: int) -> None:
            nonlocal status
            status = given

        async def chunk(piece: bytes) -> None:
            nonlocal body
            body += piece

        await self.stream(request, begun, chunk)
        return status, body

    def _scope(self, request: InnerRequest) -> dict[str, Any]:
        state: dict[str, Any] = {SOCKET_TURN: request.turn}
        if self._principal is not None:
            state["principal"] = self._principal
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": self._scheme,
            "path": request.path,
            "raw_path": request.path.encode(),
            "root_path": "",
            "query_string": request.query,
            "headers": [
                (b"host", self._host.encode("latin-1")),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(request.body)).encode()),
                *request.headers,
            ],
            "client": self._client,
            "server": None,
            "state": state,
        }
