"""When an actor looks answers up, what it has kept, and what becomes of one that its engine could not finish."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from actors.hosting.runtime import RuntimeLimits
from sessions.actor import actor
from sessions.actor.actor_context import ActorLimits
from sessions.machine.inputs_and_effects import Command
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import Overloaded
from sessions.model.generation import GENERATE
from sessions.model.journal_types import Append
from sessions.model.types import Message, Principal, SessionKey, TenantId
from sessions.turn import result_cache
from sessions.turn.keyword_filter import KeywordFilterSet
from sessions.turn.ledger import PromptPlan
from sessions.turn.result_cache import CachedAnswer, ResultLookup
from tests.support.cluster.replicas import KEY, SESSION, TERMINAL, Place, Reader, Replica
from tests.support.scripted import Scripted
from tests.support.virtual_time import advance, settled, virtual


class PlainCache:
    """Keeps answers as they are, by their requests' names."""

    def __init__(self, *, on: bool = True) -> None:
        self.on = on
        self.kept: dict[bytes, CachedAnswer] = {}
        self.texts: list[Sequence[str]] = []
        self.forgotten: list[SessionKey] = []
        self.lookups: list[ResultLookup] = []

    def serves(self, tenant: TenantId) -> bool:
        return self.on

    async def find(self, key: SessionKey, request: bytes, plan: PromptPlan) -> ResultLookup:
        lookup = ResultLookup(key, request, plan, self.kept.get(request))
        self.lookups.append(lookup)
        return lookup

    async def store(self, lookup: ResultLookup, principal: Principal, texts: Sequence[str]) -> None:
        assert lookup.recorded is not None
        self.kept[lookup.name] = lookup.recorded
        self.texts.append(texts)

    async def forget_session(self, key: SessionKey) -> None:
        self.forgotten.append(key)
        self.kept.clear()

    async def forget_tenant(self, tenant: TenantId) -> None:
        self.kept.clear()


def text_of(body: ev.ResponseBody) -> str:
    return "".join(item.text for item in body.output if isinstance(item, Message))


async def at_work(place: Place, cache: PlainCache, *scripts: str, **more: Any) -> tuple[Replica, Reader]:
    replica = await place.replica(engine=Scripted(list(scripts), {}), results=cache, **more)
    await replica.create()
    return replica, place.read(replica)


async def question(replica: Replica, reader: Reader, **more: Any) -> ev.ResponseBody:
    """Put at the beginning of the session, so that every one has the same prompt."""
    answer = await replica.say("Where is Paris?", **{"parent_id": None, "temperature": 0, **more})
    ended = await reader.ended(answer.response_id)
    await settled()
    return ended.response


@virtual
async def test_what_only_brings_kv_up_is_not_looked_up() -> None:
    async with Place() as place:
        cache = PlainCache()
        replica, reader = await at_work(place, cache)
        items = (cm.NewMessage(content="Where is Paris?"),)
        command = cm.TurnCreate(id=place.name(), session=SESSION, items=items, request={GENERATE: False}, temperature=0)
        ended = await reader.ended((await replica.do(command)).response_id)
        assert ended.response.status == "completed" and not cache.lookups


@virtual
async def test_only_the_run_that_begins_an_answer_is_kept() -> None:
    async with Place() as place:
        cache, held_back = PlainCache(), KeywordFilterSet(output_phrases=["In France. Never"])
        replica, reader = await at_work(place, cache, "In France.", "Unused.", filters=held_back)
        answer = await replica.say("Where is Paris?", parent_id=None, temperature=0)
        await advance(0.05)  # the engine is at it, and nothing is released
        actor = replica.runtime.actor(KEY)
        assert actor is not None
        actor.readers_left(cancel=False)
        await settled()
        actor.readers_back()
        first = (await reader.ended(answer.response_id)).response
        await settled()
        again = await question(replica, reader)
        assert text_of(first) == "In France." and again.service == {"cache": "miss"}


@virtual
async def test_what_is_taken_back_is_forgotten() -> None:
    async with Place() as place:
        cache = PlainCache()
        replica, reader = await at_work(place, cache, "In France.", "In France.")
        body = await question(replica, reader)
        await replica.do(cm.ResponseErase(id=place.name(), session=SESSION, response_id=body.id))
        await settled()
        assert [key.session for key in cache.forgotten] == [SESSION]
        assert (await question(replica, reader)).service == {"cache": "miss"}
        await replica.delete()
        assert len(cache.forgotten) == 2


