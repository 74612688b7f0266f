"""Replicas as processes of their own, on a real Valkey and a real PostgreSQL: killed, stopped, drained, replaced."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from actors.routing.router import Router
from sessions.model.events import ResponseCompleted, ResponseIncomplete, SessionMigrated
from sessions.model.types import ResponseId, SessionKey, Usage
from sessions.ports import Journal
from testbed.real_cluster import Story, create, say
from tests.support.cluster.processes import Processes, ReplicaProcess, processes
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.tiny_models import HEAD, KINDS, REWRITTEN, TEMPLATES, write_tiny_model

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
LONG = 6_000  # tokens of an answer of a tiny model: one that is surely being written when its owner leaves


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


@pytest.mark.model
@pytest.mark.parametrize("kind", KINDS)
async def test_answers_of_every_kind_of_tokenizer_move_and_outlive_their_owner(kind: str, tmp_path: Path) -> None:
    """A hand-off in mid-answer, then a kill: the text is as the log says, and the turn behind each computes no more
    than what stands behind the first difference."""
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model, kind, FAMILIES[TEMPLATES.get(kind, "chatml")], SPECIALS)
    async with processes("--model", str(model), "--slots", "2") as made, made.gateway("g1") as (router, journal):
        for number, cause in ((signal.SIGTERM, "handoff"), (signal.SIGKILL, "failover")):
            key = await create(router, cause, temperature=0)
            story = Story(router, key)
            await story.ends(await say(router, key, "where does the river go ü 日本?", tokens=8))
            response = await say(router, key, "and it?", tokens=LONG)
            await story.grows(6)
            assert not story.ended(response)
            owner = await owner_of(made, journal, key)
            owner.signal(number)
            await owner.process.wait()
            await story.ends(response)
            behind = await say(router, key, "and where?", tokens=8)
            await story.ends(behind)
            assert moves(story) == [cause]
            await same_as_the_log(journal, story)
            long, short = (tokens_of(story, each) for each in (response, behind))
            assert long.output_tokens == LONG
            before = long.input_tokens + (0 if kind in REWRITTEN else LONG - HEAD)
            assert short.cached_tokens >= before - HEAD
            await made.start(owner.name)


def tokens_of(story: Story, response: ResponseId) -> Usage:
    """Returns the usage of a response that has ended."""
    ends = ResponseCompleted | ResponseIncomplete
    (usage,) = (
        record.event.response.usage
        for record in story.records.values()
        if isinstance(record.event, ends) and record.event.response_id == response
    )
    assert usage is not None
    cached = usage["input_tokens_details"]["cached_tokens"]
    return Usage(usage["input_tokens"], usage["output_tokens"], cached)
