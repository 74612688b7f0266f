"""What surrounds every HTTP request: its id, the date, where its limits stand, the Host rule, how large a body may be.

Plain ASGI, so that streams pass through untouched. A body beyond the limit is answered with 413 where the answer has
not begun; its rest is not read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, Final

import structlog

from sessions.model.errors import SessileError, TooLarge, Unavailable
from transport.auth.authenticator import Authenticator
from transport.quotas import RATE_LIMIT_STATE, RateLimitState

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_REQUEST_ID: Final = re.compile(r"^[A-Za-z0-9_.:-]{1,64}$")


@dataclass(eq=False, repr=False)
class RequestContextMiddleware:
    """ASGI middleware; `refuse` writes a SessileError as the answer."""

    app: App
    access: Authenticator
    body_bytes_max: int
    new_id: Callable[[], str]
    refuse: Callable[[SessileError, Scope, Receive, Send], Awaitable[None]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.match(given) else f"req_{self.new_id()}"
        scope.setdefault("state", {})["request_id"] = request_id
        started = False
        taken = 0
        rate_limits = RateLimitState()
        RATE_LIMIT_STATE.set(rate_limits)  # of this request: every task that it starts has it

        async def limited_receive() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.body_bytes_max:
                raise TooLarge("too_large", f"A request body has at most {self.body_bytes_max} bytes.")
            return message

        async def named_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    (b"date", formatdate(usegmt=True).encode()),
                    (b"x-content-type-options", b"nosniff"),
                    *rate_limits.headers,
                ]
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                self.access.check_host(headers.get(b"host", b"").decode("latin-1"))
                await self.app(scope, limited_receive, named_send)
            except SessileError as error:
                if started:
                    raise
                await self.refuse(error, scope, receive, named_send)
            except asyncio.CancelledError:  # the server stops, and has waited long enough for the rest of a body
                if started:
                    raise
                await self.refuse(Unavailable("draining", "The server is stopping."), scope, receive, named_send)
