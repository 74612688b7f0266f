"""What surrounds every request: its id, its headers, the Host rule, the size of its body."""

from __future__ import annotations

import asyncio
from typing import Any

from sessions.model.errors import SessileError
from sessions.model.types import UnixMs
from transport.auth.authenticator import Authenticator
from transport.http.middleware import Message, Receive, RequestContextMiddleware, Scope, Send


class Exchange:
    """One request through the middleware, and what was sent."""

    def __init__(self, **headers: str) -> None:
        self.sent: list[Message] = []
        self.errors: list[SessileError] = []
        given = {"host": "localhost", **headers}
        self.scope: Scope = {
            "type": "http",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()],
        }

    async def run(self, body: bytes | None = b"", *, begin_first: bool = False) -> dict[str, str]:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if begin_first:
                await send({"type": "http.response.start", "status": 200})
            await receive()
            await send({"type": "http.response.start", "status": 200})

        async def refuse(error: SessileError, scope: Scope, receive: Receive, send: Send) -> None:
            self.errors.append(error)
            await send({"type": "http.response.start", "status": error.status})

        async def receive() -> Message:
            if body is None:
                raise asyncio.CancelledError
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            self.sent.append(message)

        access = Authenticator({}, clock=lambda: 0.0, now_ms=lambda: UnixMs(0))
        middleware = RequestContextMiddleware(app, access=access, body_bytes_max=4, new_id=lambda: "new", refuse=refuse)
        await middleware(self.scope, receive, send)
        headers: Any = self.sent[-1]["headers"]
        return {name.decode(): value.decode() for name, value in headers}


async def test_a_body_that_does_not_come_before_the_server_stops_is_answered() -> None:
    exchange = Exchange()
    await exchange.run(body=None)
    assert [error.code for error in exchange.errors] == ["draining"]
