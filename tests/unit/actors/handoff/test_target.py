"""What a target of hand-offs refuses, and what it leaves behind when one is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from actors.handoff.target import HandoffTarget
from actors.peer import frames as pf
from sessions.model.types import SessionId, SessionKey, TenantId, pack_tokens
from tests.support.cluster.harness import Cluster, cluster
from tests.support.virtual_time import settled, virtual


def key(number: int) -> SessionKey:
    return SessionKey(TenantId("acme"), SessionId(f"s{number}"))


class Target:
    """A replica's reception with a visitor's frames written down."""

    def __init__(self, made: Cluster, *, arrivals_max: int = 64) -> None:
        node = made.replicas["r1"]
        self.said: list[pf.Frame] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.target = HandoffTarget(node.replica.runtime, node.engine, arrivals_max=arrivals_max)
        self.open_session = self.target.open_session(self._post, self._spawn)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    def _post(self, frame: pf.Frame) -> int:
        self.said.append(frame)
        return 1


@virtual
async def test_room_is_bounded_and_comes_back() -> None:
    async with cluster(replicas=1, gateways=0) as made:
        target = Target(made, arrivals_max=2)
        for number in range(3):
            target.open_session.receive(pf.Reserve(number, key(number), 10))
        target.open_session.receive(pf.Reserve(9, key(0), 10))
        assert target.said[:2] == [pf.Reserved(0), pf.Reserved(1)]
        refusals = [frame.reason for frame in target.said[2:] if isinstance(frame, pf.Abort)]
        assert refusals == ["too many at the same time", "on its way already"]
        target.open_session.receive(pf.Abort(0, "given up"))
        target.open_session.receive(pf.Reserve(4, key(4), 10))
        assert target.said[-1] == pf.Reserved(4)
        target.open_session.close()
        assert not target.target.arriving


@virtual
async def test_a_ledger_that_does_not_fit_is_refused() -> None:
    async with cluster(replicas=1, gateways=0) as made:
        target = Target(made)
        target.open_session.receive(pf.Reserve(1, key(1), 1_000_000))
        assert target.said == [pf.Abort(1, "does not fit the context window")]


@virtual
async def test_nothing_is_claimed_for_a_hand_off_that_was_not_reserved() -> None:
    async with cluster(replicas=1, gateways=1) as made:
        one = await made.gateways["g1"].create("one")
        owner = made.replicas["r1"].replica.runtime.ownership.owner(one)
        assert owner is not None
        fence = made.store.head(one).fence  # type: ignore[union-attr]
        target = Target(made)
        target.open_session.receive(pf.Sealed(5, owner, made.store.head(one).epoch, 1))  # type: ignore[union-attr]
        await settled()
        assert target.said == [] and made.store.head(one).fence == fence  # type: ignore[union-attr]


@virtual
async def test_frames_out_of_place_are_the_links_end() -> None:
    async with cluster(replicas=1, gateways=0) as made:
        target = Target(made)
        target.open_session.receive(pf.Reserve(1, key(1), 10))
        with pytest.raises(ValueError, match="keeps more"):
            target.open_session.receive(pf.HandoffPrefill(1, 5, pack_tokens([1])))
        target.open_session.receive(pf.HandoffPrefill(1, 0, pack_tokens([1, 2])))
        with pytest.raises(ValueError, match="one question"):
            target.open_session.receive(pf.HandoffPrefill(1, 2, pack_tokens([3])))
        await settled()


@virtual
async def test_a_snapshot_that_the_engine_refuses_covers_nothing_and_is_taken_to_its_end() -> None:
    async with cluster(replicas=1, gateways=0) as made:
        target = Target(made)
        target.open_session.receive(pf.Reserve(1, key(1), 10))
        for data in (b"not a", b"snapshot", b""):
            target.open_session.receive(pf.KVSnapshotChunk(1, data))
        await settled()
        assert target.said[1:] == [pf.KVSnapshotCredit(1, 5), pf.KVSnapshotCredit(1, 8), pf.HandoffReady(1, 0)]


@virtual
async def test_after_an_import_that_failed_another_snapshot_is_taken() -> None:
    async with cluster(replicas=1, gateways=0) as made:
        target, took = Target(made), []

        async def import_kv(key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
            took.append(await anext(chunks))
            if len(took) == 1:
                raise OSError("the folder has gone")
            return len([data async for data in chunks])

        target.target.engine.import_kv = import_kv  # type: ignore[method-assign]
        target.open_session.receive(pf.Reserve(1, key(1), 10))
        for _ in range(2):
            for data in (b"one", b"more", b""):
                target.open_session.receive(pf.KVSnapshotChunk(1, data))
            await settled()
        taken = [pf.KVSnapshotCredit(1, 3), pf.KVSnapshotCredit(1, 4)]
        assert target.said[1:] == [*taken, pf.HandoffReady(1, 0), *taken, pf.HandoffReady(1, 1)]


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "later"])
def test_what_is_given_up_leaves_neither_a_task_nor_room_for_its_kv(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @virtual
    async def run() -> None:
        async with cluster(replicas=1, gateways=0) as made:
            target, taking = Target(made), [0]

            async def import_kv(key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
                taking[0] += 1
                try:
                    return len([data async for data in chunks])
                finally:
                    taking[0] -= 1

            monkeypatch.setattr(target.target.engine, "import_kv", import_kv)
            target.open_session.receive(pf.Reserve(1, key(1), 10))
            target.open_session.receive(pf.KVSnapshotChunk(1, b"the manifest"))
            if begun:
                await settled()
                assert taking == [1]
            target.open_session.receive(pf.Abort(1, "given up"))
            await settled()
            assert taking == [0] and all(task.done() for task in target.tasks) and target.tasks
            assert not target.target.arriving and pf.HandoffReady(1, 0) not in target.said

    run()
