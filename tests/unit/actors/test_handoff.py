"""Hand-offs: drains, switches of models, rebalancing, what a source copies and what a target takes."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.cluster.placement import BoundedRendezvous
from actors.handoff.drain import BY_SIGNAL, Drain, DrainLimits
from actors.handoff.model_switch import ModelSwitching
from actors.handoff.operator_handoff import OperatorHandoff
from actors.handoff.rebalance import RebalanceLimits, Rebalancer
from actors.handoff.source import HandoffLimits, HandoffSource, common_prefix_length
from actors.handoff.target import HandoffTarget
from actors.handoff.target_gate import TargetGate
from actors.peer import frames as pf
from inference.simulated import SimulatedEngine
from persistence.memory.journal import MemoryJournal
from persistence.sql.audit import SqlAudit
from sessions.actor.actor import Phase
from sessions.actor.model_router import ModelSwitchPlan
from sessions.model import events as ev
from sessions.model.audit import INSTALLATION
from sessions.model.errors import BadInput, Conflict, NotFound, Unavailable
from sessions.model.generation import KVExport
from sessions.model.types import ReplicaId, SessionId, SessionKey, TenantId, pack_tokens, unpack_tokens
from sessions.ports import View
from tests.support.cluster.harness import FAST, Cluster, cluster, until
from tests.support.cluster.steps import all_met, answering, other, planner_of
from tests.support.stores.tables import audit_rows_of, head_of
from tests.support.virtual_time import advance, settled, virtual


async def drain_of(made: Cluster, name: str, **limits: float) -> Drain:
    journal = MemoryJournal(made.store, medium=made._medium)
    await journal.open()
    return Drain(planner_of(made, name), made.clock, limits=DrainLimits(**limits), audit=SqlAudit(journal.database))  # type: ignore[arg-type]


@virtual
async def test_an_open_answer_is_handed_off_and_what_is_idle_without_kv_is_parked() -> None:
    async with cluster(replicas=2) as made:
        key, _ = await answering(made)
        name = made.owner(key)
        drain = await drain_of(made, name)
        reports: list[tuple[int, int, int]] = []
        await drain.drain(lambda *counts: reports.append(counts), by="operator eve")
        assert reports[-1][2] == 0 and drain.handed_off >= 1
        assert made.owner(key) not in ("", name) and made.replicas[name].replica.runtime.draining
        (row,) = [each for each in audit_rows_of(made.store, INSTALLATION) if b"replica.draining" in each.body]
        assert b"eve" in row.body
        await drain.drain(lambda *_: None, by=BY_SIGNAL)
        assert len(audit_rows_of(made.store, INSTALLATION)) == 1, "draining twice is one drain"


@virtual
async def test_what_is_left_when_the_time_is_over_is_parked_with_its_answer_open() -> None:
    async with cluster(replicas=1) as made:
        key, _ = await answering(made, tokens=5_000)
        drain = await drain_of(made, "r1", drain_s=1.0)
        await drain.drain(lambda *_: None, by=BY_SIGNAL)
        head = head_of(made.store, key)
        assert head is not None and head.open and drain.parked == 1


@virtual
async def test_an_operators_drain_that_cannot_be_audited_does_not_begin_and_a_signals_does() -> None:
    async with cluster(replicas=1) as made:
        drain = await drain_of(made, "r1")

        async def record(*_: object) -> None:
            raise Unavailable("journal_unavailable", "away")

        drain._audit.record = record  # type: ignore[union-attr,method-assign]
        with pytest.raises(Unavailable):
            await drain.drain(lambda *_: None, by="operator eve")
        assert not made.replicas["r1"].replica.runtime.draining
        await drain.drain(lambda *_: None, by=BY_SIGNAL)
        assert made.replicas["r1"].replica.runtime.draining


async def test_a_drain_is_taken_back_and_the_replica_serves_again() -> None:
    async with cluster(replicas=2) as made:
        name = "r1"
        drain = await drain_of(made, name)
        runtime = made.replicas[name].replica.runtime
        await drain.undrain(by="operator eve")
        assert not audit_rows_of(made.store, INSTALLATION), "nothing was draining"
        await drain.drain(lambda *_: None, by="operator eve")
        await drain.undrain(by="operator eve")
        assert not runtime.draining
        assert [b"replica.undrained" in each.body for each in audit_rows_of(made.store, INSTALLATION)] == [False, True]
        await drain.drain(lambda *_: None, by=BY_SIGNAL)
        with pytest.raises(Unavailable, match="start it again"):
            await drain.undrain(by="operator eve")
        assert runtime.draining


async def test_a_caller_that_waits_for_a_drain_gets_an_error_when_it_is_taken_back() -> None:
    async with cluster(replicas=1) as made:
        drain = await drain_of(made, "r1")
        begun = asyncio.Event()

        async def never() -> None:
            begun.set()
            await asyncio.Event().wait()

        drain._empty = never  # type: ignore[method-assign]
        waiting = asyncio.create_task(drain.drain(lambda *_: None, by="operator eve"))
        await begun.wait()
        await drain.undrain(by="operator eve")
        with pytest.raises(Unavailable, match="taken back"):
            await waiting


LARGE = msgspec.structs.replace(FAST, model="large", weights=9)
PLAN = ModelSwitchPlan("large", ev.SessionRouting(alias="auto", target="large", why="hard"))


def switching(made: Cluster) -> ModelSwitching:
    return ModelSwitching(planner_of(made, "r1"), BoundedRendezvous())


@virtual
async def test_it_stays_where_nobody_serves_the_model_or_a_turn_is_open() -> None:
    async with cluster(replicas=1) as made:
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        assert await switching(made).switch(key, PLAN) is None
        await made.add_replica("l1", SimulatedEngine(LARGE))
        await all_met(made)
        await gateway.say(key, tokens=100)
        await made.writes(key, 5)
        assert await switching(made).switch(key, PLAN) is None, "an answer is being written"
        await made.at_rest(key)
        assert made.owner(key) == "r1"
        assert await switching(made).switch(key, PLAN) is not None


@virtual
async def test_the_replica_that_had_it_before_is_preferred() -> None:
    async with cluster(replicas=1) as made:
        keys = [await made.gateways["g1"].create(f"s{number}") for number in range(3)]
        homes = ("l1", "l2", "l3")
        for name in homes:
            await made.add_replica(name, SimulatedEngine(LARGE))
        await all_met(made)
        moves = switching(made)
        owners = [await moves.switch(key, PLAN._replace(home=home)) for key, home in zip(keys, homes, strict=True)]
        assert tuple(owner.replica for owner in owners if owner is not None) == homes


@virtual
async def test_a_session_moves_to_the_named_replica_or_where_placement_has_it() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        key = await made.gateways["g1"].create("one")
        source, target = made.owner(key), other(made, made.owner(key)).name
        assert (await OperatorHandoff(planner_of(made, source)).move(key, target)).replica == target
        assert (await OperatorHandoff(planner_of(made, target)).move(key, "")).replica == source


@virtual
async def test_what_cannot_be_is_refused_with_a_reason() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        key = await made.gateways["g1"].create("one")
        source, target = made.owner(key), other(made, made.owner(key))
        handoff = OperatorHandoff(planner_of(made, source))
        with pytest.raises(NotFound):
            await handoff.move(SessionKey(TenantId("acme"), SessionId("not here")), "")
        for name in ("nobody", source):
            with pytest.raises(BadInput, match="no other replica"):
                await handoff.move(key, name)
        target.replica.membership.change(draining=True)
        await until(lambda: any(each.draining for each in made.replicas[source].replica.membership.view.members))
        with pytest.raises(BadInput, match="drains"):
            await handoff.move(key, target.name)
        with pytest.raises(Conflict) as stays:
            await handoff.move(key, "")
        assert stays.value.code == "session_stays" and made.owner(key) == source


class Bound:
    def __init__(self, bound: float) -> None:
        self.bound = bound

    def limits(self, view: View, *, model: str | None = None) -> Mapping[ReplicaId, float]:
        return {member.replica: self.bound for member in view.members}


def rebalancer(made: Cluster, name: str, *, load: float, bound: float = 0.5) -> Rebalancer:
    return Rebalancer(planner_of(made, name), Bound(bound), load=lambda: load, limits=RebalanceLimits(at_once=3))


@virtual
async def test_what_is_beyond_the_bound_goes_to_the_least_loaded_replica_a_few_at_a_time() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        target = other(made, "r1").name
        surplus, member = rebalancer(made, "r1", load=2.0).surplus()
        assert surplus == 3 and member is not None and member.replica == target
        assert rebalancer(made, "r1", load=0.6).surplus() == (0, None), "not nearly full"
        assert rebalancer(made, "r1", load=0.9, bound=1.0).surplus() == (0, None), "in its bound"


@virtual
async def test_idle_sessions_that_talked_lately_go_and_old_ones_stay() -> None:
    async with cluster(replicas=1) as made:
        keys = [await made.gateways["g1"].create(name) for name in ("one", "two")]
        overloaded = rebalancer(made, "r1", load=2.0)
        assert set(overloaded.candidates()) == set(keys)
        await advance(RebalanceLimits().recent_s + 1)
        await made.gateways["g1"].say(keys[1], tokens=3)
        await made.at_rest(keys[1])
        assert overloaded.candidates() == [keys[1]]


ledgers = st.lists(st.integers(0, 2), max_size=40).map(lambda tokens: array("I", tokens))


@given(ledgers, ledgers, ledgers)
def test_what_ledgers_share_is_their_longest_common_beginning(
    start: array[int], one: array[int], other: array[int]
) -> None:
    one, other = start + one, start + other
    shared = common_prefix_length(one, other)
    assert one[:shared] == other[:shared]
    assert shared in (len(one), len(other)) or one[shared] != other[shared]


def key(number: int) -> SessionKey:
    return SessionKey(TenantId("acme"), SessionId(f"s{number}"))


class Exports:
    """An engine of which only what it exports matters."""

    def __init__(self, *ledgers: list[int]) -> None:
        self.left = [array("I", ledger) for ledger in ledgers]
        self.closed = 0

    async def export_kv(self, key: SessionKey, ledger: array[int]) -> KVExport | None:
        async def chunks() -> AsyncGenerator[bytes, None]:
            try:
                yield b"snapshot"
            finally:
                self.closed += 1

        return KVExport(self.left.pop(0), chunks()) if self.left else None


class Taker:
    """A target that takes whatever is sent."""

    number = 1

    def __init__(self, tokens: int) -> None:
        self.sent, self._tokens = 0, tokens

    def send(self, frame: pf.Frame) -> None:
        assert isinstance(frame, pf.KVSnapshotChunk)
        self.sent += not frame.data

    async def receive(self) -> pf.Frame:
        return pf.HandoffReady(1, self._tokens)


@virtual
async def test_kv_is_copied_where_at_least_half_of_it_is_of_use() -> None:
    ledger = array("I", range(100))
    other = list(range(50, 150))
    cases: list[tuple[list[int], list[array[int]], bool]] = [
        (list(range(90)), [], True),
        ([*range(40), *other[:30]], [], True),
        ([*range(40), *other], [], False),  # another branch's
        (list(range(90)), [array("I", range(90))], False),  # it has it
        (list(range(90)), [array("I", range(40))], True),
        (list(range(90)), [array("I", range(80))], False),  # it will have computed that sooner
        (other, [], False),
    ]
    async with cluster(replicas=1, gateways=0) as made:
        for exported, told, wanted in cases:
            engine, talk = Exports(exported), Taker(len(exported))
            migration = HandoffSource(made.replicas["r1"].replica.runtime, engine, None)  # type: ignore[arg-type]
            before = len(told)
            await migration._copy(talk, key(1), ledger, told)  # type: ignore[arg-type]
            assert talk.sent == len(told) - before == wanted
            assert not wanted or (told[-1] == array("I", exported) and engine.closed == 1)


class Writing:
    """An actor of which only its answer matters: it has a token more at each look, `pace` of them."""

    def __init__(self, tokens: int, pace: int = 1) -> None:
        self.key, self.phase, self.is_generating, self.open = key(1), Phase.WARM, bool(pace), ("response",)
        self._tokens, self._pace = tokens, pace

    async def ledgers(self) -> list[array[int]]:
        self._tokens += self._pace
        return [array("I", range(self._tokens))]

    def leaves_soon(self) -> None:
        return


class Blocks:
    """A target that keeps whole blocks, and an engine that does."""

    number = 1

    def __init__(self, size: int) -> None:
        self.size = size
        self.info = SimpleNamespace(kv_block_tokens=size)
        self.ledger: array[int] = array("I")
        self.prefills = 0

    async def export_kv(self, key: SessionKey, ledger: array[int]) -> None:
        return

    def send(self, frame: pf.Frame) -> None:
        assert isinstance(frame, pf.HandoffPrefill)
        self.prefills += 1
        self.ledger = self.ledger[: frame.keep] + unpack_tokens(frame.tokens)

    async def receive(self) -> pf.Frame:
        return pf.HandoffReady(1, len(self.ledger) // self.size * self.size)


async def brought_up(blocks: Blocks, actor: Writing) -> int:
    """Returns how many tokens of the answer readers would wait for."""
    async with cluster(replicas=1, gateways=0) as made:
        runtime = made.replicas["r1"].replica.runtime
        source = HandoffSource(runtime, blocks, None)  # type: ignore[arg-type]
        last = await source._bring_up(blocks, actor, TargetGate(2))  # type: ignore[arg-type]
        await source._await_block(blocks, actor, last)  # type: ignore[arg-type]
    return actor._tokens - len(blocks.ledger) // blocks.size * blocks.size


@virtual
async def test_an_answer_is_sealed_when_it_has_just_begun_a_block_that_the_target_has_all_before_of() -> None:
    for tokens in range(1_000, 1_032):
        blocks, actor = Blocks(32), Writing(tokens)
        assert await brought_up(blocks, actor) <= HandoffLimits().rest_tokens
        assert blocks.prefills <= 4


@virtual
async def test_an_answer_that_does_not_get_on_is_waited_for_so_long_and_no_longer() -> None:
    begun = asyncio.get_running_loop().time()
    blocks, actor = Blocks(32), Writing(1_020, pace=0)
    actor.is_generating = True
    await brought_up(blocks, actor)
    assert HandoffLimits().block_s <= asyncio.get_running_loop().time() - begun < HandoffLimits().block_s + 0.1


class Speaking:
    """An actor whose engine makes a token every `pace_s`."""

    def __init__(self, pace_s: float) -> None:
        self.open, self.is_generating, self.pace_s = ("response",), bool(pace_s), pace_s

    @property
    def generated(self) -> int:
        return int(asyncio.get_running_loop().time() / self.pace_s) if self.pace_s else 0


@virtual
async def test_an_answer_is_sealed_when_its_engine_has_just_made_a_token() -> None:
    limits, loop = HandoffLimits(), asyncio.get_running_loop()
    async with cluster(replicas=1, gateways=0) as made:
        source = HandoffSource(made.replicas["r1"].replica.runtime, None, None)  # type: ignore[arg-type]
        for pace_s, least_s, most_s in (
            (0.1, 0.0, 0.1 + limits.token_look_s),
            (60.0, limits.token_s - limits.token_look_s, limits.token_s + limits.token_look_s),  # not waited for longer
            (0.0, 0.0, 0.0),  # nothing is being written
        ):
            await advance(0.033)
            begun = loop.time()
            await source._await_token(Speaking(pace_s))  # type: ignore[arg-type]
            assert least_s - 1e-6 <= loop.time() - begun <= most_s + 1e-6
            if pace_s == 0.1:
                assert loop.time() % pace_s <= limits.token_look_s + 1e-6


class SealedActor:
    """An actor whose seal is cut off."""

    key, fence, phase = key(1), 1, Phase.WARM

    def __init__(self) -> None:
        self.going_on = False

    async def seal(self) -> None:
        await asyncio.Event().wait()

    def unseal(self) -> None:
        self.going_on = True


class SlowOwnership:
    """An ownership that is confirmed only once `answer` is set."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()

    def owner(self, key: SessionKey) -> str:
        return "r1"

    async def confirm(self, key: SessionKey, fence: int) -> bool:
        await self.answer.wait()
        return True

    async def reclaim_one(self, key: SessionKey) -> None: ...


