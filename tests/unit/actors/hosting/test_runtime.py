"""One replica: answers, cancellation, passivation, limits. Real actors and runtime, memory stores, virtual time."""

from __future__ import annotations

import asyncio

import pytest

from actors.hosting.runtime import RuntimeLimits
from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.actor.actor_context import ActorLimits
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Gone, NotFound, Overloaded, SessileError, Unavailable
from sessions.model.journal_types import UsageRow
from sessions.model.types import LOCAL_PRINCIPAL, Principal, SessionId, TenantId, Usage
from tests.support.cluster.replicas import KEY, SESSION, Place, text_of, undisturbed
from tests.support.cluster.sweeps import sweeps_of
from tests.support.stores.tables import usage_in
from tests.support.virtual_time import advance, outcome, settled, virtual

ENDLESS = SimulatedOptions(answer_tokens_mean=0)
OTHER = Principal(tenant=LOCAL_PRINCIPAL.tenant, key_id="k2", user="somebody")


def usage_rows(place: Place) -> list[UsageRow]:
    return usage_in(place.store)


@virtual
async def test_no_delta_follows_the_answer_to_a_cancel_and_the_slot_is_free() -> None:
    async with Place(ENDLESS) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say()
        await reader.delta(answer.response_id, 3)
        assert replica.engine.stats().running == 1
        cancelled = await replica.cancel(answer.response_id)
        shown = len(reader.records)
        assert cancelled.offset == reader.records[-1].offset
        await settled()
        assert replica.engine.stats().running == 0
        await advance(60.0)
        assert len(reader.records) == shown
        (ended,) = place.terminals(answer.response_id)
        assert ended.response.incomplete_details == {"reason": "cancelled"}
        assert ended.response.output[0].text == reader.text(answer.response_id) != ""  # type: ignore[union-attr]
        assert (await replica.cancel(answer.response_id)).noop


@virtual
@pytest.mark.parametrize("end", ["cancel", "stop"])
async def test_an_answer_that_ends_early_still_says_what_was_reused(end: str) -> None:
    async with Place(SimulatedOptions(answer_tokens_mean=40)) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        await reader.ended((await replica.say("where is the river")).response_id)
        answer = await replica.say("and the sea", stop=" " if end == "stop" else None)
        if end == "cancel":
            await reader.delta(answer.response_id, 1)
            await replica.cancel(answer.response_id)
        ended = await reader.ended(answer.response_id)
        assert ended.response.usage is not None
        assert ended.response.usage["input_tokens_details"]["cached_tokens"] > 20


@virtual
async def test_a_cancel_overtakes_commands_that_wait() -> None:
    """The control lane: a full mailbox does not keep an answer running."""
    async with Place(ENDLESS) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say()
        await reader.delta(answer.response_id)
        updates = [asyncio.create_task(replica.do(update(place, str(n)))) for n in range(20)]
        await asyncio.sleep(0)
        await replica.cancel(answer.response_id)
        await asyncio.gather(*updates)
        (ended,) = [r.offset for r in place.records() if isinstance(r.event, ev.ResponseIncomplete)]
        changes = [r.offset for r in place.records() if isinstance(r.event, ev.SessionUpdated)]
        assert len([offset for offset in changes if offset > ended]) >= 18


def update(place: Place, title: str) -> cm.SessionUpdate:
    return cm.SessionUpdate(id=place.name(), session=SESSION, title=title)


@virtual
async def test_a_deleted_session_answers_repeats_and_nothing_else() -> None:
    """The same id with the same body gets the same answer, though what it was about is gone."""
    async with Place() as place:
        replica = await place.replica()
        await replica.create()
        message = cm.MessageCreate(id=place.name(), session=SESSION, content="hello", respond=False)
        said = await replica.do(message)
        delete = cm.SessionDelete(id=place.name(), session=SESSION)
        deleted = await replica.do(delete)
        assert await replica.do(delete) == deleted
        assert await replica.do(message) == said
        for command, code in (
            (cm.MessageCreate(id=place.name(), session=SESSION, content="hello?"), "session_deleted"),
            (cm.MessageCreate(id=message.id, session=SESSION, content="else"), "idempotency_conflict"),
            (cm.SessionDelete(id=place.name(), session=SESSION), "session_deleted"),
        ):
            refused = await outcome(replica.do(command))
            assert isinstance(refused, SessileError) and refused.code == code
        assert isinstance(place.records()[-1].event, ev.SessionDeleted)
        assert isinstance(await outcome(replica.do(message, OTHER)), NotFound), "nor does it exist for others"


