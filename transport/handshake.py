"""The WebSocket opening handshake: who may connect, in which encoding, with which credential.

Refused here, with an HTTP status: a wrong path, a foreign origin or host name, no subprotocol of ours, a server that is
full or leaving. A wrong key is not: a browser could not tell that from a network failure, so it gets 4401 after hello.
Which headers make a handshake is `websockets`' business (RFC 6455 §4).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from websockets.exceptions import NegotiationError
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from sessions.errors import SessileError
from transport import errors
from transport.access import Access
from transport.frames import ENCODINGS, JSON, Encoding

PATH: Final = "/v1/ws"
BEARER_PREFIX: Final = "sessile.bearer."


class Credential(NamedTuple):
    """What the handshake brought to prove who is there. `ticket` False: a key."""

    value: str
    ticket: bool = False


class Agreed(NamedTuple):
    encoding: Encoding
    credential: Credential | None


def select_subprotocol(_: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """The first of the client's that we speak. A client that offers none at all speaks JSON."""
    for name in offered:
        if name in ENCODINGS:
            return name
    if any(not name.startswith(BEARER_PREFIX) for name in offered):
        raise NegotiationError(f"none of the offered subprotocols is one of {', '.join(ENCODINGS)}")
    return None


def shake_hands(ws: ServerProtocol, request: Request, access: Access) -> tuple[Response, Agreed | None]:
    """The answer to a handshake, and what was agreed when it is 101. Raises SessileError for a refusal."""
    url = urlsplit(request.path)
    if url.path != PATH:
        return ws.reject(404, "There is no WebSocket at this path.\n"), None
    host = _only(request.headers.get_all("Host"))
    access.check_host(host)
    access.check_origin(_only(request.headers.get_all("Origin")), host)
    response = ws.accept(request)
    if response.status_code != 101:
        return response, None
    encoding = JSON if ws.subprotocol is None else ENCODINGS[ws.subprotocol]
    offered = _tokens(request.headers.get_all("Sec-WebSocket-Protocol"))
    return response, Agreed(encoding, _credential(request.headers.get_all("Authorization"), url.query, offered))


def refusal(ws: ServerProtocol, error: SessileError) -> Response:
    """An error as the answer to a handshake."""
    response = ws.reject(errors.http_status(error), f"{error.code}: {error.public_message}\n")
    if error.retry_after_ms is not None:
        response.headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))
    return response


def _credential(authorization: list[str], query: str, offered: list[str]) -> Credential | None:
    """The header comes first, then the ticket, then the subprotocol. One that is malformed is one that is wrong."""
    if authorization:
        scheme, _, key = authorization[0].partition(" ")
        return Credential(key.strip() if scheme.lower() == "bearer" and len(authorization) == 1 else "")
    tickets = parse_qs(query).get("ticket")
    if tickets:
        return Credential(tickets[0], ticket=True)
    for name in offered:
        if name.startswith(BEARER_PREFIX):
            encoded = name.removeprefix(BEARER_PREFIX)
            try:
                return Credential(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
            except (binascii.Error, UnicodeDecodeError):
                return Credential("")
    return None


def _only(values: list[str]) -> str | None:
    """A header that may come once. Two of them are none that we trust, and an empty name matches nothing."""
    return (values[0] if len(values) == 1 else "") if values else None


def _tokens(headers: Iterable[str]) -> list[str]:
    return [token.strip() for header in headers for token in header.split(",")]
