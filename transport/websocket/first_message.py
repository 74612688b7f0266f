"""Answers a plain WebSocket handshake without a key, and judges the first message by the key that it brings, before
there is a parser for either.

Nearly every handshake is written the same way, and nearly every first message is one whole frame. What is, costs a
stranger's connection a fifth of what `websockets`' parsers and a connection's core do; a refusal leaves in one write.
Whatever is written otherwise, and whoever has shown a good key, gets a `WebSocketConnection`, which reads the same
bytes from the start: a frame that two parsers read differently gains nothing.

Never decides about more than the key; RFC 6455 is `websockets`' business.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from sessions.model.errors import SessileError, Unauthorized
from sessions.model.types import Principal
from transport import errors
from transport.auth.authenticator import Authenticator
from transport.auth.connection_shares import Place
from transport.protocol.decoding import hello_credential
from transport.protocol.frames import ENCODINGS, JSON, Encoding, error_frame
from transport.websocket.handshake import BEARER_PREFIX, PATH, USER_HEADER, tokens_of
from transport.websocket.upgraded import ConnectionHost
from transport.websocket.websocket import HELLO_BYTES_MAX, WebSocketConnection

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without a compiler
    from websockets.utils import apply_mask

HEAD_BYTES: Final = 8  # of a frame's head with a length in two bytes and a mask
CLOSE: Final = 0x88
DISCARD_BYTES_MAX: Final = 64 * 1024  # read after a refusal; then the connection is cut
_ACCEPT_KEY: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_SWITCHING: Final = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
)
_OTHERWISE: Final = frozenset({b"authorization", b"content-length", b"transfer-encoding", USER_HEADER.encode()})
_ONCE: Final = frozenset({b"origin", b"sec-websocket-key", b"sec-websocket-version", b"upgrade"})


class PlainHandshake(NamedTuple):
    """The result of a handshake without credential, with the bytes of its answer."""

    encoding: Encoding
    answer: bytes
    origin: str | None
    host: str
    forwarded: list[str]


def plain_handshake(head: Mapping[str, Any], access: Authenticator) -> PlainHandshake | None:
    """Reads a handshake (of `plain_head`). Returns None if it has a credential or is not written as nearly all are."""
    if head["method"] != "GET" or head["raw_path"] != PATH.encode():
        return None
    once: dict[bytes, bytes] = {}
    protocols, forwarded, host, named = [], [], "", False
    for name, value in head["headers"]:
        if name in _OTHERWISE or (name == b"cookie" and access.sign_in is not None):
            return None
        if name in _ONCE:
            if name in once:
                return None
            once[name] = value
        elif name == b"connection":
            named = named or b"upgrade" in [token.strip() for token in value.lower().split(b",")]
        elif name == b"sec-websocket-protocol":
            protocols.append(value.decode("latin-1"))
        elif name == b"x-forwarded-for":
            forwarded.append(value.decode("latin-1"))
        elif name == b"host":
            host = value.decode("latin-1")
    key = once.get(b"sec-websocket-key", b"")
    offered = tokens_of(protocols)
    chosen = next((token for token in offered if token in ENCODINGS), None)
    bearer = any(token.startswith(BEARER_PREFIX) for token in offered)
    if not named or once.get(b"sec-websocket-version") != b"13" or bearer or (offered and chosen is None):
        return None
    try:
        if len(base64.b64decode(key, validate=True)) != 16:
            return None
    except binascii.Error:
        return None
    answer = _SWITCHING + base64.b64encode(hashlib.sha1(key + _ACCEPT_KEY).digest()) + b"\r\n"
    if chosen is not None:
        answer += f"Sec-WebSocket-Protocol: {chosen}\r\n".encode()
    origin = once[b"origin"].decode("latin-1") if b"origin" in once else None
    encoding = JSON if chosen is None else ENCODINGS[chosen]
    return PlainHandshake(encoding, answer + b"\r\n", origin, host, forwarded)


class FirstMessage(asyncio.BufferedProtocol):
    """A WebSocket connection that waits for its first message; one of its host's connections. `FirstHead`, which stays
    the transport's protocol, calls its methods: replacing the protocol would cost more than all of this."""

    __slots__ = (
        *("_client", "_data", "_discarded", "_encoding", "_host", "_place", "_refused_at", "_since", "_transport"),
        "slot",
    )

    def __init__(self, host: ConnectionHost, encoding: Encoding, client: str | None, place: Place) -> None:
        """`client`: the peer's address, or the one that a trusted proxy names."""
        self.slot = 0
        self._host = host
        self._encoding = encoding
        self._client = client
        self._place: Place | None = place
        self._since = host.loop.time()
        self._refused_at: float | None = None
        self._discarded = 0
        self._data = bytearray()

    def begin(self, transport: asyncio.Transport, answer: bytes) -> None:
        """Takes over a connection and writes `answer` to its handshake."""
        self._transport = transport
        self._host.opened(self)
        self._host.gateway.count("connections")
        self._host.wheel.put(self)
        transport.write(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.closed(self)
        if self._place is not None:
            self._place.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._host.first_bytes

    def buffer_updated(self, nbytes: int) -> None:
        read = self._host.first_bytes[:nbytes]
        if self._refused_at is not None:
            self._discarded += nbytes
            if read[0] == CLOSE:  # our close frame has been read: there is nothing to wait for
                self._transport.close()
            elif self._discarded > DISCARD_BYTES_MAX:
                self._transport.abort()
            return
        self._data += read
        payload = self._payload()
        if payload is None:
            return
        try:
            credential = hello_credential(payload, self._encoding) if payload else None
            access = self._host.gateway.access
            principal = access.authenticate(credential, self._client, with_body=True) if payload else None
            if principal is not None:
                if self._place is not None:
                    self._place.authenticated(principal)
                self._host.gateway.check_connection_rate()
        except SessileError as error:
            self._refuse(error)
            return
        self._hand_over(principal)

    def _payload(self) -> bytes | None:
        """Returns the first message, or None while it is incomplete; empty if it is no plain frame or too large."""
        data = self._data
        if len(data) < HEAD_BYTES:
            return None if len(data) < 2 or _is_plain(data, self._encoding) else b""
        if not _is_plain(data, self._encoding):
            return b""
        short = data[1] & 0x7F
        at, length = (4, int.from_bytes(data[2:4], "big")) if short == 126 else (2, short)
        if not 0 < length <= HELLO_BYTES_MAX:
            return b""
        if len(data) < at + 4 + length:
            return None
        return apply_mask(memoryview(data)[at + 4 : at + 4 + length], bytes(data[at : at + 4]))

    def _refuse(self, error: SessileError) -> None:
        """Writes an error frame and a close frame at once, as the connection's core would."""
        code, reason = errors.row(error.code).close or errors.BAD_FRAME, error.code.encode()
        self._host.gateway.count(f"closed_{code}")
        frame = self._encoding.frame(error_frame(error))
        self._transport.write(b"%s%c%c%s%s" % (frame, CLOSE, 2 + len(reason), code.to_bytes(2, "big"), reason))
        self._refused_at = self._host.loop.time()
        self._data = bytearray()
        self._host.wheel.put(self)

    def _hand_over(self, principal: Principal | None) -> WebSocketConnection:
        """Replaces itself by a full connection, which gets the bytes read so far."""
        host, data = self._host, bytes(self._data)
        connection = WebSocketConnection(host)
        host.opened(connection)
        host.closed(self)
        place, self._place = self._place, None
        connection.go_on(self._transport, self._encoding, principal, self._client, place, self._since)
        self._transport.set_protocol(connection)
        if data:
            connection.data_received(data)
        return connection

    # -- as a connection of its host ----------------------------------------------------------------------------------

    def due(self) -> float:
        timing = self._host.limits.timing
        return self._since + timing.hello_s if self._refused_at is None else self._refused_at + timing.close_s

    def elapsed(self, now: float) -> None:
        """Ends the connection: no hello came, or the peer did not close. The timer wheel calls this."""
        if self._refused_at is None:
            self._refuse(Unauthorized("hello_timeout", f"No hello within {self._host.limits.timing.hello_s:g} s."))
        else:
            self._transport.abort()

    def goaway(self, reason: str, after_ms: int) -> None:
        if self._refused_at is None:
            self._hand_over(None).goaway(reason, after_ms)

    def flush(self, now: float) -> None:
        """Does nothing: everything was written at once."""

    def abort(self) -> None:
        self._transport.abort()


def _is_plain(data: bytearray, encoding: Encoding) -> bool:
    """Returns whether a frame is a masked whole message of the agreed kind, with a length in at most two bytes."""
    return data[0] == (0x82 if encoding.binary else 0x81) and 0x80 <= data[1] < 0xFF


def first_message(
    host: ConnectionHost,
    head: Mapping[str, Any],
    transport: asyncio.BaseTransport,
    peer: str | None,
    place: Place | None,
) -> FirstMessage | None:
    """Answers a plain handshake without a credential and returns the reader of its first message, which then owns
    `place`; None if the handshake must be parsed. Raises SessileError if it is refused."""
    gateway = host.gateway
    access = gateway.access
    agreed = None if access.open or gateway.draining or host.full else plain_handshake(head, access)
    if agreed is None:
        return None
    access.origins.check_origin(agreed.origin, agreed.host)
    client = access.origins.proxies.client(peer, agreed.forwarded)
    if place is not None and client == peer:
        place.upgraded()
    else:
        if place is not None:
            place.close()
        place = host.shares.open(client, plain=False)
    first = FirstMessage(host, agreed.encoding, client, place)
    first.begin(cast(asyncio.Transport, transport), agreed.answer)
    return first
