"""What the connections of a server share: one flush a turn, and the ways to end them all."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.doors.transport import gateway_over, memory_sessions
from transport.protocol.connection import ConnectionLimits
from transport.websocket.connections import WebSocketConnections


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


async def opened(connections_max: int = 1) -> Any:
    return WebSocketConnections(gateway_over(await memory_sessions()), ConnectionLimits(), connections_max)


async def test_one_that_fails_in_a_flush_does_not_take_the_rest_along() -> None:
    connections, members = await opened(), [Member(breaks=True), Member()]
    for member in members:
        connections.flush_soon(member)
    assert not members[1].calls
    await asyncio.sleep(0)
    assert [member.calls for member in members] == [["flush", "abort"], ["flush"]]
