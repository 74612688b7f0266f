"""Checks a request's credential before a byte of its body is read: nothing that a stranger sends is parsed.

With keys on every path below `/v1/`, and every method that may bring a body, needs a credential, routes that do not
exist included. What is left to the routes are pages, health, documents and metrics by GET, and the preflights of CORS.
Then come bodies that no route can read.

Never decides what a principal may do: routes demand scopes themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers

from sessions.model.errors import BadInput, SessileError
from sessions.model.types import Principal
from transport.auth.authenticator import Authenticator
from transport.auth.connection_shares import PLACE, Place
from transport.http.middleware import App, Receive, Scope, Send
from transport.websocket.handshake import bearer

_BODILESS: Final = ("GET", "HEAD", "OPTIONS")


@dataclass(eq=False, repr=False)
class CredentialGate:
    """ASGI middleware; `refuse` writes a SessileError as the answer."""

    app: App
    access: Authenticator
    refuse: Callable[[SessileError, Scope, Receive, Send], Awaitable[None]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                place: Place | None = scope["state"].get(PLACE)
                if self.access.open:
                    if place is not None:
                        place.authenticated(None)
                elif _needs_credential(scope):
                    principal = scope["state"]["principal"] = authenticate(self.access, headers, scope)
                    if place is not None:
                        place.authenticated(principal)
                encoding = headers.get("content-encoding", "identity").strip().lower()
                if encoding not in ("", "identity"):
                    raise BadInput(
                        "unsupported_content_encoding",
                        f"Bodies encoded as {encoding[:32]!r} are not read here: send this one as it is, without"
                        " Content-Encoding.",
                    )
            except SessileError as error:
                await self.refuse(error, scope, receive, send)
                return
        await self.app(scope, receive, send)


def _needs_credential(scope: Scope) -> bool:
    if scope["method"] == "OPTIONS":
        return False  # a preflight brings no credential, and no route reads its body
    path: str = scope["path"]
    return scope["method"] not in _BODILESS or path.startswith("/v1/") or path == "/v1"


def authenticate(access: Authenticator, headers: Headers, scope: Scope) -> Principal:
    """The principal of a request by its Authorization header. Raises Unauthorized, Limited, Unavailable, and Forbidden
    for a foreign page."""
    access.origins.check_origin(headers.get("origin"), headers.get("host"))
    client = scope.get("client")
    address = access.origins.proxies.client(None if client is None else client[0], headers.getlist("x-forwarded-for"))
    with_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    return access.authenticate(bearer(headers.getlist("authorization")), address, with_body=with_body)
