"""A replica that is emptied says so in the installation's audit log, whoever told it to."""

from __future__ import annotations

import asyncio

import pytest

from actors.handoff.drain import BY_SIGNAL
from persistence.memory.audit import MemoryAudit
from persistence.memory.journal import MemoryJournal
from sessions.governance.audit_verify import verify
from sessions.model.audit import INSTALLATION, public
from sessions.model.errors import Unavailable
from tests.support.cluster.harness import Cluster, cluster
from tests.support.virtual_time import outcome, virtual


async def written(made: Cluster) -> list[tuple[str, object]]:
    journal = MemoryJournal(made.store)
    await journal.open()
    audit = MemoryAudit(journal.database)
    assert (await verify(audit, INSTALLATION)).intact
    rows = [public(row) for row in await audit.rows(INSTALLATION, after=0, limit=9)]
    return [(row["action"], row["detail"]) for row in rows]


@virtual
async def test_an_operators_drain_over_the_peer_link_is_written_down_once() -> None:
    async with cluster(replicas=2) as made:
        member = made.replicas["r1"].replica.membership.member
        assert member is not None
        link = await made.connector("drain", "operator", member.fingerprint)(member)
        carrying = asyncio.ensure_future(link.run())
        assert (await link.drain(asyncio.Queue())).left == 0
        assert (await link.drain(asyncio.Queue())).left == 0
        await link.close()
        await carrying
        assert await written(made) == [("replica.draining", {"replica": "r1", "by": "operator drain"})]


@virtual
async def test_who_is_told_to_end_says_so_too() -> None:
    async with cluster(replicas=2) as made:
        await made.replicas["r2"].replica.drain()
        assert await written(made) == [("replica.draining", {"replica": "r2", "by": BY_SIGNAL})]


@virtual
async def test_without_a_journal_an_operator_is_refused_and_a_signal_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(replicas=2) as made:
        replica = made.replicas["r1"].replica

        async def away(*_: object) -> None:
            raise Unavailable("journal_unavailable", "away")

        monkeypatch.setattr(replica._drain._audit, "record", away)
        assert isinstance(await outcome(replica._drain.drain(lambda *_: None, by="operator drain")), Unavailable)
        assert not replica.runtime.draining
        await replica.drain()
        assert replica.runtime.draining and await written(made) == []
