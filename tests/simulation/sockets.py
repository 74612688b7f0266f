"""A client's connection to a gateway: the real WebSocket shell on a transport of ours, and the wire between the two.

Bytes arrive in order after a delay, or not at all: a wire can be silent (nothing arrives and nobody is told) or cut.
The client's end masks with zeros, which RFC 6455 allows; no proper client would, and nothing depends on it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Request as Handshake

from tests.simulation.loop import Process
from tests.simulation.world import World
from transport.websocket.connections import WebSocketConnections
from transport.websocket.websocket import WebSocketConnection

_json = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
_msgpack = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode


def handshake(subprotocol: str) -> Handshake:
    """The request that a gateway's HTTP connection has parsed."""
    head = {
        "Host": "sessile.test",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol": subprotocol,
    }
    return Handshake("/v1/ws", Headers(head))


class Transport(asyncio.Transport):
    """The gateway's end of the socket."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closing:
            self._wire.to_client(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._wire.ended_there()

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        raise NotImplementedError

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Wire:
    """One connection. `on_message` and `on_end` are the client's."""

    def __init__(
        self,
        world: World,
        process: Process,
        door: WebSocketConnections,
        rng: Random,
        *,
        binary: bool,
        on_message: Callable[[dict[str, Any]], None],
        on_end: Callable[[int], None],
    ) -> None:
        self.silent = False
        self.slow_s = 0.0
        self.over = False  # the client's end
        self.accepted = False
        self._world = world
        self._process = process
        self._rng = rng
        self._encode, self._decode = _msgpack if binary else _json
        self._first = 0x82 if binary else 0x81
        self._on_message, self._on_end = on_message, on_end
        self._there_at = self._back_at = 0.0
        self._buffer = b""
        self._lost_there = False
        self._transport = Transport(self)
        self._connection = door.protocol()
        assert isinstance(self._connection, WebSocketConnection)
        self._later(self._made)
        self._later(self._shake_hands, handshake("sessile.v1+" + ("msgpack" if binary else "json")))

    # -- towards the gateway ----------------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        if self.over:
            return
        data = self._encode(message)
        length = len(data)
        head = (
            struct.pack("!BB", self._first, 0x80 | length)
            if length < 126
            else struct.pack("!BBH", self._first, 0xFE, length)
        )
        self._later(self._data, head + b"\0\0\0\0" + data)

    def cut(self) -> None:
        """The client's network is gone: no close frame. The gateway finds out when its side resets."""
        if not self.over:
            self.over = True
            self._later(self._lost)

    def _delay(self) -> float:
        return 0.0002 + self._rng.random() * (0.001 + self.slow_s)

    def _later(self, what: Callable[..., None], *args: Any) -> None:
        loop = self._world.loop
        self._there_at = max(self._there_at, loop.now + self._delay())
        loop.in_world(self._there_at - loop.now, self._there, what, args)

    def _there(self, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._process.dead or (self.silent and what != self._lost):
            return
        # The gateway reads in its own time: not while it stands still.
        self._world.loop.call_soon(what, *args, context=self._process.context.copy())

    def _made(self) -> None:
        self._connection.connection_made(self._transport)

    def _shake_hands(self, request: Handshake) -> None:
        if not self._transport.closing:
            self._connection.shake_hands(request)

    def _data(self, data: bytes) -> None:
        if not self._transport.closing:
            self._connection.data_received(data)

    def _lost(self) -> None:
        self._transport.closing = True
        if not self._lost_there:
            self._lost_there = True
            self._connection.connection_lost(None)

    # -- towards the client -----------------------------------------------------------------------------------------

    def to_client(self, data: bytes) -> None:
        self._back(self._received, data)

    def ended_there(self) -> None:
        """The gateway has closed its end."""
        self._world.loop.call_soon(self._lost)
        self._back(self._end, 1006)

    def goaway(self) -> None:
        """The gateway asks its client to leave; called in the gateway's own name."""
        self._connection.goaway("restart", 0)

    def died(self) -> None:
        """The gateway's process is gone."""
        self._back(self._end, 1006)

    def _back(self, what: Callable[..., None], *args: Any) -> None:
        loop = self._world.loop
        self._back_at = max(self._back_at, loop.now + self._delay())
        loop.in_world(self._back_at - loop.now, self._here, what, args)

    def _here(self, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.over and not self.silent:
            what(*args)

    def _end(self, code: int) -> None:
        self.over = True
        self._on_end(code)

    def _received(self, data: bytes) -> None:
        data = self._buffer = self._buffer + data
        if not self.accepted:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                return
            if not data.startswith(b"HTTP/1.1 101"):
                self._end(1013)
                return
            self.accepted = True
            data = data[end + 4 :]
        at = 0
        while len(data) - at >= 2:
            length, begin = data[at + 1], at + 2
            if length == 126:
                length, begin = int.from_bytes(data[begin : begin + 2]), begin + 2
            elif length == 127:
                length, begin = int.from_bytes(data[begin : begin + 8]), begin + 8
            if len(data) < begin + length:
                break
            body, kind = data[begin : begin + length], data[at] & 0x0F
            at = begin + length
            if kind == 8:
                self._buffer = b""
                code = int.from_bytes(body[:2])
                self.cut()
                self._on_end(code)
                return
            self._world.shown(body, "a client's socket")
            self._on_message(self._decode(body))
            if self.over:
                return
        self._buffer = data[at:]
