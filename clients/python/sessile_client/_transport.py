"""The socket under the client: one small interface, and its implementation on ``websockets``.

Decides how to dial (subprotocol, credential, compression where it is asked for, the protocol's own heartbeat in place
of WebSocket pings) and what a refused handshake means. It does NOT know frames. Tests put their own ``Connect`` in its
place.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websockets_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from ._policy import CLOSE_ABNORMAL, DialError
from .errors import SessileError

_USER_AGENT = "sessile-client/0.1"
#: how long a closing handshake may take; a dead peer does not answer one
_CLOSE_TIMEOUT_S = 1.0


class TransportClosed(SessileError):
    """The connection has ended; 1006 where it ended without a close frame."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"closed with {code} {reason}".rstrip())
        self.code = code
        self.reason = reason


class Transport(Protocol):
    """An open connection. ``recv`` and ``send`` raise TransportClosed once it has ended."""

    async def send(self, data: str | bytes) -> None: ...

    async def recv(self) -> str | bytes: ...

    async def close(self, code: int) -> None: ...


@dataclass(frozen=True)
class Dial:
    """What to connect to, and how."""

    url: str
    subprotocol: str
    api_key: str | None
    timeout_s: float
    frame_bytes_max: int
    headers: Mapping[str, str] = field(default_factory=dict)
    deflate: bool = False


Connect = Callable[[Dial], Awaitable[Transport]]


class _Dialling(websockets_connect):
    """Follows no redirect: the key is for the address that the program named."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def connect(dial: Dial) -> Transport:
    """Open a WebSocket; DialError if that fails."""
    headers = dict(dial.headers)
    if dial.api_key is not None:
        headers["Authorization"] = f"Bearer {dial.api_key}"
    try:
        socket = await _Dialling(
            _deflating(dial.url) if dial.deflate else dial.url,
            subprotocols=[Subprotocol(dial.subprotocol)],
            additional_headers=headers,
            user_agent_header=_USER_AGENT,
            compression="deflate" if dial.deflate else None,
            open_timeout=dial.timeout_s,
            close_timeout=_CLOSE_TIMEOUT_S,
            ping_interval=None,
            max_size=dial.frame_bytes_max,
            proxy=None,
        )
    except InvalidStatus as exc:
        response = exc.response
        status = response.status_code
        detail = bytes(response.body or b"")[:500].decode("utf-8", "replace").strip()
        raise DialError(
            f"the server refused the connection with HTTP {status}" + (f": {detail}" if detail else ""),
            http_status=status,
            retry_after_s=_seconds(response.headers.get("Retry-After")),
        ) from exc
    except InvalidURI as exc:
        raise DialError(str(exc), http_status=400) from exc
    except (OSError, TimeoutError, InvalidHandshake) as exc:
        raise DialError(
            f"no connection to {dial.url}: {str(exc) or type(exc).__name__}",
            captive_portal=isinstance(exc, ssl.SSLCertVerificationError),
        ) from exc
    if socket.subprotocol != dial.subprotocol:
        await socket.close(1002, "subprotocol")
        raise DialError(f"{dial.url} does not speak {dial.subprotocol}", http_status=400)
    return _WebSocket(socket)


class _WebSocket:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, data: str | bytes) -> None:
        try:
            await self._socket.send(data)
        except ConnectionClosed as exc:
            raise self._closed() from exc

    async def recv(self) -> str | bytes:
        try:
            return await self._socket.recv()
        except ConnectionClosed as exc:
            raise self._closed() from exc

    async def close(self, code: int) -> None:
        await self._socket.close(code)

    def _closed(self) -> TransportClosed:
        code = self._socket.close_code
        return TransportClosed(CLOSE_ABNORMAL if code is None else code, self._socket.close_reason or "")


def _deflating(url: str) -> str:
    """The address that asks the server for compression."""
    return url + ("&" if "?" in url else "?") + "compress=deflate"


def _seconds(value: str | None) -> float:
    """``Retry-After`` in seconds; its date form, and anything odd, counts as none."""
    if value is None or not value.strip().isdigit():
        return 0.0
    return float(min(int(value.strip()), 3600))
