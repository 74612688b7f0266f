"""Checks a request's credential when its head is there: nothing that a stranger sends is parsed, and nothing is started
for it.

With keys on every path below `/v1/`, and every method that may bring a body, needs a credential, routes that do not
exist included: who has no key learns nothing of which there are. What is left to the routes are pages, health,
documents and metrics by GET, what is shared by links (whose token is the credential), and the preflights of CORS. A
WebSocket's handshake is judged by the credential that it brings; one without may say it in hello. Then come bodies that
no route can read.

A refusal is one piece of bytes, written by the connection: no task, no middleware and no route sees the request, which
is most of what one costs. It has the headers that every other answer has.

Never decides what a principal may do: routes demand scopes themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware

from sessions.model.errors import BadInput, Forbidden, SessileError
from sessions.model.types import Principal
from transport import errors
from transport.auth.authenticator import Authenticator
from transport.auth.connection_shares import PLACE, Place
from transport.auth.origins import CSRF_HEADER
from transport.http.middleware import CALLERS_OWN, NOTHING_RUNS, Scope, request_id_of
from transport.quotas import Arrival, http_arrival
from transport.websocket.handshake import PATH, bearer, credential_of, single_value, tokens_of

KEY_HEADER: Final = "x-api-key"
_BODILESS: Final = ("GET", "HEAD", "OPTIONS")
# By cookies of their own, for who has no session any more; by a token that the provider signed.
_SIGN_IN: Final = ("/auth/refresh", "/auth/sign-out", "/auth/backchannel-logout")
_SHARED: Final = "/v1/shares/"  # the token in the path is the credential
_STATUS: Final = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
_JSON: Final = (
    (b"content-type", b"application/json"),
    (b"x-content-type-options", b"nosniff"),
    *NOTHING_RUNS,
    CALLERS_OWN,
)
_FIXED: Final = b"".join(name + b": " + value + b"\r\n" for name, value in _JSON)


class HeadFields:
    """The headers of one request, indexed by name; Starlette's class searches all of them at each look-up."""

    __slots__ = ("_fields",)

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._fields: dict[str, list[str]] = {}
        for name, value in headers:
            self._fields.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def get(self, name: str, default: str | None = None) -> str | None:
        values = self._fields.get(name)
        return default if values is None else values[0]

    def getlist(self, name: str) -> list[str]:
        return self._fields.get(name, [])


