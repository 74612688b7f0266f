"""Calls find the server of their key on a cluster whose slots move and whose nodes go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from actors.directory.pipelined_connection import NotSent, ReplyLost
from actors.directory.topology import HOPS_MAX, ClusterServers
from tests.support.cluster.redis_connection import FakeConnection
from tests.support.virtual_time import outcome, virtual

ELSEWHERE = "1 127.0.0.1:2"


class FakeCluster:
    """Nodes by name, the one that all slots are on, and what a new reading of the map finds."""

    def __init__(self, **nodes: FakeConnection) -> None:
        self.nodes_cache = {
            name: SimpleNamespace(name=name, connection_class=lambda each=each: each, connection_kwargs={})
            for name, each in ((name.replace("_", "127.0.0.1:"), each) for name, each in nodes.items())
        }
        self.master = "127.0.0.1:1"
        self.after_refresh: str | None = None
        self.nodes_manager = self
        self.refreshed = 0

    def get_node_from_slot(self, slot: int) -> Any:
        return self.nodes_cache[self.master]

    def get_node(self, node_name: str) -> Any:
        return self.nodes_cache.get(node_name)

    async def move_slot(self, error: MovedError) -> None:
        self.master = f"{error.host}:{error.port}"

    async def initialize(self) -> None:
        self.refreshed += 1
        self.master = self.after_refresh or self.master

    async def aclose(self) -> None:
        pass


def servers(**nodes: FakeConnection) -> tuple[ClusterServers, FakeCluster]:
    cluster = FakeCluster(**nodes)
    return ClusterServers(cluster, timeout_s=1.0), cluster  # type: ignore[arg-type]


@virtual
async def test_a_slot_on_the_move_is_asked_for_once_and_not_remembered() -> None:
    one, two = FakeConnection(AskError(ELSEWHERE), b"here"), FakeConnection(b"OK", b"there")
    made, cluster = servers(_1=one, _2=two)
    assert await made.call("key", "GET") == b"there" and two.sent == [("ASKING",), ("GET",)]
    assert await made.call("key", "GET") == b"here" and cluster.master == "127.0.0.1:1"
    await made.close()


@virtual
async def test_a_node_that_left_is_looked_up_anew_once() -> None:
    made, cluster = servers(_1=FakeConnection(refuses=9), _2=FakeConnection(b"a"))
    assert isinstance(await outcome(made.call("key", "GET")), NotSent), "the map still names it"
    cluster.after_refresh = "127.0.0.1:2"
    assert await made.call("key", "GET") == b"a" and cluster.refreshed == 2
    await made.close()


@virtual
async def test_an_answer_that_was_lost_is_never_sent_again() -> None:
    two = FakeConnection(b"a")
    made, cluster = servers(_1=FakeConnection(), _2=two)
    cluster.after_refresh = "127.0.0.1:2"
    assert isinstance(await outcome(made.call("key", "SET")), ReplyLost) and two.sent == []
    await made.close()


@pytest.mark.parametrize("answers", [[ClusterDownError("down")], [TryAgainError("later")] * HOPS_MAX])
def test_a_cluster_that_does_not_settle_has_not_got_the_call(answers: list[Exception]) -> None:
    @virtual
    async def run() -> None:
        made, _ = servers(_1=FakeConnection(*answers))
        assert isinstance(await outcome(made.call("key", "GET")), NotSent)
        await made.close()

    run()
