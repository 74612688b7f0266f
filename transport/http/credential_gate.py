"""Checks a request's credential before a byte of its body is read: nothing that a stranger sends is parsed.

With keys on, or people signing in, every path below `/v1/`, and every method that may bring a body, needs a credential,
routes that do not exist included. What is left to the routes are pages, health, documents and metrics by GET, the
preflights of CORS, and signing in and out. Then come bodies that no route can read.

Never decides what a principal may do: routes demand scopes themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers

from sessions.model.errors import BadInput, Forbidden, SessileError
from sessions.model.types import Principal
from transport.auth.authenticator import Authenticator
from transport.auth.connection_shares import PLACE, Place
from transport.auth.origins import CSRF_HEADER
from transport.http.middleware import App, Receive, Scope, Send
from transport.websocket.handshake import bearer

_BODILESS: Final = ("GET", "HEAD", "OPTIONS")
_SIGN_IN: Final = ("/auth/refresh", "/auth/sign-out")  # by cookies of their own, for who has no session any more


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
                elif _needs_credential(scope, signs_in=self.access.sign_in is not None):
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


def _needs_credential(scope: Scope, *, signs_in: bool) -> bool:
    path: str = scope["path"]
    if scope["method"] == "OPTIONS" or (signs_in and path in _SIGN_IN):
        return False  # a preflight brings no credential, and no route reads its body
    return scope["method"] not in _BODILESS or path.startswith("/v1/") or path == "/v1"


def authenticate(access: Authenticator, headers: Headers, scope: Scope) -> Principal:
    """The principal of a request by its Authorization header, or where it has none by the cookie of a sign-in. Raises
    Unauthorized, Limited, Unavailable, and Forbidden for a foreign page."""
    origin = headers.get("origin")
    access.origins.check_origin(origin, headers.get("host"))
    address, given = address_of(access, scope), headers.getlist("authorization")
    if access.sign_in is not None and not given:
        cookie = access.sign_in.session_cookie(headers.getlist("cookie"))
        if cookie is not None:
            site = headers.get("sec-fetch-site")
            if scope["method"] not in _BODILESS:
                access.sign_in.check_page(origin=origin, site=site, header=headers.get(CSRF_HEADER))
            elif site not in (None, "same-origin", "none") or not (
                origin is None or access.sign_in.is_own_page(origin)
            ):
                raise Forbidden("forbidden", "With a cookie only this server's own pages may read that.")
            return access.authenticate_cookie(cookie, address)
    with_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    return access.authenticate(bearer(given), address, with_body=with_body)


def address_of(access: Authenticator, scope: Scope) -> str | None:
    """Where a request is from, as a trusted proxy says it."""
    client = scope.get("client")
    return access.origins.proxies.client(
        None if client is None else client[0], Headers(scope=scope).getlist("x-forwarded-for")
    )
