"""Which owners are queried before a session is acquired, and whose silence counts as a no."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from actors.cluster.previous_owner import PreviousOwnerQuery
from actors.hosting.ownership import owner_label
from actors.peer.links import LinkDown, Links, PeerLink
from sessions.model.errors import Unavailable
from sessions.model.journal_types import Head
from sessions.model.types import ActivationId, Epoch, ReplicaId, SessionId, SessionKey, TenantId, UnixMs
from sessions.ports import Member, Owner, View
from tests.support.virtual_time import advance, virtual

KEY = SessionKey(TenantId("t"), SessionId("s"))
OWNER = Owner(ReplicaId("r2"), "i2", ActivationId("a"))
HEAD = Head(
    key=KEY,
    epoch=Epoch("e"),
    fence=1,
    incarnation="j",
    top=5,
    owner=owner_label(OWNER),
    created_at=UnixMs(0),
    updated_at=UnixMs(0),
)
TTL = 6.0


def member(replica: str, incarnation: str = "i2") -> Member:
    return Member(replica=ReplicaId(replica), incarnation=incarnation, address=replica, model="m", fingerprint="f")


class OneLink:
    """The link to a replica that answers `holds` with `owner`."""

    def __init__(self, to: Member, owner: Owner | None) -> None:
        self.member = to
        self.down: LinkDown | None = None
        self._owner = owner

    async def holds(self, key: SessionKey, fence: int) -> Owner | None:
        return self._owner

    async def run(self) -> LinkDown:
        ended: asyncio.Future[LinkDown] = asyncio.get_running_loop().create_future()
        return await ended


class World:
    """The others: `owner` is what they answer, `down` that they do not answer a dial."""

    def __init__(self, owner: Owner | None = OWNER, *, down: bool = False) -> None:
        self.owner = owner
        self.down = down
        self.queried = 0
        self.links = Links(self._connect, spawn=self._spawn)
        self.query = PreviousOwnerQuery(ReplicaId("r1"), self.links, spawn=self._spawn, lease_ttl_s=TTL)
        self._tasks: list[asyncio.Task[None]] = []

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._tasks.append(asyncio.get_running_loop().create_task(work))
        return self._tasks[-1]

    async def _connect(self, member: Member) -> PeerLink:
        self.queried += 1
        if self.down:
            raise LinkDown("refused")
        return OneLink(member, self.owner)  # type: ignore[return-value]

    def sees(self, *members: Member, version: int = 2) -> None:
        self.query.update(View(version, members))


@virtual
async def test_an_owner_that_lives_and_has_the_session_is_found() -> None:
    world = World()
    world.sees(member("r1"), member("r2"))
    assert await world.query.find_owner(KEY, HEAD) == OWNER
    other_activation = msgspec.structs.replace(OWNER, activation=ActivationId("b"))
    world = World(other_activation)
    world.sees(member("r2"))
    assert await world.query.find_owner(KEY, HEAD) is None, "the journal names another activation"


@virtual
async def test_our_own_sessions_and_those_of_the_suspected_are_not_queried() -> None:
    world = World(down=True)
    world.sees(member("r1"), member("r2"))
    own = msgspec.structs.replace(HEAD, owner="r1/a")
    assert await world.query.find_owner(KEY, own) is None and world.queried == 0
    await world.query.find_owner(KEY, HEAD)
    dials = world.queried
    assert await world.query.find_owner(KEY, HEAD) is None and world.queried == dials


@virtual
async def test_a_member_that_had_vanished_before_the_first_view_is_reached_while_it_answers() -> None:
    for down, owner in ((False, OWNER), (True, None)):
        world = World(down=down)
        world.query.update(View(7, (member("r1"),)), vanished=(member("r1", "i1"), member("r2")))
        await advance(0.1)
        assert world.queried == 1, "its own older process is not dialed"
        assert await world.query.find_owner(KEY, HEAD) == owner


@virtual
async def test_a_replica_that_was_never_met_may_be_back_for_one_lease() -> None:
    world = World()
    world.sees(member("r1"), version=1)
    with pytest.raises(Unavailable) as moving:
        await world.query.find_owner(KEY, HEAD)
    assert moving.value.code == "session_moving"
    await advance(TTL)
    assert await world.query.find_owner(KEY, HEAD) is None
    world.query.directory_lost()
    with pytest.raises(Unavailable):
        await world.query.find_owner(KEY, HEAD)