@virtual
async def test_a_hit_whose_replica_died_is_written_and_billed_as_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "CACHED_PATIENCE_S", 0.0)  # as behind a filter that takes long
    monkeypatch.setattr(result_cache, "BREATH", 1)
    async with Place() as place:
        cache = PlainCache()
        replica, reader = await at_work(place, cache, "In France.")
        await question(replica, reader)
        answer = await replica.say("Where is Paris?", parent_id=None, temperature=0, queue=True)
        await reader.ended(answer.response_id)
        replica.faults.afterwards("append", replica.crash)
        lost = place.name()
        command = cm.MessageCreate(id=lost, session=SESSION, content="Where is Paris?", parent_id=None, temperature=0)
        with_crash = asyncio.ensure_future(replica.do(command))
        await asyncio.wait((with_crash,), timeout=60)
        with_crash.cancel()
        engine = Scripted(["In France, I say."], {})
        other = await place.replica("r2", engine=engine)
        reader = place.read(other)
        again = await other.do(command)
        ended = [each.event for each in place.records() if isinstance(each.event, TERMINAL)]
        if not any(event.response.id == again.response_id for event in ended):
            await reader.ended(again.response_id)
        body = next(
            each.event.response
            for each in place.records()
            if isinstance(each.event, TERMINAL) and each.event.response.id == again.response_id
        )
        assert body.service == {"cache": "miss"} and text_of(body) == "In France, I say."
        assert body.usage is not None and "cached_tokens" not in body.usage["output_tokens_details"]


class RefusesWords:
    """An admission that refuses one message and lets every other one in."""

    gives_extras = True

    def __init__(self, words: str) -> None:
        self._words = words

    def admit(self, key: SessionKey, input: Command, new_tokens: int, **_: Any) -> Command:
        if isinstance(input.command, cm.MessageCreate) and input.command.content == self._words:
            raise Overloaded("overloaded", "Answers would come too late at the moment.")
        return input


def counted_appends(place: Place) -> list[int]:
    """How many records each append has from now on."""
    counted, append = list[int](), place.store.journal.append

    async def counting(given: Append) -> None:
        await append(given)
        counted.append(len(given.records))

    place.store.journal.append = counting  # type: ignore[method-assign, assignment]
    return counted


@virtual
async def test_an_answer_that_is_here_is_one_append() -> None:
    async with Place() as place:
        cache, appended = PlainCache(), counted_appends(place)
        replica, reader = await at_work(place, cache, "In France.", "In Texas.")
        await question(replica, reader)
        appended.clear()
        before = place.head().top
        assert text_of(await question(replica, reader)) == "In France."
        assert appended == [place.head().top - before]
        appended.clear()
        assert text_of(await question(replica, reader, seed=7)) == "In Texas."
        assert len(appended) > 1, "what an engine writes is shown as it comes"


async def prompts_of_a_long_session(place: Place, replica: Replica, temperatures: Sequence[float]) -> list[str]:
    """Asks one question after the other behind 139 older messages. Returns the prompts of all runs."""
    reader = place.read(replica)
    for number in range(139):
        await replica.say(f"note {number}.", respond=False)
    for number, temperature in enumerate(temperatures):
        answer = await replica.say(f"Question {number}?", temperature=temperature)
        await reader.ended(answer.response_id)
        await settled()
    return list(replica.engine.prompts)  # type: ignore[attr-defined]


@virtual
async def test_a_lookup_leaves_no_trace_in_later_prompts() -> None:
    """The prompts of a long session are put together from the one before: each question stands there once."""
    async with Place() as place:
        replica, _ = await at_work(place, PlainCache(), "One.", "Two.", "Three.", "Four.")
        prompts = await prompts_of_a_long_session(place, replica, (1.0, 0.0, 1.0, 1.0))
        for number in range(4):
            assert [prompt.count(f"Question {number}?") for prompt in prompts] == [0] * number + [1] * (4 - number)


@virtual
async def test_a_refused_message_is_in_no_prompt() -> None:
    async with Place() as place:
        refuses = RefusesWords("Secret?")
        limits = RuntimeLimits(actor=ActorLimits(admission=refuses))  # type: ignore[arg-type]
        cache = PlainCache()
        replica, _ = await at_work(place, cache, "One.", "Two.", limits=limits)
        await prompts_of_a_long_session(place, replica, (1.0,))
        lookups = len(cache.lookups)
        with pytest.raises(Overloaded):
            await replica.say("Secret?", temperature=0)
        assert len(cache.lookups) == lookups, "admission comes before the lookup"
        answer = await replica.say("And now?", temperature=1.0)
        await place.read(replica).ended(answer.response_id)
        assert not any("Secret?" in prompt for prompt in replica.engine.prompts)  # type: ignore[attr-defined]
