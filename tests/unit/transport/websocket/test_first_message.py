"""First messages without a parser: which handshakes are plain, what becomes of a message, what behind a refusal."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, OPEN, Protocol

from sessions.model.types import Principal, TenantId, UnixMs
from tests.support.doors.transport import gateway_over, memory_sessions
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.connection_shares import ConnectionShares
from transport.http.request_head import plain_head
from transport.protocol.connection import ConnectionLimits, ConnectionTiming
from transport.websocket.connections import WebSocketConnections
from transport.websocket.first_message import DISCARD_BYTES_MAX, FirstMessage, plain_handshake
from transport.websocket.websocket import HELLO_BYTES_MAX, WebSocketConnection

KEY = "good"
PLAIN = {
    "Host": "localhost",
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def access(*, keyed: bool = True) -> Authenticator:
    keys = {key_digest(KEY): Principal(tenant=TenantId("acme"), key_id="k")} if keyed else {}
    return Authenticator(keys, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))


def head_of(path: str = "/v1/ws", method: str = "GET", **changed: str | None) -> dict[str, Any]:
    headers = {**PLAIN, **{name.replace("_", "-"): value for name, value in changed.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value is not None)
    head = plain_head(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode())
    assert head is not None
    return dict(head)


def test_the_answer_is_rfc_6455s() -> None:
    agreed = plain_handshake(head_of(**{"Sec-WebSocket-Protocol": "other, sessile.v1+msgpack"}), access())
    assert agreed is not None and agreed.encoding.binary
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in agreed.answer
    assert agreed.answer.endswith(b"Sec-WebSocket-Protocol: sessile.v1+msgpack\r\n\r\n")


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "/v1/ws?ticket=tkt_x"},
        {"path": "/v1/other"},
        {"method": "HEAD"},
        {"Authorization": "Bearer good"},
        {"X-Sessile-User": "u"},
        {"Content-Length": "0"},
        {"Connection": "upgraded"},
        {"Sec-WebSocket-Version": "12"},
        {"Sec-WebSocket-Key": "short"},
        {"Sec-WebSocket-Key": None},
        {"Sec-WebSocket-Protocol": "sessile.v1+json, sessile.bearer.Z29vZA"},
        {"Sec-WebSocket-Protocol": "other"},
    ],
)
def test_what_is_written_otherwise_or_brings_a_credential_is_parsed(changed: dict[str, Any]) -> None:
    assert plain_handshake(head_of(**changed), access()) is None


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended = ""
        self.protocol: Any = None

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def is_closing(self) -> bool:
        return bool(self.ended)

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None


class Stranger:
    """The other end, on `websockets`' parser."""

    def __init__(self, connections: WebSocketConnections) -> None:
        self.connections = connections
        self.transport = cast(Any, Transport())
        self.place = connections.shares.open("127.0.0.1", plain=True)
        first = connections.begin(head_of(), self.transport, "127.0.0.1", self.place)
        assert first is not None
        self.first: FirstMessage = first
        self.transport.written.clear()
        self.ws = Protocol(CLIENT, state=OPEN)

    def send(self, data: bytes) -> None:
        """As the socket hands it in; what was handed over goes to its new protocol."""
        while data and self.transport.protocol is None:
            buffer = self.first.get_buffer(-1)
            piece, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(piece)] = piece
            self.first.buffer_updated(len(piece))
        if data:
            self.transport.protocol.data_received(data)

    def text(self, payload: bytes) -> bytes:
        self.ws.send_text(payload)
        return b"".join(self.ws.data_to_send())

    def close_code(self) -> int | None:
        for data in self.transport.written:
            self.ws.receive_data(data)
        closed = [each for each in self.ws.events_received() if isinstance(each, Frame) and each.opcode is Opcode.CLOSE]
        return int.from_bytes(closed[0].data[:2], "big") if closed else None


async def connections(limits: ConnectionLimits | None = None, *, most: int = 10) -> WebSocketConnections:
    gateway = gateway_over(await memory_sessions(), access())
    return WebSocketConnections(gateway, limits or ConnectionLimits(), most, ConnectionShares())


def hello(key: str, size: int = 0) -> bytes:
    return msgspec.json.encode({"type": "hello", "auth": key, "device": "x" * size})


@pytest.mark.parametrize("size", [0, 200, 60_000])
@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_wrong_key_is_refused_in_one_write(size: int, pieces: int) -> None:
    stranger = Stranger(await connections())
    frame = stranger.text(hello("bad", size))
    for number in range(pieces):
        stranger.send(frame[len(frame) * number // pieces : len(frame) * (number + 1) // pieces])
    assert len(stranger.transport.written) == 1 and stranger.transport.protocol is None
    assert b'"unauthorized"' in stranger.transport.written[0] and stranger.close_code() == 4401
    stranger.send(b"\x88\x80\0\0\0\0")  # its close frame: nothing is waited for
    assert stranger.transport.ended == "closed"
    stranger.first.connection_lost(None)
    assert not stranger.connections.connections and stranger.connections.empty.is_set()
    assert not stranger.connections.shares.unauthenticated and not stranger.connections.shares.plain


@pytest.mark.parametrize(
    "frame",
    [
        b"\x89\x80\0\0\0\0",  # a ping
        b"\x01\x81\0\0\0\0x",  # the first of several
        b"\x81\x05hello",  # without a mask
        b"\x82\x81\0\0\0\0x",  # of the other kind
        b"\x81\xff" + (HELLO_BYTES_MAX + 1).to_bytes(8, "big") + b"\0\0\0\0",
        b"\xff\xff\xff\xff",
    ],
)
async def test_what_is_no_plain_message_is_parsed(frame: bytes) -> None:
    stranger = Stranger(await connections())
    stranger.send(frame)
    assert isinstance(stranger.transport.protocol, WebSocketConnection)
    stranger.send(stranger.text(hello("bad")))
    stranger.transport.protocol.connection_lost(None)
    assert not stranger.connections.shares.unauthenticated


async def test_a_flood_behind_a_refusal_is_cut() -> None:
    stranger = Stranger(await connections())
    stranger.send(stranger.text(hello("bad")))
    stranger.send(b"x" * DISCARD_BYTES_MAX)
    assert not stranger.transport.ended
    stranger.send(b"x")
    assert stranger.transport.ended == "aborted"
    stranger.first.connection_lost(None)


async def test_who_says_nothing_is_refused_and_then_cut() -> None:
    stranger = Stranger(await connections(ConnectionLimits(timing=ConnectionTiming(hello_s=0.0, close_s=0.0))))
    stranger.first.elapsed(0.0)
    assert b'"hello_timeout"' in stranger.transport.written[0] and stranger.close_code() == 4400
    stranger.first.elapsed(0.0)
    assert stranger.transport.ended == "aborted"
    stranger.first.connection_lost(None)


async def test_a_server_that_stops_closes_connections_without_a_hello_as_going_away() -> None:
    stranger = Stranger(await connections())
    stranger.connections.goaway("restart", 1000)
    await asyncio.sleep(0)
    assert b'"goaway"' in stranger.transport.written[0]
    stranger.transport.protocol.connection_lost(None)


async def test_beyond_the_connections_and_while_it_leaves_handshakes_are_parsed() -> None:
    """And refused there, with their reasons."""
    full = await connections(most=1)
    stranger = Stranger(full)
    assert full.begin(head_of(), stranger.transport, "127.0.0.1", None) is None
    stranger.first.connection_lost(None)
    full.gateway.draining = True
    assert full.begin(head_of(), stranger.transport, "127.0.0.1", None) is None
