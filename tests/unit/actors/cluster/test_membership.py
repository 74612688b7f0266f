"""The keeper of a lease, in virtual time, over a directory that can be made to fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from actors.cluster.membership import RENEW_S, Change, Membership
from actors.directory import LEASE_TTL_S, PARTITIONS
from actors.directory.memory import MemoryDirectory
from actors.directory.rules import DirectoryState
from sessions.model.errors import Conflict, OutcomeUnknown, Unavailable
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, Owner
from tests.support.cluster.faulty_directory import Weather
from tests.support.virtual_time import advance, virtual

AWAY = Unavailable("directory_unavailable", "away")
LOST = OutcomeUnknown("directory_outcome_unknown", "lost")
EVERYWHERE = frozenset(range(PARTITIONS))
KEY = SessionKey(TenantId("t"), SessionId("s"))
OWNER = Owner(ReplicaId("r1"), "i1", ActivationId("a1"))


def member(replica: str = "r1", incarnation: str = "i1") -> Member:
    return Member(replica=ReplicaId(replica), incarnation=incarnation, address="", model="m", fingerprint="f")


class Keeper:
    def __init__(self, store: DirectoryState, who: Member | None, **options: object) -> None:
        self.weather = Weather()
        self.directory = MemoryDirectory(store, faults=self.weather)
        self.membership = Membership(self.directory, who, **options)  # type: ignore[arg-type]
        self.changes: list[Change] = []
        self.membership.listen(self.changes.append)

    async def announcements(self, seconds: float) -> int:
        before = len(self.weather.calls)
        await advance(seconds)
        return sum(operation == "announce" for _, operation in self.weather.calls[before:])


@contextlib.asynccontextmanager
async def keeping(store: DirectoryState, who: Member | None, **options: object) -> AsyncIterator[Keeper]:
    keeper = Keeper(store, who, **options)
    await keeper.directory.open()
    await keeper.membership.start()
    run = asyncio.create_task(keeper.membership.run())
    try:
        yield keeper
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await keeper.directory.close()


@virtual
async def test_a_lease_is_renewed_with_the_present_load_and_never_runs_out() -> None:
    loads = iter(range(1000))
    async with keeping(DirectoryState(), member(), load=lambda: float(next(loads))) as keeper:
        membership = keeper.membership
        tenure = membership.tenure
        assert await keeper.announcements(60.0) == 30
        assert not membership.must_confirm
        assert membership.tenure == tenure
        assert membership.view.members[0].load == 30.0


@virtual
async def test_nobody_starts_without_a_directory() -> None:
    keeper = Keeper(DirectoryState(), member())
    with pytest.raises(Unavailable):
        await keeper.membership.start()


@virtual
async def test_past_its_own_deadline_an_owner_must_confirm_and_again_after_the_lease_is_back() -> None:
    async with keeping(DirectoryState(), member()) as keeper:
        membership = keeper.membership
        confirmed_under = membership.tenure
        keeper.weather.request_error = AWAY
        await advance(LEASE_TTL_S - 0.1)
        assert not membership.must_confirm
        await advance(0.1)
        assert membership.must_confirm
        assert membership.tenure != confirmed_under
        keeper.weather.request_error = None
        await advance(RENEW_S)
        assert not membership.must_confirm
        assert membership.tenure == confirmed_under + 1  # what was confirmed before the gap does not count after it
        (change,) = [change for change in keeper.changes if change.lapsed]
        assert change.rejoined == EVERYWHERE


@virtual
async def test_the_deadline_counts_from_when_the_announcement_was_sent() -> None:
    """The answer comes late; the directory's lease began at some moment before it, at worst when it was asked."""
    async with keeping(DirectoryState(), member()) as keeper:
        keeper.weather.request_s = 1.5
        await advance(RENEW_S + 1.5)  # asked at 2.0, answered at 3.5
        keeper.weather.request_error = AWAY
        await advance(2.0 + LEASE_TTL_S * 0.99 - 3.5 - 0.01)
        assert not keeper.membership.must_confirm
        await advance(0.02)
        assert keeper.membership.must_confirm


@virtual
async def test_an_answer_that_is_lost_does_not_count() -> None:
    async with keeping(DirectoryState(), member()) as keeper:
        keeper.weather.reply_error = LOST
        await advance(LEASE_TTL_S)
        assert keeper.membership.must_confirm  # although the directory has renewed it all the while
        keeper.weather.reply_error = None
        await advance(RENEW_S)
        assert not keeper.membership.must_confirm
        assert [change.rejoined for change in keeper.changes if change.lapsed] == [frozenset()]


@virtual
async def test_a_directory_that_does_not_answer_is_given_up_in_time_to_ask_again() -> None:
    async with keeping(DirectoryState(), member()) as keeper:
        keeper.weather.request_s = 1000.0
        await advance(RENEW_S + 1.0)
        keeper.weather.request_s = 0.0
        await advance(LEASE_TTL_S - RENEW_S - 1.0)
        assert not keeper.membership.must_confirm


@virtual
async def test_after_a_loss_it_is_back_by_itself_and_says_which_sessions_to_claim() -> None:
    store = DirectoryState()
    async with keeping(store, member()) as keeper:
        assert (await keeper.directory.claim(KEY, OWNER)).won
        tenure = keeper.membership.tenure
        await advance(0.5)
        store.empty()
        await advance(RENEW_S)
        (change,) = [change for change in keeper.changes if change.rejoined]
        assert change.rejoined == EVERYWHERE
        assert change.lapsed
        assert keeper.membership.tenure != tenure
        assert not keeper.membership.must_confirm
        assert (await keeper.directory.claim(KEY, OWNER)).won


@virtual
async def test_a_gateway_looks_without_being_a_member() -> None:
    store = DirectoryState()
    async with keeping(store, None) as gateway:
        assert not gateway.membership.view.members
        async with keeping(store, member()):
            await advance(RENEW_S)
            assert [each.replica for each in gateway.membership.view.members] == ["r1"]
        assert gateway.membership.must_confirm  # it owns nothing
        assert await gateway.announcements(10.0) == 0


@virtual
async def test_who_was_replaced_stops() -> None:
    store = DirectoryState()
    old = Keeper(store, member("r1", "old"))
    await old.directory.open()
    await old.membership.start()
    running = asyncio.create_task(old.membership.run())
    async with keeping(store, member("r1", "new")):
        await advance(RENEW_S)
        with pytest.raises(Conflict, match="replica_replaced"):
            await running


def test_a_lease_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        Membership(MemoryDirectory(), member(), lease_ttl_s=3.0, renew_s=2.0)
