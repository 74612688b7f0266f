"""A WebSocket without a socket: first messages, what is taken in, and what leaves in one write."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import CLIENT, OPEN, Protocol
from websockets.server import ServerProtocol

from sessions.model.errors import Limited, Overloaded
from sessions.model.types import LOCAL_PRINCIPAL, Principal, TenantId, UnixMs
from tests.support.doors.socketless import RecordingTransport, SocketlessClient
from tests.support.doors.transport import gateway_over, memory_sessions
from tests.support.garbage import no_cycles
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.connection_shares import ConnectionShares
from transport.http.request_head import plain_head
from transport.protocol.connection import ConnectionLimits, ConnectionTiming
from transport.protocol.frames import JSON, Goaway
from transport.quotas import Arrival
from transport.websocket import upgraded
from transport.websocket.connections import WebSocketConnections
from transport.websocket.deflate import DEFLATED_BYTES_MAX, deflated
from transport.websocket.first_message import DISCARD_BYTES_MAX, FirstMessage, plain_handshake
from transport.websocket.handshake import PATH, AgreedHandshake, shake_hands
from transport.websocket.upgraded import SLICE_BYTES, SLOW_FRAME_S, UpgradedConnection
from transport.websocket.websocket import HELLO_BYTES_MAX, WebSocketConnection


def client_of(connections: WebSocketConnections, *, deflates: bool = False) -> SocketlessClient[WebSocketConnection]:
    connection = connections.protocol()
    assert isinstance(connection, WebSocketConnection)
    path = "/v1/ws?compress=deflate" if deflates else "/v1/ws"
    return SocketlessClient(connection, path, "sessile.v1+json", deflates=deflates)


async def opened() -> WebSocketConnections:
    return WebSocketConnections(gateway_over(await memory_sessions()), ConnectionLimits(), 10)


async def test_a_peer_that_does_not_read_is_not_read_before_its_hello_either() -> None:
    client = client_of(await opened())
    client.connection.pause_writing()
    assert not client.transport.reading
    client.connection.resume_writing()
    assert client.transport.reading
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


class Member:
    """A connection that is only counted."""

    slot = 0

    def __init__(self, *, breaks: bool = False) -> None:
        self.breaks = breaks
        self.calls: list[str] = []

    def flush(self, now: float) -> None:
        self.calls.append("flush")
        if self.breaks:
            raise RuntimeError("a bug of ours")

    def abort(self) -> None:
        self.calls.append("abort")

    def goaway(self, reason: str, after_ms: int) -> None:
        self.calls.append(f"goaway {reason} {after_ms}")


async def test_one_that_fails_in_a_flush_does_not_take_the_rest_along() -> None:
    connections, members = await opened(), [Member(breaks=True), Member()]
    for member in members:
        connections.flush_soon(member)  # type: ignore[arg-type]
    assert not members[1].calls
    await asyncio.sleep(0)
    assert [member.calls for member in members] == [["flush", "abort"], ["flush"]]


async def test_who_asks_gets_frames_that_share_one_window() -> None:
    client = client_of(await opened(), deflates=True)
    connection = client.connection
    assert len(client.ws.extensions) == 1
    client.ws.send_text(b'{"type":"hello"}' + b" " * 400)
    client.flush()
    connection.flush(0.0)
    (ready,) = client.frames()
    assert b'"type":"ready"' in ready.data
    sizes = []
    for _ in range(2):
        connection._out.append(JSON.frame(Goaway(reason="the very same words again", after_ms=1234)))
        connection._flush_out()
        sizes.append(sum(map(len, client.transport.written)))
        assert b"the very same words again" in client.frames()[0].data
    assert sizes[1] < sizes[0] / 3
    connection.connection_lost(None)


async def test_a_large_frame_goes_as_it_is() -> None:
    connection = client_of(await opened(), deflates=True).connection
    large = JSON.frame(Goaway(reason="x" * DEFLATED_BYTES_MAX, after_ms=0))
    assert deflated(large, connection._ws.extensions) == large
    small = deflated(JSON.frame(Goaway(reason="x" * 60_000, after_ms=0)), connection._ws.extensions)
    assert len(small) < 500 and small[0] == 0x40 | 0x80 | Opcode.TEXT
    connection.connection_lost(None)


async def test_over_its_bound_a_server_declines_and_who_leaves_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgraded, "DEFLATING_MAX", 1)
    connections = await opened()
    first, second = (client_of(connections, deflates=True) for _ in range(2))
    assert first.ws.extensions and not second.ws.extensions
    for client in (first, first, second):
        client.connection.connection_lost(None)
    assert connections.deflating == 0


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


class Stranger:
    """The other end, on `websockets`' parser."""

    def __init__(self, connections: WebSocketConnections) -> None:
        self.connections = connections
        self.transport = cast(Any, RecordingTransport())
        self.place = connections.shares.open("127.0.0.1", plain=True)
        first = connections.begin(head_of(), self.transport, "127.0.0.1", self.place)
        assert first is not None
        self.first: FirstMessage = first
        self.transport.written.clear()
        self.ws = Protocol(CLIENT, state=OPEN)

    def send(self, data: bytes) -> None:
        """Hands bytes in as the socket does; a connection that was handed over gets them at its new protocol."""
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


