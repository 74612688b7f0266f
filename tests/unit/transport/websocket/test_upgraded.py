"""What every WebSocket of ours does with bytes, whatever its messages mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from sessions.model.errors import Limited, Overloaded
from sessions.model.types import LOCAL_PRINCIPAL, Principal
from tests.support.doors.socketless import SocketlessClient
from tests.support.doors.transport import gateway_over, memory_sessions
from transport.protocol.connection import ConnectionLimits
from transport.quotas import Arrival
from transport.websocket.connections import WebSocketConnections
from transport.websocket.handshake import AgreedHandshake
from transport.websocket.upgraded import SLICE_BYTES, UpgradedConnection


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


def client_of(connections: WebSocketConnections, path: str = "/v1/ws") -> Client:
    return Client(Listing(connections), path)


@pytest.fixture
async def client() -> Client:
    gateway = gateway_over(await memory_sessions())
    return client_of(WebSocketConnections(gateway, ConnectionLimits(), 10))


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
