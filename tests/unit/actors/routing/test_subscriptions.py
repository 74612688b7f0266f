"""A gateway's watches attach where their session is, catch up from the journal, and leave nothing behind."""

from __future__ import annotations

from sessions.model.types import SessionId, SessionKey, TenantId
from sessions.ports import Published
from tests.support.cluster.harness import Cluster, cluster, until
from tests.support.cluster.steps import all_met, answering, member, other
from tests.support.virtual_time import advance, virtual

KEY = SessionKey(TenantId("acme"), SessionId("one"))


def offsets(seen: list[Published]) -> list[int]:
    return [record.offset for published in seen for record in published.records]


async def silent(made: Cluster, gateway: str = "g1") -> bool:
    subscriptions = made.gateways[gateway].router.subscriptions
    await advance(0.1)
    return len(subscriptions) == 0 and subscriptions.attachments == 0


@virtual
async def test_watching_activates_nothing_and_an_activation_elsewhere_is_noticed() -> None:
    async with cluster(replicas=1, gateways=2) as made:
        seen: list[Published] = []
        unwatch = made.gateways["g2"].router.watch(KEY, seen.append)
        await advance(1.0)
        assert made.owner(KEY) == "" and made.gateways["g2"].router.subscriptions.attachments == 0
        await made.gateways["g1"].create("one")
        await made.gateways["g1"].say(KEY, tokens=5)
        top = await made.at_rest(KEY)
        await until(lambda: offsets(seen)[-1:] == [top])
        unwatch()
        unwatch()
        assert await silent(made, "g2")


@virtual
async def test_watches_of_one_session_share_an_attachment_until_the_last_ends() -> None:
    async with cluster(replicas=1) as made:
        await made.gateways["g1"].create("one")
        router, first, second = made.gateways["g1"].router, list[Published](), list[Published]()
        unwatch = router.watch(KEY, first.append)
        unwatch_second = router.watch(KEY, second.append)
        await until(lambda: router.subscriptions.attachments == 1)
        assert len(router.subscriptions) == 1
        unwatch()
        await made.gateways["g1"].say(KEY, tokens=3)
        await made.at_rest(KEY)
        assert second and not offsets(first)
        unwatch_second()
        assert await silent(made)


@virtual
async def test_a_watch_moves_with_its_session_in_mid_answer() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        key, reader = await answering(made, tokens=200)
        source = made.replicas[made.owner(key)]
        await source.replica.handoff.hand_off(key, member(other(made, source.name)))
        top = await made.at_rest(key)
        await reader.reaches(top)
        told = [offset for _, offset in reader.told]
        assert told == list(range(told[0], top + 1)), "what it missed on the way was delivered, and nothing twice"
        reader.close()
        assert await silent(made)


@virtual
async def test_an_answer_whose_replica_dies_is_taken_over_because_it_is_read() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        key, reader = await answering(made, tokens=200)
        dead = made.owner(key)
        await made.replicas[dead].kill()
        await until(lambda: made.owner(key) not in ("", dead), limit_s=made.lease_ttl_s)
        await reader.reaches(await made.at_rest(key))
        reader.close()
