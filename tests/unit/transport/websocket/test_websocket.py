"""A WebSocket without a socket: what is taken in, and what leaves in one write."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from tests.support.doors.transport import gateway_over, memory_sessions
from transport.protocol.connection import ConnectionLimits
from transport.websocket.connections import WebSocketConnections
from transport.websocket.upgraded import SLICE_BYTES
from transport.websocket.websocket import WebSocketConnection


class Transport:
    """A socket that keeps what it is given."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.reading = True
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None


class Client:
    """The other end, on `websockets`' parser."""

    def __init__(self, connections: WebSocketConnections) -> None:
        self.transport = Transport()
        connection = connections.protocol()
        assert isinstance(connection, WebSocketConnection)
        self.connection = connection
        socket: Any = self.transport
        self.connection.connection_made(socket)
        self.ws = ClientProtocol(parse_uri("ws://127.0.0.1/v1/ws"), subprotocols=["sessile.v1+json"])  # type: ignore[list-item]
        handshake = self.ws.connect()
        self.ws.send_request(handshake)
        self.ws.data_to_send()
        self.connection.shake_hands(handshake)
        self.read()

    def flush(self) -> None:
        for data in self.ws.data_to_send():
            self.connection.data_received(data)

    def send(self, *frames: dict[str, Any]) -> None:
        for frame in frames:
            self.ws.send_text(msgspec.json.encode(frame))
        self.flush()

    def read(self) -> list[Any]:
        """What came since; the answer to the handshake comes first."""
        for data in self.transport.written:
            self.ws.receive_data(data)
        return self.ws.events_received()


async def opened(limits: ConnectionLimits | None = None) -> WebSocketConnections:
    return WebSocketConnections(gateway_over(await memory_sessions()), limits or ConnectionLimits(), 10)


async def test_hello_is_answered_with_ready_and_a_ping_with_a_pong_in_one_write() -> None:
    client = Client(await opened())
    client.transport.written.clear()
    client.send({"type": "hello"}, {"type": "ping"})
    await asyncio.sleep(0)
    assert len(client.transport.written) == 1
    frames = client.read()
    assert [msgspec.json.decode(frame.data)["type"] for frame in frames] == ["ready", "pong"]
    client.connection.connection_lost(None)


async def test_a_server_that_is_full_refuses_the_handshake() -> None:
    connections = await opened()
    clients = [Client(connections) for _ in range(11)]
    assert b" 429 " in clients[-1].transport.written[0] and clients[-1].transport.closed
    assert connections.gateway.counters["connections_refused"] == 1
    for client in clients:
        client.connection.connection_lost(None)
    assert connections.empty.is_set()


async def test_a_flood_is_taken_in_by_slices() -> None:
    client = Client(await opened())
    client.send({"type": "hello", "device": "x", "auth": "y" * 4000})
    big = {"type": "message.create", "id": "c", "session": "s", "content": "x" * (3 * SLICE_BYTES)}
    client.send(big)
    assert not client.transport.reading
    for _ in range(9):
        await asyncio.sleep(0)
    assert client.transport.reading
    client.connection.connection_lost(None)


async def test_while_the_peer_does_not_read_nothing_is_taken_in() -> None:
    client = Client(await opened())
    client.connection.pause_writing()
    assert not client.transport.reading
    client.connection.resume_writing()
    assert client.transport.reading
    client.connection.abort()
    assert client.transport.closed
    client.connection.connection_lost(None)