def test_a_request_that_is_no_handshake_is_free_at_once() -> None:
    access = Authenticator({}, clock=lambda: 100.0, now_ms=lambda: UnixMs(0))
    headers = {"Host": "127.0.0.1", "Connection": "Upgrade", "Upgrade": "websocket"}  # and no key
    with no_cycles(Request):
        response, agreed = shake_hands(ServerProtocol(), Request(PATH, Headers(headers)), access)
        assert response.status_code == 400 and agreed is None


@dataclass(slots=True, eq=False, repr=False)
class Listing(UpgradedConnection):
    """Keeps whole messages."""

    messages: list[tuple[bytes, bool]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def _agreed(self, agreed: AgreedHandshake) -> None:
        self._read_frames(200_000)

    def _whole_message(self, data: Any, binary: bool) -> None:
        self.messages.append((bytes(data), binary))

    def _closing(self) -> None:
        self.ended.append("closing")

    def _lost(self) -> None:
        self.ended.append("lost")

    def _end_overloaded(self, error: Overloaded) -> None:
        self.ended.append(error.code)

    def _flush_out(self) -> None: ...

    def _stalled(self) -> None: ...

    def _flowing(self) -> None: ...

    def _finish(self) -> None:
        self._transport.close()

    def due(self) -> float:
        return float("inf")

    def elapsed(self, now: float) -> None: ...

    def flush(self, now: float) -> None: ...

    def goaway(self, reason: str, after_ms: int) -> None: ...


Client = SocketlessClient[Listing]


def bytes_of(*frames: Frame) -> bytes:
    return b"".join(frame.serialize(mask=True) for frame in frames)


@pytest.fixture
async def client() -> Client:
    return Client(Listing(await opened()))


async def test_nothing_more_is_read_while_a_flood_is_taken_in_or_the_peer_does_not_read(client: Client) -> None:
    big = Frame(Opcode.TEXT, b"x" * (3 * SLICE_BYTES))
    client.connection.data_received(bytes_of(big))
    assert client.connection.messages == [] and not client.transport.reading
    client.connection.pause_writing()
    client.connection._next_slice()
    client.connection._next_slice()
    assert client.connection.messages == []
    client.connection.resume_writing()
    for _ in range(4):
        client.connection._next_slice()
    assert len(client.connection.messages) == 1 and client.transport.reading


async def test_pings_cost_their_key_something_and_what_comes_behind_them_waits_its_turn(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 pings a connection, as often as one liked, were in no limit at all."""
    arrivals: list[Arrival] = []

    def pace(principal: Principal, arrival: Arrival) -> float:
        arrivals.append(arrival)
        if len(arrivals) > 2:
            raise Limited("rate_limited", "None left.", retry_after_ms=3_600_000)
        return 3_600.0

    client.connection._principal = LOCAL_PRINCIPAL
    monkeypatch.setattr(client.connection._shared.gateway, "pace_arrival", pace)
    for number in range(1, 4):
        client.connection.data_received(bytes_of(*[Frame(Opcode.PING, b"x")] * 500))
        client.connection.data_received(bytes_of(Frame(Opcode.TEXT, b"behind")))
        assert len(client.connection.messages) == number - 1 and not client.transport.reading
        client.connection.resume_writing()
        assert not client.transport.reading, "that it reads what we write changes nothing"
        client.connection._waits = False
        client.connection._next_slice()
        assert len(client.connection.messages) == number
        client.connection._end_wait()
        assert client.transport.reading
    assert [round(arrival.weight, 2) for arrival in arrivals] == [5.0, 0.01] * 3
    assert arrivals[0].cost > arrivals[1].cost


async def test_a_key_without_requests_is_read_on_and_only_a_flood_of_frames_is_slowed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few frames behind the last request stopped the reading for up to ten seconds, and with it cancels and acks."""
    waits: list[float] = []
    codes = iter(["key_requests_per_minute", "key_requests_per_minute", None])

    def pace(principal: Principal, arrival: Arrival) -> float:
        raise Limited("rate_limited", "None left.", param=next(codes), retry_after_ms=8_000)

    client.connection._principal = LOCAL_PRINCIPAL
    monkeypatch.setattr(client.connection._shared.gateway, "pace_arrival", pace)
    monkeypatch.setattr(UpgradedConnection, "_wait", lambda self, wait_s: waits.append(wait_s))
    for many in (3, 300, 3):
        client.connection.data_received(bytes_of(*[Frame(Opcode.TEXT, b"x")] * many))
    assert len(client.connection.messages) == 306
    assert waits == [3 * SLOW_FRAME_S, 300 * SLOW_FRAME_S, 8.0], "the last one is of a key that sends too much at once"