@virtual
async def test_closing_waits_until_it_is_known_who_owns_a_session_whose_hand_off_was_cut_off() -> None:
    ownership, actor = SlowOwnership(), SealedActor()
    runtime = SimpleNamespace(ownership=ownership, metrics=None)
    source = HandoffSource(runtime, None, None)  # type: ignore[arg-type]
    switch = asyncio.create_task(source._switch(None, actor, between_turns=False))  # type: ignore[arg-type]
    for _ in range(2):  # the second time while the journal is being asked
        await advance(0.1)
        switch.cancel()
    await advance(0.1)
    assert switch.cancelled()
    closing = asyncio.create_task(source.close())
    await advance(0.1)
    assert not closing.done() and not actor.going_on
    ownership.answer.set()
    await advance(0.1)
    assert closing.done() and actor.going_on


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
        fence = head_of(made.store, one).fence  # type: ignore[union-attr]
        target = Target(made)
        target.open_session.receive(pf.Sealed(5, owner, head_of(made.store, one).epoch, 1))  # type: ignore[union-attr]
        await settled()
        assert target.said == [] and head_of(made.store, one).fence == fence  # type: ignore[union-attr]


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
@virtual
async def test_what_is_given_up_leaves_neither_a_task_nor_room_for_its_kv(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
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


class Visits:
    """Sessions at a gate: who is inside, until it is sent on."""

    def __init__(self, gate: TargetGate) -> None:
        self.gate = gate
        self.inside: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}

    def _begin(self, name: str, place: AbstractAsyncContextManager[None]) -> None:
        leave = self._leave[name] = asyncio.Event()

        async def visit() -> None:
            async with place:
                self.inside.append(name)
                try:
                    await leave.wait()
                finally:
                    self.inside.remove(name)

        self._tasks[name] = asyncio.create_task(visit())

    async def switch(self, name: str) -> None:
        self._begin(name, self.gate.switch())
        await settled()

    async def compute(self, name: str) -> None:
        self._begin(name, self.gate.compute())
        await settled()

    async def leaves(self, name: str) -> None:
        self._leave[name].set()
        await settled()

    async def gives_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await settled()


@virtual
async def test_so_many_switches_and_one_computation_but_not_both() -> None:
    visits = Visits(TargetGate(2))
    for name in ("a", "b", "c"):
        await visits.switch(name)
    await visits.compute("long")
    assert visits.inside == ["a", "b"]
    await visits.leaves("a")
    assert visits.inside == ["b", "c"]
    await visits.leaves("b")
    assert visits.inside == ["c"]
    await visits.leaves("c")
    assert visits.inside == ["long"]
    await visits.compute("longer")
    await visits.switch("d")
    assert visits.inside == ["long"]
    await visits.leaves("long")
    assert visits.inside == ["d"], "switches go first"
    await visits.leaves("d")
    assert visits.inside == ["longer"]
    await visits.leaves("longer")


@virtual
async def test_who_gives_up_holds_nobody_up() -> None:
    visits = Visits(TargetGate(1))
    await visits.switch("a")
    await visits.switch("b")
    await visits.compute("long")
    await visits.gives_up("b")
    await visits.gives_up("a")
    assert visits.inside == ["long"]
    await visits.switch("c")
    await visits.gives_up("long")
    assert visits.inside == ["c"]
    await visits.leaves("c")
