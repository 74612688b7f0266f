"""A gateway's watches attach where their session is, catch up from the journal, and leave nothing behind."""

from __future__ import annotations

from sessions.model.types import SessionId, SessionKey, TenantId
from sessions.ports import Published
from tests.support.cluster.harness import Cluster, cluster, until
from tests.support.virtual_time import advance, virtual

KEY = SessionKey(TenantId("acme"), SessionId("one"))


def offsets(seen: list[Published]) -> list[int]:
    return [record.offset for published in seen for record in published.records]


async def silent(made: Cluster, gateway: str = "g1") -> bool:
    subscriptions = made.gateways[gateway].router.subscriptions
    await advance(0.1)
    return len(subscriptions) == 0 and subscriptions.attachments == 0


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