@virtual
async def test_a_command_that_the_memory_has_forgotten_is_found_in_the_journal() -> None:
    async with Place() as place:
        replica = await place.replica()
        await replica.create()
        first = update(place, "first")
        answer = await replica.do(first)
        for number in range(1_030):
            await replica.do(update(place, str(number)))
        assert await replica.do(first) == answer
        await replica.runtime.passivate(KEY)
        assert await replica.do(first) == answer
        assert place.state().info.title == "1029"  # type: ignore[union-attr]


@virtual
async def test_deleting_in_mid_answer_ends_everything() -> None:
    async with Place(ENDLESS) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say()
        waiting = await replica.say("later", queue=True)
        await reader.delta(answer.response_id, 3)
        deleted = await replica.delete()
        await advance(10.0)
        assert deleted.offset == place.head().top == reader.records[-1].offset
        assert [e.response.incomplete_details for e in place.terminals(answer.response_id)] == [
            {"reason": "session_deleted"}
        ]
        assert len(place.terminals(waiting.response_id)) == 1
        head = place.head()
        assert head.deleted_at is not None and not head.open
        assert replica.runtime.actor(KEY) is None
        assert replica.engine.stats().running == 0 and replica.engine.place(KEY).tokens == 0
        assert isinstance(await outcome(replica.say()), Gone)


@virtual
async def test_an_engine_that_fails_to_warm_does_not_bring_the_replica_down() -> None:
    class Cold(SimulatedEngine):
        async def warm(self, key: object, prompt: object, *, background: bool = False) -> bool:
            raise RuntimeError("a bug of the engine's")

    async with Place() as place:
        replica = await place.replica(engine=Cold(place.options))
        await replica.create()
        await replica.do(cm.SessionWarm(id=place.name(), session=SESSION))
        await settled()
        assert (await replica.say()).response_id is not None


@virtual
async def test_one_warming_at_a_time() -> None:
    """A client that types fast does not pile work up in the engine."""

    class Slow(SimulatedEngine):
        warming = 0
        most = 0

        async def warm(self, key: object, prompt: object, *, background: bool = False) -> bool:
            self.warming += 1
            self.most = max(self.most, self.warming)
            try:
                await advance(1.0)
            finally:
                self.warming -= 1
            return True

    async with Place() as place:
        engine = Slow(place.options)
        replica = await place.replica(engine=engine)
        await replica.create()
        for _ in range(10):
            await replica.do(cm.SessionWarm(id=place.name(), session=SESSION))
        await advance(5.0)
        assert engine.most == 1
        assert place.head().top == 1, "and nothing is journaled"


@virtual
async def test_a_full_mailbox_sheds_and_every_command_gets_one_answer() -> None:
    async with Place() as place:
        replica = await place.replica(limits=RuntimeLimits(actor=ActorLimits(mailbox_commands=4)))
        await replica.create()
        replica.faults.slow("append", 0.1)
        answers = await asyncio.gather(*(outcome(replica.do(update(place, str(n)))) for n in range(10)))
        shed = [each for each in answers if isinstance(each, SessileError)]
        assert {each.code for each in shed} == {"mailbox_full"} and all(each.retryable for each in shed)
        done = [each for each in answers if isinstance(each, cm.Ok)]
        assert len(done) + len(shed) == 10 and 4 <= len(done) <= 5
        assert len(place.records()) == 1 + len(done)


