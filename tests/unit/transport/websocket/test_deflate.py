"""Compression for who asks for it: what was sent comes out again, and nobody else pays for it."""

from __future__ import annotations

import pytest
from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from tests.support.doors.transport import gateway_over, memory_sessions
from transport.protocol.connection import ConnectionLimits
from transport.protocol.frames import JSON, Goaway
from transport.websocket import upgraded
from transport.websocket.connections import WebSocketConnections
from transport.websocket.deflate import DEFLATED_BYTES_MAX, deflated
from transport.websocket.websocket import WebSocketConnection


class Pipe:
    """The transport of a connection: keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closing = True


async def connected(
    path: str, connections: WebSocketConnections | None = None
) -> tuple[ClientProtocol, WebSocketConnection, Pipe]:
    if connections is None:
        connections = WebSocketConnections(gateway_over(await memory_sessions()), ConnectionLimits(), 10)
    connection = WebSocketConnection(connections)
    pipe = Pipe()
    connection.connection_made(pipe)  # type: ignore[arg-type]
    client = ClientProtocol(
        parse_uri(f"ws://127.0.0.1{path}"),
        extensions=[ClientPerMessageDeflateFactory(client_max_window_bits=True)],
        subprotocols=[Subprotocol("sessile.v1+json")],
    )
    request = client.connect()
    connection.shake_hands(request)
    client.send_request(request)
    client.data_to_send()
    taken(client, pipe)
    return client, connection, pipe


def taken(client: ClientProtocol, pipe: Pipe) -> list[bytes]:
    """The messages that the client reads from what was written."""
    client.receive_data(pipe.written)
    pipe.written = b""
    return [bytes(event.data) for event in client.events_received() if isinstance(event, Frame)]


async def test_who_asks_gets_frames_that_share_one_window() -> None:
    client, connection, pipe = await connected("/v1/ws?compress=deflate")
    assert len(client.extensions) == 1
    client.send_text(b'{"type":"hello"}' + b" " * 400)
    for data in client.data_to_send():
        connection.data_received(data)
    connection.flush(0.0)
    (ready,) = taken(client, pipe)
    assert b'"type":"ready"' in ready
    sizes = []
    for _ in range(2):
        connection._out.append(JSON.frame(Goaway(reason="the very same words again", after_ms=1234)))
        connection._flush_out()
        sizes.append(len(pipe.written))
        assert b"the very same words again" in taken(client, pipe)[0]
    assert sizes[1] < sizes[0] / 3
    connection.connection_lost(None)


async def test_a_large_frame_goes_as_it_is() -> None:
    _, connection, _ = await connected("/v1/ws?compress=deflate")
    large = JSON.frame(Goaway(reason="x" * DEFLATED_BYTES_MAX, after_ms=0))
    assert deflated(large, connection._ws.extensions) == large
    small = deflated(JSON.frame(Goaway(reason="x" * 60_000, after_ms=0)), connection._ws.extensions)
    assert len(small) < 500 and small[0] == 0x40 | 0x80 | Opcode.TEXT
    connection.connection_lost(None)


async def test_over_its_bound_a_server_declines_and_who_leaves_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgraded, "DEFLATING_MAX", 1)
    connections = WebSocketConnections(gateway_over(await memory_sessions()), ConnectionLimits(), 10)
    first, held, _ = await connected("/v1/ws?compress=deflate", connections)
    second, plain, _ = await connected("/v1/ws?compress=deflate", connections)
    assert first.extensions and not second.extensions
    for connection in (held, held, plain):
        connection.connection_lost(None)
    assert connections.deflating == 0
