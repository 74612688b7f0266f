"""A device that costs next to nothing: it reads one session over WebSocket on a bare socket, and acknowledges.

For benches whose client shares the machine with what they measure. Speaks as much of RFC 6455 and of the protocol as
a well-behaved server needs of a reader; what is read is for subclasses to note.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, cast

import msgspec

from testbed.wire_client import TERMINAL, new_ulid

ACK_EVERY = 64  # events
HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: sessile.v1+json\r\n\r\n"
)


def framed(message: dict[str, Any]) -> bytes:
    """A client's text frame; a mask of zeros changes nothing."""
    data = msgspec.json.encode(message)
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + length + bytes(4) + data


class Happened(msgspec.Struct):
    """What of an event the benches look at."""

    type: str
    delta: str = ""
    response_id: str = ""


class DeviceFrame(msgspec.Struct):
    type: str
    session: str = ""
    offset: int = 0
    first_offset: int | None = None
    at: int = 0  # ms
    event: Happened | None = None
    error: dict[str, Any] | None = None


class Device(asyncio.Protocol):
    """One connection with one session."""

    _decoder: ClassVar = msgspec.json.Decoder(DeviceFrame | list[DeviceFrame])

    def __init__(self, host: str, port: int) -> None:
        self.session = ""
        self._address = host, port
        self._unacked = 0
        self._buffer = bytearray()
        self._upgraded = False
        self._awaited: tuple[str, asyncio.Future[DeviceFrame]] | None = None

    def happened(self, frame: DeviceFrame, event: Happened) -> None:
        """One event, or several that were laid together; for subclasses."""

    def close(self) -> None:
        self._transport.close()

    # -- what it asks --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects, makes a session and reads it."""
        await asyncio.get_running_loop().create_connection(lambda: self, *self._address)
        upgraded = self.expect("upgraded")
        self._transport.write(HANDSHAKE)
        await upgraded
        ready = self.expect("ready")
        self.send({"type": "hello"})
        await ready
        created = self.expect("ok")
        self.send({"type": "session.create", "id": new_ulid()})
        self.session = (await created).session
        caught_up = self.expect("caught_up")
        self.send({"type": "subscribe", "id": new_ulid(), "session": self.session, "offset": 0})
        await caught_up

    def begin(self, tokens: int) -> None:
        """Asks for an answer of so many tokens."""
        self.send(
            {
                "type": "message.create",
                "id": new_ulid(),
                "session": self.session,
                "content": "Go on.",
                "max_output_tokens": tokens,
            }
        )

    def expect(self, kind: str) -> asyncio.Future[DeviceFrame]:
        """The next frame of a kind ("end": that of an answer). One wait at a time; an error ends any."""
        self._awaited = (kind, asyncio.get_running_loop().create_future())
        return self._awaited[1]

    def send(self, frame: dict[str, Any]) -> None:
        self._transport.write(framed(frame))

    # -- what it reads ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            del self._buffer[: end + 4]
            self._upgraded = True
            self._answer(DeviceFrame("upgraded"))
        buffer, at = self._buffer, 0
        while len(buffer) - at >= 2:
            length, head = buffer[at + 1] & 127, 2
            if length == 126:
                length, head = int.from_bytes(buffer[at + 2 : at + 4], "big"), 4
            elif length == 127:
                length, head = int.from_bytes(buffer[at + 2 : at + 10], "big"), 10
            if len(buffer) - at < head + length:
                break
            decoded = self._decoder.decode(buffer[at + head : at + head + length])
            at += head + length
            for frame in decoded if isinstance(decoded, list) else (decoded,):
                self._take(frame)
        del buffer[:at]

    def _take(self, frame: DeviceFrame) -> None:
        event = frame.event
        if event is not None:
            self.happened(frame, event)
            if event.type in TERMINAL:
                self._answer(DeviceFrame("end"))
            self._unacked += 1
            if self._unacked >= ACK_EVERY:
                self._unacked = 0
                self.send({"type": "ack", "session": self.session, "offset": frame.offset})
        elif frame.type == "ping":
            self.send({"type": "pong"})
        else:
            self._answer(frame)

    def _answer(self, frame: DeviceFrame) -> None:
        if self._awaited is None or self._awaited[1].done():
            return
        if frame.error is not None:
            self._awaited[1].set_exception(RuntimeError(str(frame.error)))
        elif self._awaited[0] == frame.type:
            self._awaited[1].set_result(frame)
