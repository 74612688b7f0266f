"""Replicas as processes of their own, on a real Valkey and a real PostgreSQL: killed, stopped, drained, replaced."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from actors.routing.router import Router
from sessions.model.events import SessionMigrated
from sessions.model.types import SessionKey
from sessions.ports import Journal
from tests.support.cluster.processes import Processes, ReplicaProcess, processes
from tests.support.cluster.real import Story, create, say

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def owner_of(made: Processes, journal: Journal, key: SessionKey) -> ReplicaProcess:
    head = await journal.head(key)
    assert head is not None
    return made.replicas[head.owner.rpartition("/")[0]]


async def same_as_the_log(journal: Journal, story: Story) -> None:
    """What the reader was told is what the journal has, and it was told of the end."""
    page = await journal.read(story.key, after=0, limit=100_000, bytes_max=1 << 30)
    assert page is not None and story.top == page.head.top
    for record in page.records:
        told = story.records.get(record.offset)
        assert told is None or told.event == record.event
    assert story.epochs == {page.head.epoch}


def moves(story: Story) -> list[str]:
    return [r.event.cause for r in story.records.values() if isinstance(r.event, SessionMigrated)]


async def answering(router: Router, session: str, tokens: int) -> tuple[Story, object]:
    key = await create(router, session)
    story = Story(router, key)
    response = await say(router, key, tokens=tokens)
    await story.grows(5)
    return story, response


async def test_kill_dash_nine_in_mid_answer() -> None:
    async with processes() as made, made.gateway("g1") as (router, journal):
        story, response = await answering(router, "one", 150)
        victim = await owner_of(made, journal, story.key)
        killed_at = time.perf_counter()
        await victim.kill()
        await story.until(lambda: story.told[-1][0] > killed_at + 0.005)
        await story.until(lambda: bool(moves(story)))
        await story.ends(response)  # type: ignore[arg-type]
        await same_as_the_log(journal, story)
        assert moves(story) == ["failover"]


async def test_a_stopped_owner_is_replaced_and_wakes_to_nothing() -> None:
    async with processes() as made, made.gateway("g1") as (router, journal):
        story, response = await answering(router, "one", 400)
        sleeper = await owner_of(made, journal, story.key)
        sleeper.signal(signal.SIGSTOP)
        await story.until(lambda: bool(moves(story)))
        await story.grows(50)
        sleeper.signal(signal.SIGCONT)
        await story.ends(response)  # type: ignore[arg-type]
        await same_as_the_log(journal, story)
        assert moves(story) == ["failover"]


async def test_sigterm_hands_everything_off_before_the_process_ends() -> None:
    async with processes() as made, made.gateway("g1") as (router, journal):
        told = [await answering(router, f"s{number}", 200) for number in range(6)]
        for name in ("r1", "r2"):
            victim = made.replicas[name]
            victim.signal(signal.SIGTERM)
            await victim.says("drained")
            await victim.process.wait()
            assert victim.process.returncode == 0
            await made.start(name)
        for story, response in told:
            await story.ends(response)  # type: ignore[arg-type]
            await same_as_the_log(journal, story)
            assert set(moves(story)) <= {"handoff"}


async def test_valkey_killed_and_started_empty_under_load() -> None:
    async with processes() as made, made.gateway("g1") as (router, journal):
        told = [await answering(router, f"s{number}", 250) for number in range(4)]
        made.valkey.kill()
        await asyncio.gather(*(story.grows(10) for story, _ in told))
        made.valkey.start()
        key = await create(router, "later")
        story = Story(router, key)
        await story.ends(await say(router, key, tokens=5))
        for story, response in told:
            await story.ends(response)  # type: ignore[arg-type]
            await same_as_the_log(journal, story)
            assert moves(story) == []