@virtual
async def test_more_sessions_than_fit_in_memory_take_turns() -> None:
    async with Place() as place:
        replica = await place.replica(limits=RuntimeLimits(actors_max=3))
        names = [SessionId(f"t{n}") for n in range(8)]
        for name in names:
            await replica.do(cm.SessionCreate(id=place.name(), session=name))
            await settled()
        assert len(replica.runtime.actors) == 3
        replica.faults.slow("append", 0.01)
        creates = [cm.SessionCreate(id=place.name(), session=SessionId(f"u{n}")) for n in range(6)]
        answers = await asyncio.gather(*(outcome(replica.do(create)) for create in creates))
        assert all(isinstance(each, cm.Ok) or (isinstance(each, Overloaded) and each.retryable) for each in answers)
        assert any(isinstance(each, cm.Ok) for each in answers)
        assert len(replica.runtime.actors) <= 3
        for name in names:
            await settled()
            message = cm.MessageCreate(id=place.name(), session=name, content="hello", respond=False)
            assert (await replica.do(message)).item_id is not None
            assert len(replica.runtime.actors) <= 3


@virtual
async def test_when_every_session_in_memory_is_busy_new_ones_are_shed() -> None:
    async with Place(ENDLESS) as place:
        replica = await place.replica(limits=RuntimeLimits(actors_max=1))
        await replica.create()
        answer = await replica.say()
        refused = await outcome(replica.do(cm.SessionCreate(id=place.name(), session=SessionId("s2"))))
        assert isinstance(refused, Overloaded) and refused.code == "overloaded"
        await replica.cancel(answer.response_id)
        await settled()
        assert (await replica.do(cm.SessionCreate(id=place.name(), session=SessionId("s2")))).session == "s2"


@virtual
async def test_commands_are_served_while_the_journal_is_slower_than_the_engine() -> None:
    """An answer that always has something to say does not starve the commands of its session."""
    async with Place(ENDLESS) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        replica.faults.slow("append", 0.08)
        answer = await replica.say(max_output_tokens=2_000)
        await reader.delta(answer.response_id, 3)
        before = asyncio.get_running_loop().time()
        await replica.do(update(place, "now"))
        assert asyncio.get_running_loop().time() - before < 0.5
        assert place.terminals(answer.response_id) == []
        await replica.cancel(answer.response_id)


@virtual
async def test_a_session_that_was_refused_whole_does_not_stay_in_memory() -> None:
    """The instructions and tools of each refused request used to stand there for ten minutes."""
    async with Place() as place:
        replica = await place.replica(limits=RuntimeLimits(actor=ActorLimits(content_bytes=10)))
        items = (cm.NewMessage(content="é" * 6),)
        turn = cm.TurnCreate(id=place.name(), session=SESSION, create=cm.SessionSettings(), items=items)
        assert isinstance(await outcome(replica.do(turn)), BadInput)
        await asyncio.sleep(1)
        assert not replica.runtime.actors
        await replica.create()
        assert isinstance(await outcome(replica.say("é" * 6)), BadInput)
        assert await sweeps_of(replica).passivate_idle() == 0, "something stands in it"


@virtual
async def test_a_command_that_meets_a_leaving_actor_waits_and_is_answered() -> None:
    async with Place() as place:
        replica = await place.replica()
        await replica.create()
        replica.faults.slow("append", 0.5)
        leaving = asyncio.create_task(replica.runtime.passivate(KEY))
        await settled()
        answer = await replica.say(respond=False)
        assert answer.item_id is not None
        await leaving


@virtual
async def test_nothing_is_activated_behind_the_back_of_a_close() -> None:
    """An activation that had looked into the journal when the close began does not come to life after it."""
    async with Place() as place:
        replica = await place.replica()
        await replica.create()
        await replica.runtime.passivate(KEY)
        replica.faults.slow("head", 0.2)
        waking = asyncio.create_task(outcome(replica.say()))
        await advance(0.1)
        await replica.close()
        refused = await waking
        late = await outcome(replica.say())
        assert isinstance(refused, Unavailable) and isinstance(late, Unavailable) and late.retryable, refused
        assert replica.runtime.actors == []


