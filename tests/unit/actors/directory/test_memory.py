"""The memory directory's own parts: faults between a handle and its store, and streams that nobody reads."""

from __future__ import annotations

import asyncio

import pytest

from actors.directory.memory import MemoryDirectory
from actors.directory.rules import DirectoryState
from sessions.model.errors import OutcomeUnknown, Unavailable
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, Owner
from tests.support.cluster.faulty_directory import Weather
from tests.support.virtual_time import advance, virtual

KEY = SessionKey(TenantId("t"), SessionId("s"))
MEMBER = Member(replica=ReplicaId("r1"), incarnation="i1", address="", model="m", fingerprint="f")
OWNER = Owner(ReplicaId("r1"), "i1", ActivationId("a1"))


async def pair() -> tuple[MemoryDirectory, Weather, MemoryDirectory]:
    """A handle with faults, and one without that sees what really happened."""
    store, faults = DirectoryState(), Weather()
    faulty, clear = MemoryDirectory(store, faults=faults), MemoryDirectory(store)
    await faulty.open()
    await clear.open()
    await faulty.announce(MEMBER)
    return faulty, faults, clear


@virtual
async def test_a_request_that_is_lost_did_nothing_and_a_reply_that_is_lost_did() -> None:
    faulty, faults, clear = await pair()
    faults.request_error = Unavailable("directory_unavailable", "refused")
    with pytest.raises(Unavailable):
        await faulty.claim(KEY, OWNER)
    assert await clear.locate(KEY) is None
    faults.request_error, faults.reply_error = None, OutcomeUnknown("directory_outcome_unknown", "lost")
    with pytest.raises(OutcomeUnknown):
        await faulty.claim(KEY, OWNER)
    assert await clear.locate(KEY) == OWNER


@virtual
async def test_a_cancelled_call_did_nothing_or_everything() -> None:
    faulty, faults, clear = await pair()
    faults.request_s = faults.reply_s = 1.0
    early = asyncio.create_task(faulty.claim(KEY, OWNER))
    await advance(0.5)
    early.cancel()
    assert await clear.locate(KEY) is None
    late = asyncio.create_task(faulty.claim(KEY, OWNER))
    await advance(1.5)
    late.cancel()
    assert await clear.locate(KEY) == OWNER


@virtual
async def test_a_delayed_answer_tells_the_version_of_its_own_moment() -> None:
    faulty, faults, clear = await pair()
    faults.reply_s = 5.0
    looking = asyncio.create_task(faulty.locate(KEY))
    news = asyncio.create_task(faulty.news())
    await advance(1.0)
    other = Member(replica=ReplicaId("r2"), incarnation="i1", address="", model="m", fingerprint="f")
    await clear.announce(other)
    await looking
    await advance(0.0)
    assert not news.done()
    faults.reply_s = 0.0
    await faulty.locate(KEY)
    await news


@virtual
async def test_closing_while_a_call_is_on_its_way_ends_it_before_it_happens() -> None:
    faulty, faults, clear = await pair()
    faults.request_s = 1.0
    claim = asyncio.create_task(faulty.claim(KEY, OWNER))
    await advance(0.5)
    await faulty.close()
    with pytest.raises(Unavailable, match="directory_closed"):
        await claim
    assert await clear.locate(KEY) is None


@virtual
async def test_interest_that_lapsed_takes_no_memory() -> None:
    store = DirectoryState()
    directory = MemoryDirectory(store)
    await directory.open()
    for n in range(50):
        await directory.watch("g", [SessionKey(TenantId("t"), SessionId(f"s{n}"))])
        await advance(1.0)
    await directory.view()
    assert store.interest_count <= 7
