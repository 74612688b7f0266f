"""WebSocket connections without a socket: what they write is kept, and parsed as a client parses it."""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import Frame
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from transport.websocket.upgraded import UpgradedConnection

C = TypeVar("C", bound=UpgradedConnection)


class RecordingTransport:
    """A socket that keeps what it is given."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.reading = True
        self.ended = ""  # how: "closed" or "aborted"
        self.protocol: Any = None

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return bool(self.ended)

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None


class SocketlessClient(Generic[C]):
    """The other end of a connection, on `websockets`' parser, with `answer` to its handshake."""

    def __init__(self, connection: C, path: str = "/v1/ws", *subprotocols: str, deflates: bool = False) -> None:
        self.transport = RecordingTransport()
        self.connection = connection
        socket: Any = self.transport
        connection.connection_made(socket)
        offered = [Subprotocol(name) for name in subprotocols]
        extensions = [ClientPerMessageDeflateFactory(client_max_window_bits=True)] if deflates else None
        uri = parse_uri(f"ws://127.0.0.1{path}")
        self.ws = ClientProtocol(uri, subprotocols=offered or None, extensions=extensions)
        handshake = self.ws.connect()
        self.ws.send_request(handshake)
        self.ws.data_to_send()
        connection.shake_hands(handshake)
        self.answer = b"".join(self.transport.written)
        self.frames()

    def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self.ws.send_text(json.dumps(message).encode())
        self.flush()

    def flush(self) -> None:
        for data in self.ws.data_to_send():
            self.connection.data_received(data)

    def frames(self) -> list[Frame]:
        """What came since."""
        for data in self.transport.written:
            self.ws.receive_data(data)
        self.transport.written.clear()
        return [event for event in self.ws.events_received() if isinstance(event, Frame)]
