"""What the operator API shows of replicas, and what a process that is all there is cannot do."""

from __future__ import annotations

from typing import Any

import pytest

from actors.peer.links import LinkDown
from sessions.model.errors import Conflict, NotFound
from sessions.model.generation import EngineStats
from sessions.model.types import ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, View
from transport.ops.operator_api import ClusterOperatorApi, LocalOperatorApi
from transport.peer.security import PeerSecurity
from transport.tasks import Tasks

MEMBER = Member(replica=ReplicaId("r1"), incarnation="i", address="127.0.0.1:1", model="m", fingerprint="f")
KEY = SessionKey(TenantId("acme"), SessionId("s"))


class Engine:
    def stats(self) -> EngineStats:
        return EngineStats(slots=4, running=1, waiting=1, counters={})


async def test_one_process_shows_its_load_and_has_nowhere_to_go() -> None:
    surveyor: Any = None
    engine: Any = Engine()
    api = LocalOperatorApi(lambda: MEMBER, surveyor, engine)
    (shown,) = await api.replicas()
    assert (shown["replica"], shown["load"], shown["slots"]) == ("r1", 0.5, 4)
    with pytest.raises(NotFound):
        await api.measure("r2")
    for action in (api.drain("r1"), api.hand_off("r1", KEY, "")):
        with pytest.raises(Conflict):
            await action


async def test_a_replica_that_is_away_is_named_with_the_reason() -> None:
    api = ClusterOperatorApi(lambda: View(1, (MEMBER,)), PeerSecurity(), Tasks())
    held = await api.kv_of(KEY.tenant)
    assert held.bytes_of == {} and set(held.silent) == {"r1"}
    measured = await api.measure(after=1, step_s=10)
    assert list(measured) == ["r1"] and isinstance(measured["r1"], LinkDown)
    for action in (api.drain("r2"), api.measure("r2")):
        with pytest.raises(NotFound):
            await action
