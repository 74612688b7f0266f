"""One session while its journal fails, its replica dies or another one takes it: what is promised in DESIGN.md §7.

The simulated engine's text is a function of the tokens before it, so an answer that was continued rightly is the answer
of the run that nothing happened to.
"""

from __future__ import annotations

import asyncio

import pytest

from actors.hosting.runtime import Moved, RuntimeLimits
from inference.simulated import SimulatedEngine, SimulatedOptions, decode
from persistence.memory.database import run_now
from sessions.actor.actor import Phase
from sessions.actor.actor_context import ActorLimits
from sessions.machine.state import replay
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import Gone, Internal, NotFound, SessileError, Unavailable
from sessions.model.journal_types import Loaded
from sessions.model.types import LOCAL_PRINCIPAL, Principal, SessionId, SessionKey, TenantId, UnixMs, unpack_tokens
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.cluster.replicas import (
    KEY,
    SESSION,
    TERMINAL,
    Fault,
    Place,
    Replica,
    killed_at_append,
    text_of,
    undisturbed,
)
from tests.support.cluster.sweeps import sweeps_of
from tests.support.stores.tables import lose_record, usage_in
from tests.support.virtual_time import advance, outcome, settled, until, virtual

QUESTION = "where is the river"
OPTIONS = SimulatedOptions(answer_tokens_mean=60)
IMPATIENT = RuntimeLimits(actor=ActorLimits(journal_patience_s=1.0))


def filters(phrase: str) -> KeywordFilterSet:
    return KeywordFilterSet(output_phrases=[phrase] if phrase else ())


def message(place: Place, content: str = QUESTION, **more: object) -> cm.MessageCreate:
    return cm.MessageCreate(id=place.name(), session=SESSION, content=content, **more)  # type: ignore[arg-type]


async def insist(replica: Replica, command: cm.ActorCommand, principal: Principal = LOCAL_PRINCIPAL) -> cm.Ok:
    """What a client does: the same command again for as long as it is told to."""
    for _ in range(200):
        answer = await outcome(replica.do(command, principal))
        if isinstance(answer, cm.Ok):
            return answer
        assert isinstance(answer, SessileError) and answer.retryable, answer
        await advance((answer.retry_after_ms or 100) / 1000)
    raise AssertionError("never answered")


def check_log(place: Place, response_id: str | None) -> None:
    """What must be true of every log, however it came about."""
    records = place.records()
    assert [record.offset for record in records] == list(range(1, len(records) + 1))
    events = [r.event for r in records if isinstance(r.event, ev.ResponseEvent) and r.event.response_id == response_id]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [isinstance(event, TERMINAL) for event in events] == [False] * (len(events) - 1) + [True]
    answer = place.state().answers[response_id]  # type: ignore[index]
    text = text_of(records, response_id)  # type: ignore[arg-type]
    assert decode(unpack_tokens(answer.tokens)) + answer.tail == text, "the model remembers what was released"


@pytest.mark.parametrize("fault", ["refused", "lost", "applied"])
@pytest.mark.parametrize("number", [0, 1, 2, 5, 9])
@virtual
async def test_an_append_that_fails_changes_nothing_for_anybody(fault: Fault, number: int) -> None:
    """Whichever append it is and whether or not it stood: one effect, one answer, the same text."""
    async with Place(OPTIONS) as place:
        replica = await place.replica()
        reader = place.read(replica)
        asked = message(place)
        replica.faults.next("append", *[done] * number, fault)
        create = cm.SessionCreate(id=place.name(), session=SESSION)
        await insist(replica, create)
        answer = await insist(replica, asked)
        ended = await reader.ended(answer.response_id)
        assert isinstance(ended, ev.ResponseCompleted)
        assert reader.records == place.records(), "each record was shown once"
        assert reader.text(answer.response_id) == await undisturbed(OPTIONS, QUESTION)
        assert await replica.do(asked) == answer
        assert len(usage_in(place.store)) == 1
        check_log(place, answer.response_id)


