"""Links: when a replica is suspected, and when not any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from actors.peer.links import LinkDown, LinkLimits, Links, PeerLink, Replaced
from sessions.model.types import ReplicaId
from sessions.ports import Member
from tests.support.virtual_time import advance, outcome, virtual


def member(name: str = "r1", incarnation: str = "i1") -> Member:
    return Member(replica=ReplicaId(name), incarnation=incarnation, address=name, model="m", fingerprint="f")


class FakeLink:
    """A link whose end the test decides."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.ended: asyncio.Future[LinkDown] = asyncio.get_running_loop().create_future()

    async def run(self) -> LinkDown:
        return await self.ended


class World:
    """What dialing gives, and what is told of links."""

    def __init__(self) -> None:
        self.answers: list[LinkDown | None] = []  # of the next dials; afterwards `always`
        self.always: LinkDown | None = None
        self.dials = 0
        self.made: list[FakeLink] = []
        self.told: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.links = Links(self._connect, spawn=self._spawn, limits=LinkLimits())
        self.links.add_listener(self)
        self.links.update([member()])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    async def _connect(self, member: Member) -> PeerLink:
        self.dials += 1
        await asyncio.sleep(0.001)
        answer = self.answers.pop(0) if self.answers else self.always
        if answer is not None:
            raise answer
        link = FakeLink(member)
        self.made.append(link)
        return link  # type: ignore[return-value]

    def link_down(self, link: PeerLink, reason: LinkDown) -> None:
        self.told.append(f"down {reason.reason}")

    def suspected(self, member: Member) -> None:
        self.told.append("suspected")

    def reachable(self, member: Member) -> None:
        self.told.append("reachable")

    async def close(self) -> None:
        await self.links.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@virtual
async def test_a_broken_link_to_a_replica_that_answers_again_is_no_suspicion() -> None:
    world = World()
    await world.links.get(member())
    world.made[0].ended.set_result(LinkDown("reset"))
    await advance(0.1)
    assert world.told == ["reachable", "down reset", "reachable"]
    assert not world.links.suspect(member()) and world.dials == 2
    await world.close()


@virtual
async def test_a_broken_link_and_a_refused_dial_are_a_suspicion_until_it_answers() -> None:
    world = World()
    await world.links.get(member())
    world.always = LinkDown("refused")
    world.made[0].ended.set_result(LinkDown("reset"))
    await advance(0.01)
    assert world.told == ["reachable", "down reset", "suspected"]
    assert world.links.suspect(member())
    dials = world.dials
    with pytest.raises(LinkDown):
        await world.links.get(member())
    assert world.dials == dials, "whoever asks for a suspect is told at once"
    world.always = None
    await advance(2.0)
    assert world.told[-1] == "reachable" and not world.links.suspect(member())
    await world.close()


@virtual
async def test_being_rejected_is_no_suspicion_and_not_asked_for_again_at_once() -> None:
    world = World()
    world.always = LinkDown("rejected", "another model")
    for _ in range(5):
        error = await outcome(world.links.get(member()))
        assert isinstance(error, LinkDown) and error.detail == "another model"
    assert world.dials == 1 and world.told == [] and not world.links.suspect(member())
    await advance(2.0)
    world.always = None
    await world.links.get(member())
    await world.close()


@virtual
async def test_another_process_in_its_place_is_a_suspicion_and_is_not_dialed_again() -> None:
    world = World()
    world.always = Replaced("somebody else is here")
    assert isinstance(await outcome(world.links.get(member())), LinkDown)
    assert world.links.suspect(member())
    await advance(10.0)
    assert world.dials <= 2
    world.always = None
    again = member(incarnation="i2")
    world.links.update([again])
    await world.links.get(again)
    assert not world.links.suspect(again)
    await world.close()


@virtual
async def test_a_suspect_that_has_left_the_view_is_forgotten() -> None:
    world = World()
    world.always = LinkDown("refused")
    await outcome(world.links.get(member()))
    await advance(1.0)
    world.links.update([])
    dials = world.dials
    await advance(10.0)
    assert world.dials <= dials + 1 and not world.links.suspect(member())
    await world.close()


@virtual
async def test_a_suspect_that_left_the_view_while_it_was_dialed_is_dialed_when_it_is_back() -> None:
    world = World()
    world.always = LinkDown("refused")
    with pytest.raises(LinkDown):
        await world.links.get(member())
    dials = world.dials
    while world.dials == dials:
        await advance(0.001)
    world.links.update([])  # in the middle of the next one
    await advance(60.0)
    world.always = None
    world.links.update([member()])
    await advance(60.0)
    assert not world.links.suspect(member()) and world.told[-1] == "reachable"
    await world.close()


@virtual
async def test_who_waits_for_a_dial_that_a_close_ends_is_told() -> None:
    world = World()
    waiting = asyncio.create_task(outcome(world.links.get(member())))
    await asyncio.sleep(0)
    await world.links.close()
    down = await waiting
    assert isinstance(down, LinkDown) and down.reason == "closed"
    await world.close()
