"""Claims, grants and doubts of one replica, with a directory and a journal that fail as asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from actors.directory.memory import MemoryDirectory
from actors.directory.rules import DirectoryState as DirectoryStore
from actors.hosting.ownership import STOOD_STILL_S, TICK_S, Identity, Moved, Ownership, Peers, owner_label
from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from sessions.clock import Clock
from sessions.model.errors import Fenced, OutcomeUnknown, Unavailable
from sessions.model.events import Record, SessionCreated, SessionInfo
from sessions.model.journal_types import Append, Head
from sessions.model.types import ActivationId, Epoch, ReplicaId, SessionId, SessionKey, TenantId, UnixMs
from sessions.ports import Member, Owner
from tests.support.stores.tables import head_of
from tests.support.virtual_time import VirtualLoop, advance, virtual

KEY = SessionKey(TenantId("acme"), SessionId("one"))


class Faults:
    """Raises what is queued for an operation: before it happens, or after; None lets it pass."""

    def __init__(self) -> None:
        self.before: dict[str, list[BaseException | None]] = {}
        self.after: dict[str, list[BaseException | None]] = {}
        self.calls: list[str] = []
        self.meanwhile: dict[str, Callable[[], object]] = {}  # happens while the operation is on its way

    async def request(self, operation: str) -> None:
        self.calls.append(operation)
        self.meanwhile.pop(operation, lambda: None)()
        self._raise(self.before, operation)

    async def reply(self, operation: str) -> None:
        self._raise(self.after, operation)

    async def medium(self, call: str, key: SessionKey | None, effect: Callable[[], Any]) -> Any:
        await self.request(call)
        result = effect()
        await self.reply(call)
        return result

    def _raise(self, errors: dict[str, list[BaseException | None]], operation: str) -> None:
        if errors.get(operation) and (error := errors[operation].pop(0)) is not None:
            raise error


AWAY = Unavailable("directory_unavailable", "away")
UNKNOWN = OutcomeUnknown("unknown", "no answer")


class World:
    """Two replicas on the same stores."""

    def __init__(self) -> None:
        self.directory = DirectoryStore()
        self.journal = MemoryDatabase()
        self.faults = Faults()
        self.lapsed = False
        self._ids = 0

    async def replica(self, name: str, *, faulty: bool = True) -> Ownership:
        directory = MemoryDirectory(self.directory, faults=self.faults if faulty else None)
        journal = MemoryJournal(self.journal, medium=self.faults.medium) if faulty else MemoryJournal(self.journal)
        await directory.open()
        await journal.open()
        await directory.announce(
            Member(replica=ReplicaId(name), incarnation="i", address=name, model="m", fingerprint="f")
        )
        return Ownership(
            Identity(ReplicaId(name), "i"),
            journal=journal,
            directory=directory,
            clock=Clock(lambda: UnixMs(1), self._new_id),
            peers=Peers(must_confirm=lambda: self.lapsed),
        )

    def _new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    @property
    def head(self) -> Head | None:
        return head_of(self.journal, KEY)

    async def written(self) -> None:
        """The session has a log."""
        head = self.head
        assert head is not None
        event = SessionCreated(info=SessionInfo(model="m", created_at=UnixMs(1)))
        await self.journal.journal.append(
            Append(key=KEY, fence=head.fence, top=0, records=(Record(1, UnixMs(1), event),), at=UnixMs(1))
        )


@virtual
async def test_an_early_takeover_replaces_exactly_the_owner_that_was_lost() -> None:
    world = World()
    first, second = await world.replica("r1"), await world.replica("r2")
    taken = await first.acquire(KEY, None)
    other = Owner(ReplicaId("r1"), "i", ActivationId("another"))
    with pytest.raises(Moved):
        await second.acquire(KEY, world.head, instead_of=other)
    new = await second.acquire(KEY, world.head, instead_of=taken.owner)
    assert new.head.fence == taken.head.fence + 1
    assert not await first.confirm(KEY, taken.head.fence)


@pytest.mark.parametrize("lost", ["before", "after"])
@virtual
async def test_a_grant_of_unknown_outcome_is_looked_up_and_never_taken_twice(lost: str) -> None:
    world = World()
    first = await world.replica("r1")
    getattr(world.faults, lost)["grant"] = [UNKNOWN]
    taken = await first.acquire(KEY, None)
    assert world.head == taken.head and taken.head.fence == 1
    assert taken.head.owner == owner_label(taken.owner)


@virtual
async def test_a_fence_that_moved_meanwhile_is_read_again() -> None:
    world = World()
    first = await world.replica("r1")
    stale = await first.acquire(KEY, None)
    await world.journal.journal.grant(
        KEY, expected_fence=stale.head.fence, owner="somebody/else", new_epoch=Epoch("e"), now_ms=UnixMs(1)
    )
    first.drop(KEY)
    taken = await first.acquire(KEY, stale.head)
    assert taken.head.fence == 3


@virtual
async def test_without_the_directory_anothers_session_is_left_alone_unless_it_was_lost() -> None:
    world = World()
    first, second = await world.replica("r1", faulty=False), await world.replica("r2")
    taken = await first.acquire(KEY, None)
    await world.written()
    world.faults.before["claim"] = [AWAY, AWAY, AWAY]
    with pytest.raises(Unavailable):
        await second.acquire(KEY, world.head)
    with pytest.raises(Unavailable):
        await second.acquire(KEY, world.head, instead_of=Owner(ReplicaId("r1"), "i", ActivationId("older")))
    assert world.head is not None and world.head.fence == taken.head.fence
    await second.acquire(KEY, world.head, instead_of=taken.owner)


@virtual
async def test_what_was_taken_without_the_directory_is_claimed_when_it_is_back() -> None:
    world = World()
    first = await world.replica("r1")
    world.faults.before["claim"] = [AWAY, AWAY]
    taken = await first.acquire(KEY, None)
    with pytest.raises(Unavailable):
        await first.reclaim()
    assert world.directory.locate(KEY, now=0.0) is None
    assert await first.reclaim() == {}
    assert world.directory.locate(KEY, now=0.0) == taken.owner


@virtual
async def test_a_session_that_another_has_claimed_is_answered_for_only_with_the_journals_word() -> None:
    world = World()
    first, second = await world.replica("r1"), await world.replica("r2")
    taken = await first.acquire(KEY, None)
    assert first.is_confirmed(KEY)
    world.directory.claim(KEY, Owner(ReplicaId("r2"), "i", ActivationId("x")), instead_of=taken.owner, now=0.0)
    assert list(await first.reclaim(lambda key: True)) == [KEY]
    assert not first.is_confirmed(KEY)
    assert await first.confirm(KEY, taken.head.fence) and first.is_confirmed(KEY)
    assert second.owner(KEY) is None


@virtual
async def test_standing_still_puts_everything_in_doubt_even_before_the_next_tick() -> None:
    world = World()
    first = await world.replica("r1")
    taken = await first.acquire(KEY, None)
    first.tick()
    await advance(TICK_S)
    assert not first.tick() and first.is_confirmed(KEY)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.clock.now += STOOD_STILL_S + 2 * TICK_S
    assert not first.is_confirmed(KEY)
    assert first.tick()
    first.invalidate()
    assert not first.is_confirmed(KEY)
    assert await first.confirm(KEY, taken.head.fence) and first.is_confirmed(KEY)


@virtual
async def test_without_a_lease_every_answer_needs_the_journal() -> None:
    world = World()
    first = await world.replica("r1")
    taken = await first.acquire(KEY, None)
    world.lapsed = True
    assert not first.is_confirmed(KEY)
    assert await first.confirm(KEY, taken.head.fence)
    assert not first.is_confirmed(KEY), "the next answer is another moment"
    world.faults.before["head"] = [Unavailable("journal_unavailable", "away")]
    with pytest.raises(Unavailable):
        await first.confirm(KEY, taken.head.fence)


@virtual
async def test_giving_back_what_is_ours_again_does_nothing() -> None:
    world = World()
    first = await world.replica("r1")
    old = await first.acquire(KEY, None)
    first.drop(KEY)
    new = await first.acquire(KEY, world.head)
    await first.release(KEY, old.owner)
    assert world.directory.locate(KEY, now=0.0) == new.owner


@virtual
async def test_a_grant_that_others_keep_winning_ends_with_a_retryable_error() -> None:
    world = World()
    first = await world.replica("r1")
    await first.acquire(KEY, None)
    first.drop(KEY)
    world.faults.before["grant"] = [Fenced("fenced", "raced") for _ in range(4)]
    with pytest.raises(Unavailable) as error:
        await first.acquire(KEY, world.head)
    assert error.value.code == "session_moving" and error.value.retryable


@virtual
async def test_what_could_not_be_given_back_is_given_back_later() -> None:
    world = World()
    ownership = await world.replica("r1")
    await ownership.acquire(KEY, None)
    world.faults.before["release"] = [AWAY]
    owner = ownership.drop(KEY)
    await ownership.release(KEY, owner)
    assert world.directory.entry_count == 1
    await ownership.retry_releases()
    assert world.directory.entry_count == 0
    await ownership.retry_releases()
    assert world.faults.calls.count("release") == 2


async def left_behind(world: World) -> Head:
    """Another replica had the session, wrote in it and let it go."""
    second = await world.replica("r2", faulty=False)
    taken = await second.acquire(KEY, None)
    await world.written()
    second.drop(KEY)
    await second.release(KEY, taken.owner)
    assert world.head is not None
    return world.head


@pytest.mark.parametrize("end", [AWAY, UNKNOWN, asyncio.CancelledError()], ids=["away", "unknown", "cancelled"])
@virtual
async def test_a_claim_that_stood_though_nobody_heard_so_is_given_back(end: BaseException) -> None:
    world = World()
    head, first = await left_behind(world), await world.replica("r1")
    world.faults.after["claim"] = [UNKNOWN]
    world.faults.before["claim"] = [None, end, end, end]
    world.faults.before["release"] = [AWAY]
    with pytest.raises(type(end) if end is not AWAY else Unavailable):
        await first.acquire(KEY, head)
    assert world.directory.locate(KEY, now=0.0) is not None, "it names us for a session that we do not have"
    await first.retry_releases()
    assert world.directory.locate(KEY, now=0.0) is None


@virtual
async def test_what_never_was_claimed_is_not_given_back() -> None:
    world = World()
    head, first, second = await left_behind(world), await world.replica("r1"), await world.replica("r2")
    world.faults.before["claim"] = [AWAY]
    with pytest.raises(Unavailable):
        await first.acquire(KEY, head)
    await second.acquire(KEY, head)
    with pytest.raises(Moved):
        await first.acquire(KEY, world.head)
    assert "release" not in world.faults.calls


@virtual
async def test_an_entry_of_our_own_past_does_not_stand_against_us() -> None:
    world = World()
    first = await world.replica("r1")
    old = await first.acquire(KEY, None)
    await world.written()
    world.faults.before["release"] = [AWAY]
    await first.release(KEY, first.drop(KEY))
    world.faults.before["claim"] = [AWAY]
    new = await first.acquire(KEY, world.head)
    await first.retry_releases()
    assert world.directory.locate(KEY, now=0.0) == old.owner, "what is left is not worth a moment without an owner"
    assert await first.reclaim() == {}
    assert world.directory.locate(KEY, now=0.0) == new.owner


@virtual
async def test_every_entry_that_could_not_be_given_back_is_remembered() -> None:
    """The older of two counts in the directory; the younger never came to it."""
    world = World()
    first = await world.replica("r1")
    await first.acquire(KEY, None)
    await world.written()
    world.faults.before["release"] = [AWAY, AWAY]
    await first.release(KEY, first.drop(KEY))
    world.faults.before["claim"] = [AWAY]
    await first.acquire(KEY, world.head)
    await first.release(KEY, first.drop(KEY))
    assert world.directory.locate(KEY, now=0.0) is not None
    await first.retry_releases()
    assert world.directory.locate(KEY, now=0.0) is None


@virtual
async def test_a_session_that_leaves_while_it_is_claimed_again_leaves_no_entry() -> None:
    world = World()
    first = await world.replica("r1")
    await first.acquire(KEY, None)
    await world.written()
    owner = world.directory.locate(KEY, now=0.0)
    assert owner is not None
    world.directory.release(KEY, owner)

    world.faults.meanwhile["claim"] = lambda: first.drop(KEY)  # its release has come before the claim
    assert await first.reclaim(lambda key: True) == {}
    assert world.directory.locate(KEY, now=0.0) is None