class CredentialGate:
    """Checks the credential of a request from its head alone. Implements `Gate`. `cors` is the application's, or None
    if no other origin is allowed."""

    def __init__(
        self,
        access: Authenticator,
        new_id: Any,
        cors: CORSMiddleware | None = None,
        check_arrival: Callable[[Principal, Arrival], None] = lambda *_: None,
    ) -> None:
        """`check_arrival` raises Limited if the key may send no more requests now."""
        self._access = access
        self._check_arrival = check_arrival
        self._new_id = new_id
        self._cors = cors

    def check(self, scope: Scope, *, upgrade: bool) -> SessileError | None:
        headers = HeadFields(scope["headers"])
        try:
            if upgrade:
                _check_upgrade(self._access, headers, scope)
                return None
            place: Place | None = scope["state"].get(PLACE)
            if self._access.open:
                if place is not None:
                    place.authenticated(None)
            elif _needs_credential(scope, signs_in=self._access.sign_in is not None):
                principal = scope["state"]["principal"] = authenticate(self._access, headers, scope)
                if place is not None:
                    place.authenticated(principal)
                self._check_arrival(principal, http_arrival(scope["method"], scope["path"], dict(scope["headers"])))
            encoding = ", ".join(headers.getlist("content-encoding")).strip().lower()
            if encoding not in ("", "identity", "gzip", "x-gzip"):
                raise BadInput(
                    "unsupported_content_encoding",
                    f"Bodies encoded as {encoding[:32]!r} are not read here: send this one as it is, without"
                    " Content-Encoding, or as gzip.",
                )
        except SessileError as error:
            error.__cause__ = error.__context__ = None  # else errors and frames hold each other, and the connection
            return error.with_traceback(None)
        return None

    def answer(self, scope: Scope, error: SessileError, *, close: bool) -> bytes:
        headers = dict(scope["headers"])
        request_id = request_id_of(headers, self._new_id)
        body = msgspec.json.encode(errors.body_at(scope["path"], error, request_id))
        lines = [f"x-request-id: {request_id}\r\n", f"date: {formatdate(usegmt=True)}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in refusal_headers(error).items()]
        if self._cors is not None:
            lines += _cors_lines(self._cors, headers.get(b"origin"))
        if close:
            lines.append("connection: close\r\n")
        head = f"content-length: {len(body)}\r\n{''.join(lines)}\r\n".encode("latin-1")
        return b"".join(
            (_STATUS[errors.row(error.code).http], _FIXED, head, b"" if scope["method"] == "HEAD" else body)
        )

    def refused(self, scope: Scope) -> bytes | None:
        error = None if self._access.open else self.check(scope, upgrade=scope["upgrade"])
        return None if error is None else self.answer(scope, error, close=True)


def refusal_headers(error: SessileError) -> dict[str, str]:
    """Returns the headers that a refusal has besides its body: when to retry, how to authenticate, caching."""
    headers = {}
    if error.retry_after_ms is not None:
        headers = {"retry-after": str(-(-error.retry_after_ms // 1000)), "retry-after-ms": str(error.retry_after_ms)}
    status = errors.row(error.code).http
    if not error.retryable and (status == 409 or status >= 500):
        headers["x-should-retry"] = "false"  # OpenAI's clients repeat these by themselves
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    elif status == 426:
        headers |= {"upgrade": "websocket", "cache-control": "no-store"}
    if error.code == "share_not_found":
        headers["cache-control"] = "no-store"  # without a key nothing else says so, and a 404 may be kept
    return headers


def _cors_lines(cors: CORSMiddleware, origin: bytes | None) -> list[str]:
    """Returns the CORS header lines of a refusal, so that a page of an allowed origin can read it."""
    if origin is None:
        return ["vary: Origin\r\n"]
    named = origin.decode("latin-1")
    lines = [f"{name}: {value}\r\n" for name, value in cors.simple_headers.items()]
    if not cors.allow_all_origins and cors.is_allowed_origin(origin=named):
        lines.append(f"access-control-allow-origin: {named}\r\n")
    return [*lines, "vary: Origin\r\n"]


def _needs_credential(scope: Scope, *, signs_in: bool) -> bool:
    path: str = scope["path"]
    if scope["method"] == "OPTIONS" or (signs_in and path in _SIGN_IN):
        return False  # a preflight brings no credential, and no route reads its body
    if scope["method"] not in _BODILESS:
        return True
    return (path.startswith("/v1/") and not path.startswith(_SHARED) and path != PATH) or path == "/v1"


def _check_upgrade(access: Authenticator, headers: HeadFields, scope: Scope) -> None:
    """Raises as `authenticate` does if a WebSocket handshake has an invalid key. Tickets and cookies are checked later,
    by the handshake itself."""
    if access.open:
        return
    offered = tokens_of(headers.getlist("sec-websocket-protocol"))
    key, _ = credential_of(headers.getlist("authorization"), scope["query_string"].decode("latin-1"), offered)
    if key is not None:
        authenticate(access, headers, scope, credential=key)


def authenticate(
    access: Authenticator, headers: Headers | HeadFields, scope: Scope, *, credential: str | None = None
) -> Principal:
    """Returns the principal of a request: by `credential`, by its Authorization header, by `x-api-key` as Anthropic's
    clients send it, or by the cookie of a sign-in, whichever comes first. Raises Unauthorized, Limited, Unavailable,
    and Forbidden for a page of a foreign origin."""
    origin = single_value(headers.getlist("origin"))
    address = _client_of(access, scope, headers.getlist("x-forwarded-for"))
    access.origins.check_origin(origin, headers.get("host"))
    given = headers.getlist("authorization")
    if access.sign_in is not None and credential is None and not given and KEY_HEADER not in headers:
        cookie = access.sign_in.session_cookie(headers.getlist("cookie"))
        if cookie is not None:
            site = single_value(headers.getlist("sec-fetch-site"))
            if scope["method"] not in _BODILESS:
                access.sign_in.check_page(origin=origin, site=site, header=headers.get(CSRF_HEADER))
            elif not access.sign_in.may_read(origin, site):
                raise Forbidden("forbidden", "With a cookie only this server's own pages may read that.")
            return access.authenticate_cookie(cookie, address)
    with_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    alone = single_value(headers.getlist(KEY_HEADER))
    key = credential if credential is not None else bearer(given) if given else alone
    return access.authenticate(key, address, with_body=with_body)


def address_of(access: Authenticator, scope: Scope) -> str | None:
    """Returns the client's IP address, as a trusted proxy says it; None if it is unknown."""
    return _client_of(access, scope, Headers(scope=scope).getlist("x-forwarded-for"))


def _client_of(access: Authenticator, scope: Scope, forwarded: list[str]) -> str | None:
    client = scope.get("client")
    return access.origins.proxies.client(None if client is None else client[0], forwarded)
