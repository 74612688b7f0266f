"""The audit log on PostgreSQL where several processes write to one tenant's chain."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from persistence.postgres.database import PostgresDatabase
from persistence.postgres.store import PostgresStore
from sessions.governance.audit_trim import trim
from sessions.governance.audit_verify import verify
from sessions.model.audit import Audited
from sessions.model.errors import Fenced
from sessions.model.types import UnixMs
from tests.support.stores.journals import ACME, NOW, an_append, grant, key, postgres

pytestmark = pytest.mark.cluster
_names = itertools.count()


@pytest.fixture
async def replicas() -> AsyncIterator[list[PostgresStore]]:
    schema = f"audit_{next(_names)}"
    stores = [PostgresStore(PostgresDatabase(postgres().dsn, schema=schema)) for _ in range(3)]
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()


def a_row(n: int) -> Audited:
    return Audited(action="verdict", at=UnixMs(NOW + n), detail={"n": n})


async def test_replicas_that_trim_and_append_at_once_keep_one_chain(replicas: list[PostgresStore]) -> None:
    logs = [store.audit for store in replicas]
    await logs[0].record(ACME, [a_row(n) for n in range(60)])
    heads = [await grant(replicas[n % 3].journal, key(f"s{n}")) for n in range(6)]

    async def appends(number: int, head: Any) -> None:
        for top in range(6):
            one = msgspec.structs.replace(head, top=top)
            await replicas[number % 3].journal.append(an_append(one, 1, audit=(a_row(100 + number),)))

    async def trims(number: int) -> int:
        ends = [UnixMs(NOW + end) for end in range(10, 61, 10)]
        return sum([await trim(logs[number], ACME, before=end, now=UnixMs(NOW + 99)) for end in ends])

    _, trimmed = await asyncio.gather(
        asyncio.gather(*(appends(number, head) for number, head in enumerate(heads))),
        asyncio.gather(*(trims(number) for number in range(3))),
    )
    assert sum(trimmed) == 60, "each row went once, whoever took it away"
    for log in logs:
        found = await verify(log, ACME)
        assert found.intact and found.trimmed == 60 and found.rows > 36, found.why


async def test_a_replica_that_lost_its_session_leaves_no_row(replicas: list[PostgresStore]) -> None:
    here, there = replicas[0].journal, replicas[1].journal
    head = await grant(here, key("s"))
    await here.append(an_append(head, 1, audit=(a_row(1),)))
    taken = await grant(there, key("s"), 1)
    await there.append(an_append(taken, 1, audit=(a_row(2),)))
    behind = msgspec.structs.replace(head, top=1)
    other = await grant(here, key("other"))
    outcomes = await asyncio.gather(
        here.append(an_append(behind, 1, audit=(a_row(3),))),
        here.append(an_append(other, 1, audit=(a_row(4),))),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes] == [Fenced, type(None)]
    rows = await replicas[0].audit.rows(ACME, after=0, limit=9)
    assert [msgspec.json.decode(row.body)["detail"]["n"] for row in rows] == [1, 2, 4]
    assert (await verify(replicas[1].audit, ACME)).intact
