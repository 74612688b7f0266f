"""A subscription is live when every channel is, and comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from actors.directory.pipelined_connection import NotSent
from actors.directory.pubsub import PAUSE_S, PubSubListener
from tests.support.cluster.redis_connection import FakeConnection
from tests.support.virtual_time import advance, outcome, virtual


class Servers:
    """Hands out one connection after another."""

    def __init__(self, *connections: FakeConnection) -> None:
        self.connections = list(connections)
        self.refreshed = 0

    def spread(self, keys: Iterable[str]) -> list[tuple[Callable[[], Any], list[str]]]:
        return [(lambda: self.connections.pop(0), list(keys))]

    async def refresh(self) -> None:
        self.refreshed += 1


def listener(servers: Servers, got: list[bytes]) -> PubSubListener:
    return PubSubListener(servers, ["a", "b"], got.append, quiet_s=2.0)  # type: ignore[arg-type]


def subscribed(*channels: bytes) -> list[list[object]]:
    return [[b"ssubscribe", channel, 1] for channel in channels]


@virtual
async def test_it_is_ready_when_every_channel_is_subscribed_and_passes_messages_on() -> None:
    connection, got = FakeConnection(*subscribed(b"a")), list[bytes]()
    listening = listener(Servers(connection), got)
    assert isinstance(await outcome(listening.ready(0.5)), NotSent)
    connection.answer(*subscribed(b"b"), [b"smessage", b"a", b"hello"])
    await listening.ready(0.5)
    await advance(0.1)
    assert got == [b"hello"] and connection.sent == [("SSUBSCRIBE", "a"), ("SSUBSCRIBE", "b")]
    await listening.close()
    assert not connection.is_connected


@virtual
async def test_a_slot_that_moves_away_or_a_broken_connection_begins_it_anew() -> None:
    first, second = FakeConnection(*subscribed(b"a", b"b")), FakeConnection(*subscribed(b"a", b"b"))
    servers = Servers(first, second)
    listening = listener(servers, [])
    await listening.ready(0.5)
    first.answer([b"sunsubscribe", b"a", 0])
    await advance(PAUSE_S / 2)
    assert not listening.live.is_set()
    await advance(PAUSE_S)
    assert listening.live.is_set() and servers.refreshed == 1 and servers.connections == []
    await listening.close()


@virtual
async def test_a_silent_server_is_probed_once_and_then_left() -> None:
    first, second = FakeConnection(*subscribed(b"a", b"b")), FakeConnection(*subscribed(b"a", b"b"))
    listening = listener(Servers(first, second), [])
    await listening.ready(0.5)
    first.answer(None)
    await advance(0.01)
    assert first.sent[-1] == ("PING",)
    first.answer([b"pong", b""], None)
    await advance(0.01)
    assert listening.live.is_set(), "it answered the first"
    first.answer(None)
    await advance(2 * PAUSE_S)
    assert not first.is_connected and second.is_connected
    await asyncio.gather(listening.close())