@virtual
async def test_what_one_may_not_see_does_not_exist() -> None:
    async with Place() as place:
        replica = await place.replica()
        owner = Principal(tenant=LOCAL_PRINCIPAL.tenant, key_id="k1", user="owner")
        await replica.do(cm.SessionCreate(id=place.name(), session=SESSION), owner)
        for stage in ("warm", "cold"):
            for who in (OTHER, Principal(tenant=TenantId("another"), key_id="k", role="service")):
                refused = await outcome(replica.do(update(place, "mine"), who))
                assert isinstance(refused, NotFound) and refused.code == "session_not_found", stage
            await replica.runtime.passivate(KEY)
        service = Principal(tenant=LOCAL_PRINCIPAL.tenant, key_id="k3", role="service")
        assert (await replica.do(update(place, "ours"), service)).offset == 2


@pytest.mark.parametrize("policy", ["continue", "pause", "cancel"])
@virtual
async def test_when_nobody_reads(policy: str) -> None:
    limits = RuntimeLimits(orphan_policy=policy, orphan_after_s=1.0)  # type: ignore[arg-type]
    async with Place(ENDLESS) as place:
        replica = await place.replica(limits=limits)
        seen: list[ev.Record] = []
        unwatch = replica.runtime.watch(KEY, lambda published: seen.extend(published.records))
        await replica.create()
        answer = await replica.say(max_output_tokens=400)
        await advance(1.0)
        unwatch()
        await advance(0.9)
        assert replica.engine.stats().running == 1, "not before its time"
        await advance(0.2)
        written = place.head().top
        await advance(1.0)
        if policy == "continue":
            assert place.head().top > written
            await advance(60.0)
            assert len(place.terminals(answer.response_id)) == 1
            return
        assert place.head().top == written and replica.engine.stats().running == 0
        if policy == "cancel":
            (ended,) = place.terminals(answer.response_id)
            assert ended.response.incomplete_details == {"reason": "orphaned"}
            return
        assert place.terminals(answer.response_id) == [] and place.head().open
        reader = place.read(replica)
        await reader.ended(answer.response_id)
        assert text_of(place.records(), answer.response_id) == await undisturbed(ENDLESS, max_output_tokens=400)


@virtual
async def test_readers_that_come_back_at_the_same_moment_lose_nothing() -> None:
    """Stop and start of one response in one step: the engine that runs afterwards is the new one."""
    async with Place(ENDLESS) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say(max_output_tokens=400)
        await reader.delta(answer.response_id, 5)
        actor = replica.runtime.actor(KEY)
        assert actor is not None
        actor.readers_left(cancel=False)
        actor.readers_back()
        await settled()
        stats = replica.engine.stats()
        assert stats.running + stats.waiting == 1
        await reader.ended(answer.response_id)
        assert reader.text(answer.response_id) == await undisturbed(ENDLESS, max_output_tokens=400)


@virtual
async def test_what_leaves_the_queue_is_billed_nothing_that_was_not_computed() -> None:
    async with Place(SimulatedOptions(slots=1, answer_tokens_mean=0)) as place:
        replica = await place.replica()
        await replica.create()
        first = await replica.say(max_output_tokens=4000)
        await advance(1.0)
        other = SessionId("s2")
        await replica.do(cm.SessionCreate(id=place.name(), session=other))
        waits = await replica.do(
            cm.MessageCreate(id=place.name(), session=other, content="word " * 200, max_output_tokens=10)
        )
        await advance(1.0)
        assert waits.response_id is not None and replica.engine.stats().waiting == 1
        await replica.do(cm.ResponseCancel(id=place.name(), session=other, response_id=waits.response_id))
        await replica.cancel(first.response_id)
        rows = {row.response_id: row.usage for row in usage_rows(place)}
        assert rows[waits.response_id] == Usage(0, 0)
        begun = rows[first.response_id]  # type: ignore[index]
        assert begun.input_tokens > 0 and begun.output_tokens > 0
