"""Sessions that move on purpose: idle, in mid-answer, one by one and all of a replica; and hand-offs that go wrong."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec
import pytest

from actors.handoff.source import HandoffAbandoned
from inference.simulated import SimulatedOptions
from sessions.actor.actor import Phase
from sessions.model import commands as cm
from sessions.model.errors import SessileError
from sessions.model.events import ResponseCreated, SessionMigrated
from sessions.model.generation import KVExport
from sessions.model.request import request_of
from sessions.model.types import SessionKey
from tests.support.cluster.harness import ALICE, FAST, Cluster, ReplicaNode, advance, cluster, until
from tests.support.cluster.steps import answering, member, migrations, now, other, simulated, text_of
from tests.support.scripted import LOOK, Scripted
from tests.support.stores.tables import page_of
from tests.support.virtual_time import outcome, virtual

LONG = "word " * 1000


@virtual
async def test_an_idle_session_moves_with_its_kv_and_its_readers() -> None:
    async with cluster(replicas=2, gateways=2) as made:
        key = await made.gateways["g1"].create("one")
        reader = made.gateways["g2"].read(key)
        await made.gateways["g1"].say(key, LONG, tokens=20)
        top = await made.at_rest(key)
        source = made.replicas[made.owner(key)]
        target = other(made, source.name)
        await source.replica.handoff.hand_off(key, member(target))
        assert made.owner(key) == target.name
        assert made.top(key) == top, "moving an idle session writes nothing"
        counters = simulated(target).stats().counters
        assert counters["imports"] == 1 and counters["prefilled_tokens"] <= 16
        await made.gateways["g1"].say(key, "And then?", tokens=5)
        await reader.reaches(await made.at_rest(key))
        after = simulated(target).stats().counters
        assert after["prefilled_tokens"] < 100, "the conversation was not computed again"


@pytest.mark.parametrize("chunks_before", [None, 0, 1])
def test_kv_that_cannot_be_sent_is_computed_by_the_target(chunks_before: int | None) -> None:
    """The engine breaks at once, before the first chunk or after one: a hand-off is none of its business."""

    @virtual
    async def run() -> None:
        async with cluster(replicas=2) as made:
            key = await made.gateways["g1"].create("one")
            await made.gateways["g1"].say(key, LONG, tokens=20)
            await made.at_rest(key)
            source = made.replicas[made.owner(key)]
            target = other(made, source.name)

            async def broken() -> AsyncGenerator[bytes, None]:
                for _ in range(chunks_before or 0):
                    yield b"the beginning of a snapshot"
                raise OSError("the file has gone")

            async def export_kv(key: SessionKey, ledger: array[int]) -> KVExport:
                if chunks_before is None:
                    raise OSError("the folder has gone")
                return KVExport(ledger, broken())

            simulated(source).export_kv = export_kv  # type: ignore[method-assign]
            await source.replica.handoff.hand_off(key, member(target))
            assert made.owner(key) == target.name
            counters = simulated(target).stats().counters
            assert counters["imports"] == 0 and counters["prefilled_tokens"] >= 100, "brought up all the same"
            await made.gateways["g1"].say(key, "And then?", tokens=5)
            await made.at_rest(key)

    run()


@pytest.mark.parametrize("block_access", [False, True])
def test_in_mid_answer_the_readers_wait_less_than_fifty_milliseconds_more(block_access: bool) -> None:
    engine = msgspec.structs.replace(FAST, block_access=block_access)

    @virtual
    async def run() -> None:
        texts = []
        for move in (False, True):
            async with cluster(replicas=2, gateways=2, engine_options=engine) as made:
                key = await made.gateways["g1"].create("one")
                reader = made.gateways["g2"].read(key)
                await made.gateways["g1"].say(key, LONG, tokens=150)
                await made.writes(key, 10)
                if move:
                    source = made.replicas[made.owner(key)]
                    target = other(made, source.name)
                    began = now()
                    await source.replica.handoff.hand_off(key, member(target))
                    assert now() - began < 1.0
                    counters = simulated(target).stats().counters
                    if block_access:
                        assert counters["imports"] == 1 and counters["prefilled_tokens"] < 50
                    else:
                        assert counters["imports"] == 0 and counters["prefilled_tokens"] >= 1000
                await reader.reaches(await made.at_rest(key))
                text = text_of(made, key)
                texts.append(text)
                usual = sorted(reader.gaps_s())[len(reader.gaps_s()) // 2]
                assert max(reader.gaps_s()[5:]) <= usual + 0.05
                assert migrations(made, key) == (["handoff"] if move else [])
        assert texts[0] == texts[1]

    run()


@virtual
async def test_two_branches_that_are_being_written_take_their_kv_along() -> None:
    options = msgspec.structs.replace(FAST, block_access=True)
    async with cluster(replicas=2, engine_options=options) as made:
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        reader = gateway.read(key)
        await gateway.say(key, LONG, tokens=150)
        other_branch = cm.MessageCreate(
            id=made.command_id(), session=key.session, content="other " * 1000, parent_id=None, max_output_tokens=150
        )
        await gateway.router.execute(request_of(ALICE, other_branch))
        await made.writes(key, 20)
        source = made.replicas[made.owner(key)]
        target = other(made, source.name)
        await source.replica.handoff.hand_off(key, member(target))
        assert made.owner(key) == target.name
        counters = simulated(target).stats().counters
        assert counters["imports"] == 2 and counters["prefilled_tokens"] < 100
        await reader.reaches(await made.at_rest(key))
        assert migrations(made, key) == ["handoff"]


@virtual
async def test_a_command_that_comes_during_the_seal_is_answered_by_the_target() -> None:
    async with cluster(replicas=2) as made:
        gateway = made.gateways["g1"]
        key, reader = await answering(made, tokens=80)
        source = made.replicas[made.owner(key)]
        target = other(made, source.name)
        actor = source.replica.runtime.actor(key)
        assert actor is not None
        moving = asyncio.ensure_future(source.replica.handoff.hand_off(key, member(target)))
        await until(lambda: actor.phase.value == "sealed", step_s=0.0001)
        page = page_of(made.store, key)
        assert page is not None
        response = next(r.event.response_id for r in page.records if isinstance(r.event, ResponseCreated))
        ok = await gateway.cancel(key, response)
        assert (await moving).replica == target.name
        assert not ok.noop
        await reader.reaches(await made.at_rest(key))


@virtual
async def test_too_many_commands_during_the_seal_are_told_to_come_again() -> None:
    async with cluster(replicas=2) as made:
        key, _ = await answering(made, tokens=300)
        source = made.replicas[made.owner(key)]
        actor = source.replica.runtime.actor(key)
        assert actor is not None
        await actor.seal()
        waiting = [asyncio.ensure_future(outcome(made.gateways["g1"].say(key))) for _ in range(100)]
        await advance(0.1)
        told = [task.result() for task in waiting if task.done()]
        assert told and all(isinstance(each, SessileError) and each.retryable for each in told)
        assert {each.code for each in told if isinstance(each, SessileError)} == {"mailbox_full"}
        actor.unseal()
        await asyncio.gather(*waiting)
        await made.at_rest(key)


@virtual
async def test_another_model_or_a_draining_target_is_refused_and_the_session_stays() -> None:
    async with cluster(replicas=2) as made:
        key, reader = await answering(made)
        source = made.replicas[made.owner(key)]
        target = other(made, source.name)
        target.replica.runtime.draining = True
        with pytest.raises(HandoffAbandoned, match="draining"):
            await source.replica.handoff.hand_off(key, member(target))
        assert made.owner(key) == source.name
        await reader.reaches(await made.at_rest(key))
        assert migrations(made, key) == []


async def moved_with_trouble(made: Cluster, trouble: Callable[[ReplicaNode, ReplicaNode], None]) -> None:
    """A hand-off in mid-answer that something happens to: afterwards there is one owner, and the answer ends."""
    key, reader = await answering(made, tokens=60)
    source = made.replicas[made.owner(key)]
    target = other(made, source.name)
    trouble(source, target)
    await outcome(source.replica.handoff.hand_off(key, member(target)))
    await reader.reaches(await made.at_rest(key))
    assert "," not in made.owner(key), "two replicas hold it"


def at_pass(node: ReplicaNode, number: int, act: Callable[[ReplicaNode], Awaitable[None]]) -> None:
    """Does something to a process when it speaks to the journal or the directory for the n-th time from now."""
    wanted = node.power.passed + number

    async def on_pass(passed: int) -> None:
        if passed == wanted:
            node.power.on_pass = None
            await act(node)

    node.power.on_pass = on_pass


async def kill(node: ReplicaNode) -> None:
    asyncio.ensure_future(node.kill())  # noqa: RUF006 - it cancels whoever calls
    await asyncio.sleep(0)


@pytest.mark.parametrize("number", range(1, 12))
def test_the_target_dies_at_any_moment(number: int) -> None:
    @virtual
    async def run() -> None:
        async with cluster(replicas=3, gateways=2) as made:
            await moved_with_trouble(made, lambda source, target: at_pass(target, number, kill))

    run()


@pytest.mark.parametrize("number", range(1, 12))
def test_the_source_dies_at_any_moment(number: int) -> None:
    @virtual
    async def run() -> None:
        async with cluster(replicas=3, gateways=2) as made:
            await moved_with_trouble(made, lambda source, target: at_pass(source, number, kill))

    run()


@pytest.mark.parametrize("number", range(1, 12))
def test_the_link_between_them_breaks_at_any_moment(number: int) -> None:
    @virtual
    async def run() -> None:
        async with cluster(replicas=2, gateways=1) as made:

            async def cut(node: ReplicaNode) -> None:
                made.network.cut(node.name)

            await moved_with_trouble(made, lambda source, target: at_pass(target, number, cut))

    run()


@pytest.mark.parametrize("number", range(1, 9))
def test_the_target_stands_still_in_the_middle_and_wakes(number: int) -> None:
    @virtual
    async def run() -> None:
        async with cluster(replicas=2, gateways=1) as made:

            async def stop(node: ReplicaNode) -> None:
                node.stop()
                asyncio.get_running_loop().call_later(8.0, node.wake)

            await moved_with_trouble(made, lambda source, target: at_pass(target, number, stop))
            await advance(10.0)

    run()


@virtual
async def test_a_replica_with_fifty_open_answers_is_drained_and_nobody_notices() -> None:
    async with cluster(replicas=3, gateways=2) as made:
        gateway = made.gateways["g1"]
        keys = [await gateway.create(f"s{number}") for number in range(150)]
        readers = {key: made.gateways["g2"].read(key) for key in keys}
        victim = made.replicas["r1"]
        for key in keys:
            await gateway.say(key, tokens=150)
        await advance(0.5)
        held = [key for key in keys if made.owner(key) == "r1"]
        assert len(held) >= 40
        began = now()
        reports: list[tuple[int, int, int]] = []
        await victim.replica.drain(lambda *report: reports.append(report))
        assert now() - began <= 60.0
        assert reports[-1][2] == 0 and victim.replica.runtime.num_present == 0
        assert reports[-1][1] == 0, "nothing was left to be found by others"
        await victim.end()
        await gateway.create("later")
        for key, reader in readers.items():
            await reader.reaches(await made.at_rest(key, limit_s=600.0))
            assert "failover" not in migrations(made, key)


@virtual
async def test_sessions_that_leave_together_are_sealed_few_at_a_time() -> None:
    async with cluster(replicas=2, gateways=2) as made:
        gateway = made.gateways["g1"]
        keys = [await gateway.create(f"s{number}") for number in range(16)]
        readers = [made.gateways["g2"].read(key) for key in keys]
        for key in keys:
            await gateway.say(key, LONG, tokens=150)
        await advance(0.8)
        victim = made.replicas["r1"].replica
        sealed: list[int] = []

        async def look() -> None:
            while True:
                sealed.append(sum(actor.phase is Phase.SEALED for actor in victim.runtime.actors))
                await asyncio.sleep(0.0005)

        made.background(look())
        await victim.drain()
        assert 0 < max(sealed) <= victim.handoff.limits.switches_at_once
        for key, reader in zip(keys, readers, strict=True):
            await reader.reaches(await made.at_rest(key))
            assert migrations(made, key) in ([], ["handoff"])
            usual = sorted(reader.gaps_s())[len(reader.gaps_s()) // 2]
            assert max(reader.gaps_s()[5:]) <= usual + 0.1


@virtual
async def test_a_drain_moves_idle_sessions_and_the_next_turn_finds_their_kv() -> None:
    async with cluster(replicas=2) as made:
        gateway = made.gateways["g1"]
        keys = [await gateway.create(f"s{number}") for number in range(10)]
        for key in keys:
            await gateway.say(key, LONG, tokens=3)
        for key in keys:
            await made.at_rest(key)
        victim = made.replicas["r1"]
        held = [key for key in keys if made.owner(key) == "r1"]
        await victim.replica.drain()
        before = simulated(made.replicas["r2"]).stats().counters["prefilled_tokens"]
        for key in held:
            assert made.owner(key) == "r2"
            await gateway.say(key, "And?", tokens=3)
            await made.at_rest(key)
        used = simulated(made.replicas["r2"]).stats().counters["prefilled_tokens"] - before
        assert held and used < 100 * len(held)


@virtual
async def test_the_last_replica_does_not_wait_for_somebodys_tool() -> None:
    async with cluster(replicas=0) as made:
        node = await made.add_replica("r1", engine=Scripted(['<tool_call>{"name": "look"}</tool_call>'], {}))
        await advance(1.5)  # until the gateway has seen it
        gateway = made.gateways["g1"]
        key = await gateway.create("one", tools=(LOOK,))
        await gateway.say(key)
        await until(lambda: (actor := node.replica.runtime.actor(key)) is not None and actor.busy and not actor.open)
        began = now()
        await node.replica.drain()
        assert now() - began < 1.0 and node.replica.runtime.num_present == 0


@virtual
async def test_a_drained_replica_is_asked_no_more() -> None:
    async with cluster(replicas=2) as made:
        gateway = made.gateways["g1"]
        await made.replicas["r1"].replica.drain()
        keys = [await gateway.create(f"s{number}") for number in range(10)]
        assert {made.owner(key) for key in keys} == {"r2"}


@virtual
async def test_load_beyond_its_bound_goes_elsewhere() -> None:
    """All sessions live on one replica when a second one joins: half of the waiting answers go there."""
    busy = SimulatedOptions(step_base_s=0.02, step_per_stream_s=0.002, answer_tokens_mean=0, slots=8)
    async with cluster(replicas=0, gateways=1) as made:
        made.engine_options = busy
        await made.add_replica("r1")
        await advance(1.5)
        gateway = made.gateways["g1"]
        keys = [await gateway.create(f"s{number}") for number in range(16)]
        for key in keys:
            await gateway.say(key, tokens=200)
        await made.add_replica("r2")
        await until(lambda: sum(made.owner(key) == "r2" for key in keys) >= 8, limit_s=15.0)
        for key in keys:
            await made.at_rest(key)
        stats = [simulated(node).stats().counters["decoded_tokens"] for node in made.replicas.values()]
        assert min(stats) >= 0.5 * max(stats)
        records = page_of(made.store, keys[0])
        assert records is not None
        assert sum(isinstance(r.event, SessionMigrated) for r in records.records) <= 2
