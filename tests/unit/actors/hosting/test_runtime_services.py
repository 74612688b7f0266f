"""A runtime with its engine, its filters, its store and its readers: what fails, what is purged, what is paused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from actors.hosting.runtime import RuntimeLimits
from inference.simulated import SimulatedEngine, SimulatedOptions, decode
from persistence.keys import MemoryKeyStore
from persistence.memory.database import run_now
from sessions.actor.actor import Actor
from sessions.governance.retention import Retention, RetentionPeriods
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, NotFound, SessileError, Unavailable
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import SCOPES, Principal, ResponseId, SessionId, SessionKey, TenantId, UnixMs, unpack_tokens
from sessions.ports import FilterSet
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.cluster.replicas import KEY, SESSION, Fault, Place, Reader, Replica, text_of, undisturbed
from tests.support.cluster.sweeps import sweeps_of
from tests.support.machine.generation_fixture import GivenFilters
from tests.support.output_text import Redactor
from tests.support.stores.tables import head_of
from tests.support.virtual_time import advance, outcome, settled, until, virtual


@virtual
async def test_a_bug_in_the_engine_is_the_responses_failure() -> None:
    class Broken(SimulatedEngine):
        def draw(self, stream: object) -> int | None:
            raise ZeroDivisionError

        async def generate(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
            raise ZeroDivisionError
            yield

    async with Place() as place:
        replica = await place.replica(engine=Broken(place.options))
        reader = place.read(replica)
        await replica.create()
        with capture_logs() as logs:
            answer = await replica.say()
            ended = await reader.ended(answer.response_id)
        assert ended.response.error is not None and ended.response.error["code"] == "engine_failed"
        assert [each["event"] for each in logs if each["log_level"] == "error"] == ["engine_failed"], (
            "and is told to us"
        )


@virtual
async def test_a_bug_in_the_tokenizer_refuses_the_message_and_spares_the_session() -> None:
    """Every accepted command gets an answer, and what runs beside it goes on."""

    class Picky(SimulatedEngine):
        pass

    async with Place(SimulatedOptions(answer_tokens_mean=60)) as place:
        engine = Picky(place.options)
        replica = await place.replica(engine=engine)
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say("one")
        await reader.delta(answer.response_id)

        async def broken(message: object) -> tuple[int, ...]:
            raise ZeroDivisionError

        engine.tokenizer.message = broken  # type: ignore[method-assign]
        refused = await outcome(replica.say("two", queue=True))
        assert isinstance(refused, SessileError) and refused.status == 500
        assert isinstance(await reader.ended(answer.response_id), ev.ResponseCompleted)


@virtual
async def test_what_a_store_cannot_hold_is_refused_with_its_own_error() -> None:
    async with Place() as place:
        replica = await place.replica()
        refused = await outcome(replica.create(model="a\0b"))
        assert isinstance(refused, BadInput) and refused.code == "invalid_text"
        assert (await replica.create()).offset == 1


@virtual
async def test_a_strangers_message_is_not_judged_beside_what_stands_there() -> None:
    async with Place() as place:
        replica = await place.replica(filters=KeywordFilterSet(input_phrases=["red rose"]))
        ana, bob = (Principal(tenant=KEY.tenant, key_id="key", user=user) for user in ("ana", "bob"))
        await replica.do(cm.SessionCreate(id=place.name(), session=SESSION), ana)
        for principal, error in ((ana, BadInput), (bob, NotFound)):
            message = cm.MessageCreate(id=place.name(), session=SESSION, content="a red rose")
            assert isinstance(await outcome(replica.do(message, principal)), error)
        assert place.head().top == 1


def redacting(phrase: str, replacement: str) -> Any:
    """A policy that replaces a phrase in every answer."""
    return GivenFilters(lambda: Redactor(phrase, replacement))


class Watched(SimulatedEngine):
    """Notes how much room each run leaves in the window."""

    def __init__(self, options: SimulatedOptions) -> None:
        super().__init__(options)
        self.rooms: list[int] = []

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        self.rooms.append(self.info.context_window - len(request.prompt) - request.max_tokens)
        async for part in super().generate(request):
            yield part


SMALL = SimulatedOptions(answer_tokens_mean=0, context_window=160)


async def answer_under(filters: FilterSet, engine: SimulatedEngine) -> ev.Terminal:
    """The end of an answer under a policy; its ledger stands for its text."""
    async with Place(SMALL) as place:
        replica = await place.replica(filters=filters, engine=engine)
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say("where is the river")
        ended = await reader.ended(answer.response_id)
        ledger = place.state().answers[answer.response_id]  # type: ignore[index]
        assert decode(unpack_tokens(ledger.tokens)) + ledger.tail == reader.text(answer.response_id)
        return ended


def text_in(ended: ev.Terminal) -> str:
    return ended.response.output[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize("replacement", ["[x]", "…and a great deal more than there was before it…"])
@virtual
async def test_a_redacted_answer_goes_on_from_its_replacement(replacement: str) -> None:
    untouched = text_in(await answer_under(KeywordFilterSet(), SimulatedEngine(SMALL)))
    phrase, engine = untouched[40:45], Watched(SMALL)
    text = text_in(await answer_under(redacting(phrase, replacement), engine))
    at = untouched.index(phrase)
    assert text.startswith(untouched[:at] + replacement)
    assert phrase not in text and len(text) > at + len(replacement)
    assert len(engine.rooms) > 1 and min(engine.rooms) >= 0, "no run is asked for more than the window has room for"


@virtual
async def test_a_model_that_insists_on_what_is_redacted_is_ended() -> None:
    """Nothing in its place: the same model says the same again, and not for ever."""
    untouched = text_in(await answer_under(KeywordFilterSet(), SimulatedEngine(SMALL)))
    phrase = untouched[40:45]
    ended = await answer_under(redacting(phrase, ""), SimulatedEngine(SMALL))
    assert ended.response.incomplete_details == {"reason": "content_filter"}
    assert text_in(ended) == untouched[: untouched.index(phrase)]


OPTIONS = SimulatedOptions(answer_tokens_mean=60)


async def done() -> None:
    return


@virtual
async def test_a_key_whose_destruction_failed_is_destroyed_at_the_next_purge() -> None:
    class Sticky(MemoryKeyStore):
        fails = 1

        async def destroy(self, key: SessionKey) -> None:
            if self.fails:
                self.fails -= 1
                raise Unavailable("keys_unavailable", "The key store is away.")
            await super().destroy(key)

    async with Place(OPTIONS) as place:
        replica = await place.replica()
        await replica.create()
        await replica.delete()
        keys = Sticky()
        data_key = await keys.current(KEY)
        sweeps = sweeps_of(replica, keys, deleted_days=100 / 86_400)
        await advance(101.0)
        assert await sweeps.purge() == 0
        assert head_of(place.store, KEY) is not None, "its rows say that there is a key to destroy"
        assert await sweeps.purge() == 1
        assert await keys.find(KEY, data_key.id) is None and head_of(place.store, KEY) is None


DELETED = [SessionKey(TenantId(tenant), SessionId("s1")) for tenant in ("acme", "beta")]


async def two_deleted(place: Place, replica: Replica, keys: MemoryKeyStore) -> None:
    """A session of each of two tenants, both deleted long ago, and their keys."""
    for key in DELETED:
        who = Principal(tenant=key.tenant, key_id="k", role="service", scopes=SCOPES)
        await replica.do(cm.SessionCreate(id=place.name(), session=key.session), who)
        await replica.do(cm.SessionDelete(id=place.name(), session=key.session), who)
        await keys.current(key)
    await advance(10.0)


@pytest.mark.parametrize("fault", ["refused", "lost", "applied"])
@pytest.mark.parametrize("number", [0, 1])
@virtual
async def test_no_key_outlives_the_rows_of_its_session(number: int, fault: Fault) -> None:
    """The journal fails at a purge, of the first tenant or of the second, and the replica is started anew."""
    async with Place(OPTIONS) as place:
        replica = await place.replica()
        keys = MemoryKeyStore()
        await two_deleted(place, replica, keys)
        kept = RetentionPeriods(deleted_days=0.0)
        retention = Retention(default=kept, tenants={"acme": kept})
        replica.faults.next("purge", *[done] * number, fault)
        assert isinstance(await outcome(sweeps_of(replica, keys, retention=retention).purge()), Unavailable)
        left = [key for key in DELETED if head_of(place.store, key) is None and key in keys._keys]
        assert left == [], "nobody would ever look for these keys again"
        await sweeps_of(replica, keys, retention=retention).purge()
        assert not any(head_of(place.store, key) for key in DELETED) and not keys._keys


@virtual
async def test_a_purge_that_is_cut_short_behind_a_key_goes_on_at_the_next() -> None:
    async with Place(OPTIONS) as place:
        replica = await place.replica()
        keys = MemoryKeyStore()
        await two_deleted(place, replica, keys)
        stuck: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        replica.faults.next("purge", lambda: stuck)
        purging = asyncio.create_task(sweeps_of(replica, keys, deleted_days=0.0).purge())
        await settled()
        assert not keys._keys and all(head_of(place.store, key) for key in DELETED), "between the keys and the rows"
        purging.cancel()
        await asyncio.wait([purging])
        assert await sweeps_of(replica, keys, deleted_days=0.0).purge() == 2
        assert not any(head_of(place.store, key) for key in DELETED)
        purged = [b'"session.purged"' in body for (body,) in place.store.query("SELECT body FROM audit")]
        assert sum(purged) == 2, "each is written down once"


class Scene(NamedTuple):
    """A replica whose session has a question, and an answer that is being written."""

    place: Place
    replica: Replica
    reader: Reader
    actor: Actor
    response_id: ResponseId

    @property
    def num_appends(self) -> int:
        return self.replica.faults.calls.count("append")


@asynccontextmanager
async def answering() -> AsyncIterator[Scene]:
    async with Place(SimulatedOptions(answer_tokens_mean=60)) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say("where is the river")
        actor = replica.runtime.actor(KEY)
        assert actor is not None and answer.response_id is not None
        await reader.delta(answer.response_id, 3)
        yield Scene(place, replica, reader, actor, answer.response_id)


@virtual
async def test_who_has_sealed_for_another_leaves_without_writing() -> None:
    """The target knows where the log ends: whatever makes the source leave, nothing comes behind that."""
    async with answering() as scene:
        await scene.reader.ended(scene.response_id)
        await scene.actor.seal()
        appends = scene.num_appends
        await scene.replica.runtime.passivate(KEY)
        assert scene.replica.runtime.actor(KEY) is None
        assert scene.num_appends == appends


@virtual
async def test_nothing_is_written_behind_a_seal_whoever_asks_for_it() -> None:
    """A reader's leaving, or a tool's deadline, waits until it is decided who owns the session."""
    async with answering() as scene:
        await scene.actor.seal()
        appends = scene.num_appends
        scene.actor.readers_left(cancel=True)
        await advance(1.0)
        assert scene.num_appends == appends
        scene.actor.unseal()
        ended = await scene.reader.ended(scene.response_id)
        assert isinstance(ended, ev.ResponseIncomplete), "the cancellation waited"


@virtual
async def test_nothing_is_written_beside_the_snapshot_of_a_session_that_leaves() -> None:
    async with answering() as scene:
        await scene.reader.delta(scene.response_id, 12)
        scene.replica.faults.slow("append", 0.5)
        leaving = asyncio.create_task(scene.replica.runtime.passivate(KEY))
        await settled()
        await settled()
        appends = scene.num_appends
        scene.actor.readers_left(cancel=True)
        again = asyncio.create_task(scene.actor.passivate())
        await settled()
        assert not again.done() and scene.replica.runtime.actor(KEY) is scene.actor, "both wait for the same end"
        await asyncio.gather(leaving, again)
        assert scene.num_appends == appends and scene.place.head().open
        loaded = run_now(scene.place.store.journal.load(KEY, now_ms=UnixMs(0)))
        assert loaded is not None and loaded.snapshot is not None


ENDLESS = SimulatedOptions(answer_tokens_mean=0)
OTHER = SessionId("s2")


def limits(**more: Any) -> RuntimeLimits:
    return RuntimeLimits(orphan_policy="pause", orphan_after_s=1.0, **more)


async def abandoned(replica: Replica) -> ResponseId:
    """A long answer whose reader has left, and which has been paused for that."""
    unwatch = replica.runtime.watch(KEY, lambda published: None)
    await replica.create()
    answer = await replica.say(max_output_tokens=400)
    await advance(1.0)
    unwatch()
    await advance(1.1)
    assert replica.engine.stats().running == 0 and replica.place.head().open
    assert answer.response_id is not None
    return answer.response_id


async def create_other(replica: Replica) -> object:
    return await outcome(replica.do(cm.SessionCreate(id=replica.place.name(), session=OTHER)))


@virtual
async def test_a_paused_answer_gives_its_room_to_others_and_goes_on_when_it_is_read_again() -> None:
    async with Place(ENDLESS) as place:
        replica = await place.replica(limits=limits(actors_max=1))
        response_id = await abandoned(replica)
        assert isinstance(await create_other(replica), cm.Ok)
        assert not replica.runtime.present(KEY) and place.head().open
        written, fence = place.head().top, place.head().fence
        sweeps = sweeps_of(replica)
        for _ in range(3):
            assert await sweeps.recover() == 0, "nobody reads it"
        assert (place.head().top, place.head().fence) == (written, fence)
        reader = place.read(replica)
        await reader.ended(response_id)
        (ended,) = place.terminals(response_id)
        assert isinstance(ended, ev.ResponseIncomplete) and ended.response.incomplete_details == {
            "reason": "max_output_tokens"
        }
        assert text_of(place.records(), response_id) == await undisturbed(ENDLESS, max_output_tokens=400)


@virtual
async def test_a_paused_answer_leaves_memory_like_an_idle_session_and_another_replica_may_finish_it() -> None:
    async with Place(ENDLESS) as place:
        replica = await place.replica("r1", limits=limits(idle_s=10.0))
        response_id = await abandoned(replica)
        sweeps = sweeps_of(replica)
        assert await sweeps.passivate_idle() == 0, "not before its time"
        await advance(10.0)
        assert await sweeps.passivate_idle() == 1
        await settled()
        assert await sweeps.recover() == 0 and not replica.runtime.actors
        other = await place.replica("r2")
        assert await sweeps_of(other).recover() == 1
        await until(lambda: bool(place.terminals(response_id)), step_s=0.1)
        other.crash()


@virtual
async def test_what_another_has_had_since_is_recovered_like_anything_else() -> None:
    """It is left alone only as it was put away: who went on with it and died has left an orphan."""
    async with Place(ENDLESS) as place:
        replica = await place.replica("r1", limits=limits(actors_max=1))
        response_id = await abandoned(replica)
        await create_other(replica)
        other = await place.replica("r2")
        assert await sweeps_of(other).recover() == 1
        reader = place.read(other)
        await reader.delta(response_id, 2)
        other.crash()
        await advance(7.0)
        assert await sweeps_of(replica).recover() == 1
        await until(lambda: bool(place.terminals(response_id)), step_s=0.1)


async def attended(replica: Replica, *, listed: bool = True, **request: Any) -> ResponseId:
    """A long answer as `/v1/chat/completions` begins it, for a client that waits."""
    turn = cm.TurnCreate(
        id=replica.place.name(),
        session=SessionId(KEY.session),
        create=cm.SessionSettings(listed=listed),
        parent_id=None,
        items=(cm.NewMessage(content="hello"),),
        request={"store": False, **request},
        max_output_tokens=4000,
    )
    answer = await replica.do(turn)
    assert answer.response_id is not None
    return answer.response_id


@virtual
async def test_an_unlisted_session_leaves_memory_with_the_client_that_left_it() -> None:
    """Thousands of them stood in memory for ten minutes, begun by clients that had left at once."""
    for listed, request, leaves in ((False, True, True), (True, True, False), (False, False, False)):
        async with Place(ENDLESS) as place:
            replica = await place.replica()
            response_id = await attended(replica, listed=listed, attended=request)
            await advance(1.0)
            cancel = cm.ResponseCancel(id=place.name(), session=SESSION, response_id=response_id)
            await replica.do(cancel)
            await settled()
            assert (not replica.runtime.actors) is leaves
            assert [end.response.incomplete_details for end in place.terminals(response_id)] == [
                {"reason": "cancelled"}
            ]
            again = await attended(replica, listed=listed, attended=request)
            await advance(1.0)
            assert not place.terminals(again), "it goes on here"
            await replica.delete()


@virtual
async def test_a_session_that_another_client_reads_stays_when_one_leaves() -> None:
    async with Place(ENDLESS) as place:
        replica = await place.replica()
        left, stays = [await attended(replica, listed=False, attended=True) for _ in range(2)]
        await advance(1.0)
        await replica.do(cm.ResponseCancel(id=place.name(), session=SESSION, response_id=left))
        await settled()
        assert [actor.open for actor in replica.runtime.actors] == [(stays,)]
        await replica.delete()


@virtual
async def test_what_a_client_waits_for_ends_when_its_gateway_has_died() -> None:
    for request, ends in (({"attended": True}, True), ({}, False)):
        async with Place(ENDLESS) as place:
            replica = await place.replica()
            unwatch = replica.runtime.watch(KEY, lambda published: None)
            response_id = await attended(replica, **request)
            await advance(1.0)
            unwatch()  # as the link of a gateway that was killed does
            await advance(11.0)
            assert [end.response.incomplete_details for end in place.terminals(response_id)] == [
                {"reason": "orphaned"}
            ] * ends
            await replica.delete()


@virtual
async def test_a_server_that_was_killed_finishes_it_for_nobody() -> None:
    """Both died: the gateway that would have cancelled it, and the replica that wrote it."""
    for reads in (False, True):
        async with Place(ENDLESS) as place:
            replica = await place.replica("r1")
            replica.runtime.watch(KEY, lambda published: None)
            response_id = await attended(replica, attended=True)
            await advance(1.0)
            replica.crash()
            await advance(7.0)
            other = await place.replica("r2")
            assert await sweeps_of(other).recover() == 1
            if reads:  # its gateway lives, and goes on reading here
                place.read(other)
            await advance(20.0)
            assert bool(place.terminals(response_id)) is not reads
            await other.delete()
