"""Commands and watches over a cluster that nothing is wrong with, and over one whose parts come and go in order."""

from __future__ import annotations

import asyncio

import msgspec

from sessions.machine.appeals import decision_notice
from sessions.model.events import ReviewDecided
from sessions.model.request import request_of
from sessions.model.reviews import Subject, case_of
from sessions.model.types import CommandId
from sessions.model.verdicts import Finding
from tests.support.cluster.harness import Cluster, advance, cluster, until
from tests.support.stores.tables import page_of
from tests.support.virtual_time import virtual


async def parked(made: Cluster, key: object) -> None:
    """Takes a session out of memory, wherever it is."""
    for node in made.replicas.values():
        await node.replica.runtime.passivate(key)  # type: ignore[arg-type]
    await advance(0.1)


@virtual
async def test_a_turn_runs_and_both_gateways_see_all_of_it() -> None:
    async with cluster(replicas=2, gateways=2) as made:
        near, far = made.gateways["g1"], made.gateways["g2"]
        key = await near.create("one")
        readers = [near.read(key), far.read(key)]
        await near.say(key)
        top = await made.at_rest(key)
        for reader in readers:
            await reader.reaches(top)


@virtual
async def test_a_command_sent_twice_through_two_gateways_is_applied_once() -> None:
    async with cluster(replicas=2, gateways=2) as made:
        near, far = made.gateways["g1"], made.gateways["g2"]
        key = await near.create("one")
        first, second = await asyncio.gather(near.say(key, id="same"), far.say(key, id="same"))
        assert first == second
        await made.at_rest(key)


@virtual
async def test_what_a_reviewer_decided_is_told_by_whichever_gateway_and_replica_and_once() -> None:
    finding = Finding(category="pii/email", action="block", start=0, end=4)
    async with cluster(replicas=2, gateways=2) as made:
        near, far = made.gateways["g1"], made.gateways["g2"]
        key = await near.create("one")
        case = case_of(finding, Subject(key=key, name="x", direction="output", user=None, offset=1, now=made.now_ms()))
        decided = msgspec.structs.replace(case, state="decided", outcome="overturned", decisions=1)
        oks = await asyncio.gather(
            near.router.execute(request_of(*decision_notice(decided))),
            far.router.execute(request_of(*decision_notice(decided))),
        )
        assert oks[0] == oks[1] and not oks[0].noop
        await parked(made, key)
        principal, command = decision_notice(decided)
        late = msgspec.structs.replace(command, id=CommandId("long-after-its-record-was-purged"))
        assert (await far.router.execute(request_of(principal, late))).noop
        again = msgspec.structs.replace(decided, outcome="upheld", decisions=2)
        assert not (await far.router.execute(request_of(*decision_notice(again)))).noop
        records = page_of(made.store, key)
        assert records is not None
        told = [each.event.outcome for each in records.records if isinstance(each.event, ReviewDecided)]
        assert told == ["overturned", "upheld"]


@virtual
async def test_a_parked_session_woken_through_one_gateway_shows_on_the_other_at_once() -> None:
    async with cluster(replicas=3, gateways=2) as made:
        near, far = made.gateways["g1"], made.gateways["g2"]
        key = await near.create("one")
        await near.say(key, tokens=3)
        top = await made.at_rest(key)
        await parked(made, key)
        reader = far.read(key)
        await advance(3.0)
        assert made.owner(key) == "", "reading does not activate"
        began = asyncio.get_running_loop().time()
        await near.say(key, tokens=3)
        await reader.reaches(top + 1)
        assert asyncio.get_running_loop().time() - began <= 0.1


@virtual
async def test_a_watch_is_told_where_the_log_ends_when_it_came_late() -> None:
    """The answer was over before the second gateway was attached: nothing would follow to show the gap."""
    async with cluster(gateways=2) as made:
        key = await made.gateways["g1"].create("one")
        await made.gateways["g1"].say(key, tokens=2)
        top = await made.at_rest(key)
        reader = made.gateways["g2"].read(key)
        await reader.reaches(top, limit_s=0.1)


@virtual
async def test_a_watch_that_ends_leaves_nothing_behind() -> None:
    async with cluster(gateways=1) as made:
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        readers = [gateway.read(key) for _ in range(3)]
        runtime = made.replicas[made.owner(key)].replica.runtime
        await until(lambda: runtime.readers(key) == 1)
        for reader in readers:
            reader.close()
            reader.close()
        await until(lambda: runtime.readers(key) == 0)
        assert len(gateway.router.subscriptions) == 0 and gateway.router.subscriptions.attachments == 0


@virtual
async def test_a_session_goes_on_after_its_replica_left_in_order() -> None:
    async with cluster(replicas=2, gateways=2) as made:
        near, far = made.gateways["g1"], made.gateways["g2"]
        key = await near.create("one")
        reader = far.read(key)
        await near.say(key, tokens=100)
        await made.writes(key)
        await made.replicas[made.owner(key)].end()
        top = await made.at_rest(key)
        await reader.reaches(top)
        await near.say(key, tokens=3)
        await reader.reaches(await made.at_rest(key))


@virtual
async def test_sessions_spread_over_the_replicas() -> None:
    async with cluster(replicas=3) as made:
        gateway = made.gateways["g1"]
        keys = [await gateway.create(f"s{number}") for number in range(60)]
        held = [sum(made.owner(key) == name for key in keys) for name in made.replicas]
        assert sum(held) == 60 and min(held) >= 10, held


@virtual
async def test_a_replica_that_joins_takes_new_sessions() -> None:
    async with cluster(replicas=1) as made:
        gateway = made.gateways["g1"]
        await gateway.create("before")
        await made.add_replica("r9")
        await advance(2.0)
        keys = [await gateway.create(f"s{number}") for number in range(20)]
        assert {made.owner(key) for key in keys} == {"r1", "r9"}
