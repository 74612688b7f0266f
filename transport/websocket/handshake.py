"""The WebSocket opening handshake: who may connect, in which encoding, with which credential.

Refused here, with an HTTP status: a wrong path, a foreign origin or host name, no subprotocol of ours, a wrong key or
ticket, a server that is full or leaving. A key may also come later, in hello, from clients that can set no header.
Which headers make a handshake is `websockets`' business (RFC 6455 §4).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec
from websockets.datastructures import Headers
from websockets.exceptions import NegotiationError
from websockets.http11 import Request, Response
from websockets.protocol import Protocol
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from sessions.model.authorization import acting_for
from sessions.model.errors import BadInput, NotFound, SessileError, Unauthorized
from sessions.model.types import Principal
from transport import errors
from transport.auth.authenticator import Authenticator
from transport.protocol.frames import ENCODINGS, JSON, Encoding

PATH: Final = "/v1/ws"
BEARER_PREFIX: Final = "sessile.bearer."
USER_HEADER: Final = "x-sessile-user"  # the end user that a service's key speaks for


class AgreedHandshake(NamedTuple):
    """The result of a handshake. `principal` is None if it had no credential, or a ticket, which `redeem_ticket`
    exchanges for the principal."""

    encoding: Encoding
    principal: Principal | None
    ticket: str | None = None
    user: str | None = None  # the end user in whose name the ticket is redeemed


class HandshakeParser(ServerProtocol):
    """`websockets`' handshake parser, which chooses the first subprotocol of the client that we speak.

    A client that offers none at all speaks JSON.
    """

    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        for name in subprotocols:
            if name in ENCODINGS:
                return name
        if any(not name.startswith(BEARER_PREFIX) for name in subprotocols):
            raise NegotiationError(f"none of the offered subprotocols is one of {', '.join(ENCODINGS)}")
        return None


def retire(ws: Protocol) -> None:
    """Frees a parser's buffers. It and its generator refer to each other, so what they read last, perhaps a megabyte,
    would stay until the garbage collector runs."""
    ws.reader.discard()
    ws.parser.close()
    ws.events.clear()
    ws.parser_exc = ws.handshake_exc = None


def shake_hands(
    ws: ServerProtocol, request: Request, access: Authenticator, address: str | None = None, *, path: str = PATH
) -> tuple[Response, AgreedHandshake | None]:
    """Returns the answer to a handshake, and what was agreed on if that is 101. Raises SessileError for a refusal."""
    url = urlsplit(request.path)
    if url.path != path:
        raise NotFound("not_found", "There is no WebSocket at this path.")
    headers = request.headers
    host = single_value(headers.get_all("Host"))
    access.check_host(host)
    access.origins.check_origin(single_value(headers.get_all("Origin")), host)
    response = ws.accept(request)
    if response.status_code != 101:
        if (error := ws.handshake_exc) is not None:  # the request holds it, and its frames the request
            error.__traceback__ = error.__cause__ = error.__context__ = None
        return response, None
    encoding = JSON if ws.subprotocol is None else ENCODINGS[ws.subprotocol]
    offered = tokens_of(headers.get_all("Sec-WebSocket-Protocol"))
    user = single_value(headers.get_all(USER_HEADER))
    key, ticket = credential_of(headers.get_all("Authorization"), url.query, offered)
    if ticket is not None:
        return response, AgreedHandshake(encoding, None, ticket, user)
    if key is not None:
        return response, AgreedHandshake(encoding, acting_for(access.authenticate(key, address), user))
    if user is not None:  # a key in hello would speak for itself, which is more than was meant
        raise BadInput("invalid_request", "X-Sessile-User goes with a key in the handshake.", param="user")
    return response, AgreedHandshake(encoding, _signed_in(headers, access, address))


def _signed_in(headers: Headers, access: Authenticator, address: str | None) -> Principal | None:
    """Returns the principal of the sign-in cookie if a page of our own connects; other pages' handshakes carry the
    cookie too. None without such a sign-in or if it has expired: hello may still have a key."""
    if access.sign_in is None or not access.sign_in.is_own_page(
        single_value(headers.get_all("Origin")), single_value(headers.get_all("Sec-Fetch-Site"))
    ):
        return None
    cookie = access.sign_in.session_cookie(headers.get_all("Cookie"))
    if cookie is None:
        return None
    try:
        return access.authenticate_cookie(cookie, address)
    except Unauthorized:
        return None


async def redeem_ticket(agreed: AgreedHandshake, access: Authenticator, address: str | None = None) -> AgreedHandshake:
    """Returns the agreement with its ticket exchanged for the principal. Raises SessileError for a refusal."""
    assert agreed.ticket is not None
    principal = await access.redeem_ticket(agreed.ticket, address)
    return AgreedHandshake(agreed.encoding, acting_for(principal, agreed.user))


def refusal(ws: ServerProtocol, error: SessileError) -> Response:
    """Returns the HTTP answer that refuses a handshake with an error."""
    response = ws.reject(errors.row(error.code).http, msgspec.json.encode({"error": errors.public(error)}).decode())
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = "application/json"
    if response.status_code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after_ms is not None:
        response.headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))
    return response


def bearer(authorization: Sequence[str]) -> str | None:
    """Returns the key of an Authorization header; None without one, and "", a wrong key, if it is malformed."""
    if not authorization:
        return None
    scheme, _, key = authorization[0].partition(" ")
    return key.strip() if scheme.lower() == "bearer" and len(authorization) == 1 else ""


def credential_of(authorization: list[str], query: str, offered: list[str]) -> tuple[str | None, str | None]:
    """Returns the handshake's (key, ticket), at most one of them set: the header counts first, then the ticket, then
    the subprotocol."""
    key = bearer(authorization)
    if key is not None:
        return key, None
    tickets = parse_qs(query).get("ticket")
    if tickets:
        return None, tickets[0]
    for name in offered:
        if name.startswith(BEARER_PREFIX):
            encoded = name.removeprefix(BEARER_PREFIX)
            try:
                key = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
            except (binascii.Error, UnicodeDecodeError):
                key = ""
            return key, None
    return None, None


def single_value(values: Sequence[str]) -> str | None:
    """Returns the value of a header that may come once; None without one, and "" for several: it matches nothing."""
    return (values[0] if len(values) == 1 else "") if values else None


def tokens_of(headers: Iterable[str]) -> list[str]:
    return [token.strip() for header in headers for token in header.split(",")]
