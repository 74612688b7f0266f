"""Partitions, the stream of activations, and what counts as news for the keeper of a lease."""

from __future__ import annotations

import asyncio

from actors.directory.common import PARTITIONS, UNREAD_MAX, Activations, Freshness, partition_of, session_name
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Owner

OWNER = Owner(ReplicaId("r1"), "i", ActivationId("a"))


def key(session: str, tenant: str = "t") -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(session))


def test_names_of_two_sessions_never_meet_and_partitions_are_what_they_always_were() -> None:
    assert session_name(key("c", "a/b")) != session_name(key("b/c", "a"))
    partitions = [partition_of(key(str(number))) for number in range(2_000)]
    assert set(partitions) == set(range(PARTITIONS))
    assert partitions[:4] == [partition_of(key(str(number))) for number in range(4)]
    stored = [partition_of(key(name, "acme")) for name in ("one", "two", "three")]
    assert stored == [0, 52, 6], "part of the stored format"


async def test_activations_are_read_in_order_bounded_and_to_their_end() -> None:
    closed: list[Activations] = []
    stream = Activations(closed.append)
    for number in range(UNREAD_MAX + 2):
        stream.push(key(str(number)), OWNER)
    assert stream.missed == 2
    assert (await anext(stream))[0] == key("2"), "the oldest were given up"
    stream.close()
    stream.close()
    stream.push(key("late"), OWNER)
    assert len([each async for each in stream]) == UNREAD_MAX - 1 and closed == [stream]


async def test_news_is_a_version_beyond_the_last_returned_or_a_missing_lease() -> None:
    fresh = Freshness()
    fresh.record_returned(5)
    fresh.record_answer(5)
    waiting = asyncio.create_task(fresh.news())
    await asyncio.sleep(0)
    assert not waiting.done()
    fresh.record_answer(6)
    await waiting
    fresh.record_returned(6)
    fresh.lease_missing()
    await fresh.news()
    assert fresh.seen == 6
