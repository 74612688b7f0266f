"""The connection that the gateways of a cluster share: a server that is away is tried by one call at a time."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import NoScriptError

from sessions.model.errors import BadInput
from sessions.model.types import SessionId
from transport.gateway_store.valkey import ValkeyGatewayStore, ValkeyHistory, ValkeyTickets


class Servers:
    """A server that answers what it is given, or fails."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: list[Any] = []

    async def call(self, key: str, *words: Any) -> Any:
        self.calls.append(words)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class World:
    now = 10.0

    def __init__(self) -> None:
        self.store = ValkeyGatewayStore("redis://127.0.0.1:1/0", clock=lambda: self.now)
        self.servers = Servers()
        self.store._servers = self.servers  # type: ignore[assignment]


async def test_a_script_that_the_server_does_not_have_is_sent_whole() -> None:
    world = World()
    world.servers.answers = [NoScriptError("NOSCRIPT"), None]
    assert await ValkeyHistory(world.store, b"s").take([b"x" * 16]) is None
    assert [call[0] for call in world.servers.calls] == ["EVALSHA", "EVAL"]
    assert await ValkeyHistory(world.store, b"s").take([]) is None


async def test_names_in_the_server_follow_from_the_secret_alone() -> None:
    sent = []
    for secret in (b"one", b"one", b"another"):
        world = World()
        world.servers.answers = [None, [None], None]
        history = ValkeyHistory(world.store, secret)
        await history.take([b"root-of-" + b"chain" * 6])
        await history.nearest(b"caller", [b"mark"])
        await history.mark(b"caller", [b"mark"], SessionId("s"))
        sent.append([word for call in world.servers.calls for word in call if isinstance(word, str | bytes)])
    assert sent[0] == sent[1]
    shared = set(sent[0]) & set(sent[2])
    for name in (b"root-of-", b"chain", b"caller", b"mark"):
        assert not any(name in (w if isinstance(w, bytes) else w.encode()) for w in sent[0])
        assert not any(name.hex() in (w.hex() if isinstance(w, bytes) else w) for w in sent[0])
    assert not any("places:" in w or "near:" in w for w in shared if isinstance(w, str)), shared


async def test_a_ticket_of_another_version_opens_nothing() -> None:
    world = World()
    world.servers.answers = [b"not a principal", None]
    tickets = ValkeyTickets(world.store)
    assert await tickets.take("digest") is None and await tickets.take("digest") is None


def test_a_malformed_address_is_refused() -> None:
    with pytest.raises(BadInput):
        ValkeyGatewayStore("http://127.0.0.1", clock=lambda: 0.0)
