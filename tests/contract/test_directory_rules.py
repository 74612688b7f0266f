"""The rules in Python (`store.py`) and in Lua (`lua/`) are the same rules: any history gets the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.directory import Leases
from sessions.model.errors import SessileError
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, Owner
from testbed.valkey_server import Server, running
from tests.support.cluster.directories import MemoryWorld, ValkeyWorld, World
from tests.support.effort import effort

pytestmark = pytest.mark.cluster

REPLICAS = ["r1", "r2"]
INCARNATIONS = ["i1", "i2"]
KEYS = [SessionKey(TenantId("t"), SessionId(name)) for name in ("a", "b")]

processes = st.tuples(st.sampled_from(REPLICAS), st.sampled_from(INCARNATIONS))
owners = st.builds(
    lambda process, activation: Owner(ReplicaId(process[0]), process[1], ActivationId(activation)),
    processes,
    st.sampled_from(["a1", "a2"]),
)
keys = st.sampled_from(KEYS)

Operation = tuple[Any, ...]
operations: st.SearchStrategy[Operation] = st.one_of(
    st.tuples(st.just("announce"), processes, st.sampled_from([0.0, 0.5]), st.booleans()),
    st.tuples(st.just("withdraw"), processes),
    st.tuples(st.just("view"), processes),
    st.tuples(st.just("claim"), keys, owners, st.none() | owners),
    st.tuples(st.just("locate"), keys),
    st.tuples(st.just("release"), keys, owners),
    st.tuples(st.just("watch"), st.sampled_from(["g1", "g2"]), st.lists(keys, max_size=2)),
    st.tuples(st.just("watchers"), keys),
    st.tuples(st.just("advance"), st.sampled_from([1.0, 4.0, 7.0])),
    st.tuples(st.just("empty")),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


class Processes:
    """Each process of each replica has its own handle, as it would: what it remembers is its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._handles: dict[tuple[str, str], Leases] = {}

    async def _of(self, process: tuple[str, str]) -> Leases:
        if process not in self._handles:
            self._handles[process] = await self._world.handle()
        return self._handles[process]

    async def do(self, operation: Operation) -> object:
        name, *rest = operation
        first = await self._of((REPLICAS[0], INCARNATIONS[0]))
        match name:
            case "announce":
                process, load, draining = rest
                return await (await self._of(process)).announce(
                    Member(
                        replica=ReplicaId(process[0]),
                        incarnation=process[1],
                        address="",
                        model="m",
                        fingerprint="f",
                        load=load,
                        draining=draining,
                    )
                )
            case "withdraw":
                (process,) = rest
                await (await self._of(process)).withdraw(ReplicaId(process[0]), process[1])
            case "view":
                return await (await self._of(rest[0])).view()
            case "claim":
                key, owner, instead_of = rest
                handle = await self._of((owner.replica, owner.incarnation))
                return await handle.claim(key, owner, instead_of=instead_of)
            case "release":
                key, owner = rest
                await (await self._of((owner.replica, owner.incarnation))).release(key, owner)
            case "advance":
                self._world.advance(*rest)
            case "empty":
                self._world.empty()
            case _:
                call: Callable[..., Awaitable[object]] = getattr(first, name)
                return await call(*rest)
        return None


async def answers(world: World, history: list[Operation]) -> list[object]:
    processes = Processes(world)
    found: list[object] = []
    try:
        for operation in history:
            try:
                found.append(await processes.do(operation))
            except SessileError as error:
                found.append((type(error), error.code))
    finally:
        await world.close()
    return found


@settings(max_examples=effort(30, 300))
@given(history=st.lists(operations, min_size=1, max_size=25))
def test_any_history_gets_the_same_answers(server: Server, history: list[Operation]) -> None:
    async def compare() -> None:
        on_server = await answers(ValkeyWorld([server], server.unix_url), history)
        in_memory = await answers(MemoryWorld(), history)
        for n, pair in enumerate(zip(on_server, in_memory, strict=True)):
            assert pair[0] == pair[1], f"answer {n} of {history}"

    asyncio.run(compare())