async def done() -> None:
    return


@virtual
async def test_a_command_without_records_whose_answer_was_lost_is_written_once() -> None:
    async with Place(OPTIONS) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say(QUESTION)
        await reader.ended(answer.response_id)
        replica.faults.next("append", "applied")
        assert answer.response_id is not None
        cancel = cm.ResponseCancel(id=place.name(), session=SESSION, response_id=answer.response_id)
        first = await insist(replica, cancel)
        assert first.noop and await replica.do(cancel) == first
        top = place.head().top
        await replica.say("again", respond=False)
        assert place.head().top == top + 1


@virtual
async def test_while_the_journal_is_away_nothing_is_shown_and_commands_are_told() -> None:
    async with Place(OPTIONS) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say(QUESTION)
        await reader.delta(answer.response_id, 3)
        replica.faults.away("append", "head")
        shown = len(reader.records)
        updates = [cm.SessionUpdate(id=place.name(), session=SESSION, title="x") for _ in range(4)]
        waiting = [asyncio.create_task(outcome(replica.do(update))) for update in updates[1:]]
        await advance(5.0)
        late = await outcome(replica.do(updates[0]))
        for told in (*[await task for task in waiting], late):
            assert isinstance(told, Unavailable) and told.code == "journal_unavailable" and told.retryable
        assert len(reader.records) == shown == len(place.records())
        replica.faults.back()
        await reader.ended(answer.response_id)
        assert reader.text(answer.response_id) == await undisturbed(OPTIONS, QUESTION)
        assert reader.records == place.records()


@virtual
async def test_when_patience_with_the_journal_ends_the_next_activation_goes_on() -> None:
    async with Place(OPTIONS) as place:
        replica = await place.replica(limits=IMPATIENT)
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say(QUESTION)
        await reader.delta(answer.response_id, 3)
        replica.faults.away("append", "head")
        await until(lambda: replica.runtime.actor(KEY) is None)
        assert replica.engine.stats().running == 0, "and its engine stopped"
        shown = len(reader.records)
        replica.faults.back()
        await replica.runtime.recover(KEY)
        await reader.ended(answer.response_id)
        assert [record.offset for record in reader.records[shown - 1 : shown + 1]] == [shown, shown + 1]
        assert reader.text(answer.response_id) == await undisturbed(OPTIONS, QUESTION)
        check_log(place, answer.response_id)


@pytest.mark.parametrize("afterwards", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(8))
@virtual
async def test_a_replica_that_dies_at_any_append(number: int, afterwards: bool) -> None:
    """Before the write or right after it, when nobody has heard of it: the client repeats what was not answered, the
    next replica continues the same response, and the reader has the text of the unfailed run."""
    async with Place(OPTIONS) as place:
        first = await place.replica("r1")
        old = place.read(first)
        create, asked = cm.SessionCreate(id=place.name(), session=SESSION), message(place)
        before = await killed_at_append(first, number, create, asked, behind=afterwards)
        heir = await place.replica("r2")
        new = place.read(heir)
        after = [await insist(heir, create), await insist(heir, asked)]
        for early, late in zip(before, after, strict=False):
            assert (early.item_id, early.response_id, early.offset) == (late.item_id, late.response_id, late.offset)
        response_id = after[1].response_id
        if place.terminals(response_id) == []:
            await new.ended(response_id)
        check_log(place, response_id)
        assert text_of(place.records(), response_id) == await undisturbed(OPTIONS, QUESTION)
        assert old.records == place.records()[: len(old.records)], "delivered tokens never change"
        (row,) = usage_in(place.store)
        assert (row.principal.key_id, row.principal.role) == (LOCAL_PRINCIPAL.key_id, LOCAL_PRINCIPAL.role)
        whole = len(list(await heir.engine.tokenizer.text(await undisturbed(OPTIONS, QUESTION))))
        assert row.usage.output_tokens <= whole + 8, "what was made twice is not billed twice"


