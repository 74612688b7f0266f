"""A WebSocket without a socket: what is taken in, and what leaves in one write."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from websockets.frames import Frame, Opcode

from tests.support.doors.socketless import SocketlessClient
from tests.support.doors.transport import gateway_over, memory_sessions
from transport.protocol.connection import ConnectionLimits
from transport.websocket import upgraded
from transport.websocket.connections import WebSocketConnections
from transport.websocket.websocket import WebSocketConnection


def client_of(connections: WebSocketConnections) -> SocketlessClient[WebSocketConnection]:
    connection = connections.protocol()
    assert isinstance(connection, WebSocketConnection)
    return SocketlessClient(connection, "/v1/ws", "sessile.v1+json")


async def opened(limits: ConnectionLimits | None = None) -> WebSocketConnections:
    return WebSocketConnections(gateway_over(await memory_sessions()), limits or ConnectionLimits(), 10)


async def test_while_the_peer_does_not_read_nothing_is_taken_in() -> None:
    client = client_of(await opened())
    client.connection.pause_writing()
    assert not client.transport.reading
    client.connection.resume_writing()
    assert client.transport.reading
    client.connection.abort()
    assert client.transport.closed
    client.connection.connection_lost(None)


async def test_parts_of_large_messages_have_a_bound_over_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key may have 10,000 connections, and each kept up to 1 MiB for as long as it liked."""
    monkeypatch.setattr(upgraded, "MESSAGE_BYTES_MAX", 150_000)
    connections = await opened()
    first, second, third = (client_of(connections) for _ in range(3))
    for each in (first, second, third):
        each.send({"type": "hello"})
    await asyncio.sleep(0)
    half = Frame(Opcode.TEXT, b" " * 90_000, fin=False).serialize(mask=True)
    for each in (first, second):
        each.frames()
        each.connection.data_received(half)
        for _ in range(9):
            await asyncio.sleep(0)
    *_, close = second.frames()
    assert not first.frames() and 90_000 <= connections.message_bytes <= 190_000
    assert close.opcode is Opcode.CLOSE and int.from_bytes(close.data[:2]) == 1013
    third.send({"type": "ping"})
    await asyncio.sleep(0)
    assert msgspec.json.decode(third.frames()[-1].data)["type"] == "pong"
    for each in (first, second, third):
        each.connection.connection_lost(None)
    assert connections.message_bytes == 0