@pytest.mark.parametrize("number", range(1, 14, 2))
@virtual
async def test_what_a_filter_withholds_stays_withheld_over_a_death(number: int) -> None:
    """The phrase begins before the crash and would end behind it: what is held back is in nobody's memory."""
    whole = await undisturbed(OPTIONS, QUESTION)
    phrase = whole[len(whole) // 2 :][:14]
    async with Place(OPTIONS) as place:
        first = await place.replica("r1", filters=filters(phrase))
        create, asked = cm.SessionCreate(id=place.name(), session=SESSION), message(place)
        await killed_at_append(
            first, number, create, asked, ended=lambda: any(isinstance(r.event, TERMINAL) for r in place.records())
        )
        heir = await place.replica("r2", filters=filters(phrase))
        new = place.read(heir)
        await insist(heir, create)
        answer = await insist(heir, asked)
        if place.terminals(answer.response_id) == []:
            await new.ended(answer.response_id)
        check_log(place, answer.response_id)
        assert text_of(place.records(), answer.response_id) == whole[: whole.lower().index(phrase.lower())]


@pytest.mark.parametrize("number", range(2, 30, 3))
@virtual
async def test_a_continuation_remembers_the_tail_that_it_went_on_from(number: int) -> None:
    """Stop strings that never come, but begin inside many words: at most moments the release ends inside a token."""
    whole = await undisturbed(OPTIONS, QUESTION)
    stops = tuple(whole[at : at + 3] + "#" for at in range(2, 90, 6))
    async with Place(OPTIONS) as place:
        first = await place.replica("r1")
        create, asked = cm.SessionCreate(id=place.name(), session=SESSION), message(place, stop=stops)
        await killed_at_append(first, number, create, asked)
        heir = await place.replica("r2")
        new = place.read(heir)
        answer = await insist(heir, asked)
        await new.ended(answer.response_id)
        check_log(place, answer.response_id)


async def replaced(place: Place) -> tuple[Replica, Replica, cm.Ok]:
    """An owner that nobody told of its end, its successor, and what was asked of that one."""
    old = await place.replica("r1")
    await old.create()
    new = await place.replica("r2")
    await new.runtime.recover(KEY, instead_of=old.runtime.ownership.owner(KEY))
    reader = place.read(new)
    asked = await new.say(QUESTION)
    await reader.ended(asked.response_id)
    return old, new, asked


@virtual
async def test_an_owner_that_was_replaced_refuses_nothing_by_what_it_remembers() -> None:
    """Refusals are written nowhere, so no fence speaks for them: an old owner that nobody told must ask."""
    async with Place(OPTIONS) as place:
        old, _, asked = await replaced(place)
        assert old.runtime.ownership.is_confirmed(KEY), "nothing has told it"
        edit = cm.MessageEdit(id=place.name(), session=SESSION, item_id=asked.item_id, content="and the sea")  # type: ignore[arg-type]
        assert isinstance(await outcome(old.do(edit)), Moved)
        assert old.runtime.actor(KEY) is None


@virtual
async def test_a_session_comes_back_to_an_old_owner_that_never_heard_of_its_loss() -> None:
    async with Place(OPTIONS) as place:
        old, new, _ = await replaced(place)
        lost = old.runtime.ownership.owner(KEY)
        source = new.runtime.actor(KEY)
        holder = new.runtime.ownership.owner(KEY)
        assert source is not None and holder is not None
        await source.seal()
        owner = await old.runtime.adopt(KEY, holder)
        taken = old.runtime.actor(KEY)
        assert owner != lost and taken is not None
        assert (taken.fence, taken.top) == (source.fence + 1, source.top)


def loaded_now(place: Place) -> Loaded:
    loaded = run_now(place.store.journal.load(KEY, now_ms=UnixMs(0)))
    assert loaded is not None
    return loaded


@virtual
async def test_who_takes_over_after_a_hand_off_in_mid_answer_has_little_to_read() -> None:
    async with Place(OPTIONS) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say(QUESTION)
        await reader.delta(answer.response_id, 8)
        actor = replica.runtime.actor(KEY)
        assert actor is not None and loaded_now(place).snapshot is None
        actor.leaves_soon()
        await reader.delta(answer.response_id, 10)
        loaded = loaded_now(place)
        assert loaded.snapshot is not None and len(loaded.records) <= 2
        assert replay(loaded) == place.state()
        await reader.ended(answer.response_id)
        assert loaded_now(place).snapshot == loaded.snapshot, "one is enough"


@pytest.mark.parametrize("call", ["claim", "grant", "load"])
@pytest.mark.parametrize("cold", [False, True], ids=["open", "parked"])
@virtual
async def test_a_replica_that_dies_while_it_activates(call: str, cold: bool) -> None:
    async with Place(OPTIONS) as place:
        first = await place.replica("r1")
        reader = place.read(first)
        await first.create()
        answer = await first.say(QUESTION)
        if cold:
            await reader.ended(answer.response_id)
        else:
            await reader.delta(answer.response_id, 3)
        await first.close()
        second = await place.replica("r2")

        async def die() -> None:
            second.crash()

        second.faults.next(call, die)
        waking = asyncio.create_task(outcome(second.say("and then", queue=True)))
        await until(lambda: second.crashed)
        await advance(7.0)
        waking.cancel()
        third = await place.replica("r3")
        later = place.read(third)
        follow_up = await insist(third, message(place, "and the sea", queue=True))
        await later.ended(follow_up.response_id)
        check_log(place, answer.response_id)
        assert text_of(place.records(), answer.response_id) == await undisturbed(OPTIONS, QUESTION)


@virtual
async def test_an_owner_that_was_replaced_finds_out_by_itself() -> None:
    """Nobody tells it and nobody asks it for anything: a session that waits for a tool would stay for minutes."""
    async with Place(OPTIONS) as place:
        old, new, _ = await replaced(place)
        sweeping = asyncio.create_task(sweeps_of(old, reclaim_every_s=20.0).run())
        await advance(19.0)
        assert old.runtime.actor(KEY) is not None
        await advance(7.0)
        assert old.runtime.actor(KEY) is None and new.runtime.actor(KEY) is not None
        sweeping.cancel()


@virtual
async def test_one_session_that_cannot_be_loaded_does_not_keep_others_from_recovery() -> None:
    async with Place(OPTIONS) as place:
        first = await place.replica("r1")
        names = [SessionId("a"), SessionId("b"), SessionId("c")]
        for name in names:
            await first.do(cm.SessionCreate(id=place.name(), session=name))
            await first.do(cm.MessageCreate(id=place.name(), session=name, content=QUESTION))
        first.crash()
        await advance(7.0)
        lose_record(place.store, SessionKey(TenantId("local"), names[0]), 3)
        heir = await place.replica("r2")
        sweeps, unreadable = sweeps_of(heir), SessionKey(TenantId("local"), names[0])
        await sweeps.recover()
        keys = [SessionKey(TenantId("local"), name) for name in names[1:]]
        await until(lambda: not any(place.head(key).open for key in keys))
        assert place.head(unreadable).open
        fence = place.head(unreadable).fence
        for wait_s, grants in ((7.0, 0), (600.0, 1)):  # each attempt is a write: it is tried again much later
            await advance(wait_s)
            await sweeps.recover()
            assert place.head(unreadable).fence == fence + grants


@virtual
@pytest.mark.parametrize("code", ["body_unreadable", "journal_hole"])
async def test_a_session_that_cannot_be_loaded_is_deleted_by_its_head(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Place(OPTIONS) as place:
        replica = await place.replica()
        await replica.create()
        reader = place.read(replica)
        await reader.ended((await replica.say(QUESTION)).response_id)
        await replica.runtime.passivate(KEY)
        top = place.head().top

        async def load(key: SessionKey, **_: object) -> Loaded:
            raise Internal(code, "A stored record cannot be read.")

        monkeypatch.setattr(replica.journal, "load", load)
        assert isinstance(await outcome(replica.say("more")), Internal)
        delete = cm.SessionDelete(id=place.name(), session=SESSION)
        stranger = Principal(tenant=TenantId("local"), key_id="app", user="ben")
        assert isinstance(await outcome(replica.do(delete, stranger)), NotFound)
        ok = await replica.do(delete)
        assert ok.offset == top + 1 == reader.records[-1].offset
        assert isinstance(place.records()[-1].event, ev.SessionDeleted) and place.head().deleted_at is not None
        assert await replica.do(delete) == ok
        assert isinstance(await outcome(replica.say("more")), Gone)
        assert await replica.directory.locate(KEY) is None and replica.engine.place(KEY).tokens == 0


@virtual
async def test_the_idle_leave_memory_and_the_woken_stay() -> None:
    async with Place(OPTIONS) as place:
        replica = await place.replica(limits=RuntimeLimits(idle_s=10.0))
        other = SessionKey(TenantId("local"), SessionId("zz"))
        for name in (SESSION, other.session):
            await replica.do(cm.SessionCreate(id=place.name(), session=name))
        sweeps = sweeps_of(replica, passivations_at_once=1)
        assert await sweeps.passivate_idle() == 0
        await advance(11.0)
        replica.faults.slow("append", 0.2)  # the first snapshot takes a while, and meanwhile the second is asked
        sweeping = asyncio.create_task(sweeps.passivate_idle())
        await settled()
        leaving = [
            key for key in (KEY, other) if (actor := replica.runtime.actor(key)) and actor.phase is Phase.PARKING
        ]
        (stays,) = [key for key in (KEY, other) if key not in leaving]
        reader = place.read(replica, stays)
        answer = await replica.do(cm.MessageCreate(id=place.name(), session=stays.session, content=QUESTION))
        assert await sweeping == 1
        await reader.ended(answer.response_id)
        assert not [r for r in place.records(stays) if isinstance(r.event, ev.SessionMigrated)]


@virtual
async def test_idle_sessions_leave_memory_together_and_one_that_cannot_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They left one after the other, and fewer left in a second than others came."""
    async with Place(OPTIONS) as place:
        replica = await place.replica(limits=RuntimeLimits(idle_s=10.0))
        for name in ("a", "b", "c"):
            await replica.do(cm.SessionCreate(id=place.name(), session=SessionId(name)))
        await advance(11.0)
        passivate, leaving, gate = replica.runtime.passivate, list[str](), asyncio.Event()

        async def held(key: SessionKey) -> None:
            leaving.append(key.session)
            await gate.wait()
            if key.session == "a":
                raise Unavailable("journal_unavailable", "It is away.")
            await passivate(key)

        monkeypatch.setattr(replica.runtime, "passivate", held)
        sweeping = asyncio.create_task(sweeps_of(replica, passivations_at_once=2).passivate_idle())
        await settled()
        assert leaving == ["a", "b"]
        gate.set()
        assert await sweeping == 2 and [actor.key.session for actor in replica.runtime.actors] == ["a"]
        monkeypatch.undo()  # it leaves with the replica


@virtual
async def test_an_actor_leaves_though_its_engine_does_not_let_go() -> None:
    class Clinging(SimulatedEngine):
        async def generate(self, request):  # type: ignore[no-untyped-def]
            try:
                async for part in super().generate(request):
                    yield part
            finally:
                await asyncio.shield(asyncio.get_running_loop().create_future())

    async with Place(OPTIONS) as place:
        replica = await place.replica(engine=Clinging(OPTIONS))
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say(QUESTION)
        await reader.delta(answer.response_id, 3)
        leaving = asyncio.create_task(replica.runtime.passivate(KEY))
        await advance(60.0)
        assert leaving.done() and replica.runtime.actor(KEY) is None
        replica.crash()  # a clean close would wait for the engine
