"""An actor around a step: what comes in, what is written, observed, pushed, and who is answered."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog

from actors.handoff.drain import BY_SIGNAL, Drain
from actors.handoff.planner import HandoffPlanner
from actors.hosting.runtime import RuntimeLimits
from inference.simulated import SimulatedOptions
from persistence.memory.database import run_now
from sessions.actor.actor_context import ActorLimits
from sessions.actor.input_pipeline import prepare_input
from sessions.actor.mailbox import ActorStopped, error_for_sender
from sessions.actor.push_decision import concerns_user, push_notice
from sessions.actor.step_observer import observed_step
from sessions.machine import event_writer, inputs_and_effects
from sessions.machine.inputs_and_effects import Command, Step
from sessions.machine.state import Awaiting, State, empty
from sessions.machine.tool_turns import ServerCall, ServerCalls
from sessions.metrics import Metrics
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Fenced, Overloaded, SessileError, Unavailable
from sessions.model.journal_types import Append
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CallId,
    CommandId,
    InputText,
    ItemId,
    Principal,
    ResponseId,
    Sampling,
    SessionId,
    SessionKey,
    TenantId,
    TextOptions,
    Tool,
    UnixMs,
    Usage,
)
from sessions.model.verdicts import Finding, Verdict
from sessions.turn.keyword_filter import KeywordFilterSet
from sessions.turn.ledger import Ledger
from tests.support.cluster.replicas import KEY as PLACE_KEY
from tests.support.cluster.replicas import Place, Reader, Replica
from tests.support.engines.sampling_fields import each_field
from tests.support.machine.ledger_fixture import Desk, info
from tests.support.machine.machine_fixture import KEY, SESSION, Ground
from tests.support.stores.tables import audit_rows_of, usage_in
from tests.support.virtual_time import advance, outcome, passed, virtual

ID = CommandId("c")


class Replace:
    """Redacts "red", blocks "black", breaks at "bug", never returns at "slow"."""

    async def check(self, principal: Principal, text: str) -> Verdict:
        if "bug" in text:
            raise ZeroDivisionError
        if "slow" in text:
            await asyncio.get_running_loop().create_future()
        for word, action in (("black", "block"), ("red", "redact")):
            at = text.find(word)
            if at >= 0:
                found: Any = Finding(category="c", action=action, start=at, end=at + len(word))  # type: ignore[arg-type]
                replaced: Any = action
                return Verdict(action=replaced, start=at, end=at + len(word), replacement="~", findings=(found,))
        return Verdict(action="pass")

    def check_seam(self, principal: Principal, text: str, last: int, first: int) -> Verdict:
        return Verdict(action="pass")


async def prepared(command: cm.ActorCommand, *memories: str, begun: bool = True) -> Command:
    """By a user who has written down `memories`, for a session that has `begun` or not."""

    async def read(tenant: TenantId, user: str) -> tuple[str, ...]:
        return memories

    filters = SimpleNamespace(input_filters=lambda principal: (Replace(),))
    limits = ActorLimits(content_bytes=40, prepare_s=5.0)
    engine = SimpleNamespace(info=info())
    world: Any = SimpleNamespace(
        filters=filters, limits=limits, metrics=Metrics(), memories=read, tools=None, knowledge=None, engine=engine
    )
    input = Command(msgspec.structs.replace(LOCAL_PRINCIPAL, user="ana"), command, cm.command_digest(command))
    desk = Desk()
    ledger = desk.ledger if begun else Ledger(empty(KEY, user="ana"), desk.tokenizer, info())
    return await prepare_input(input, ledger=ledger, context=world)


def message(content: str) -> cm.MessageCreate:
    return cm.MessageCreate(id=ID, session=SESSION, content=content)


@virtual
async def test_a_message_is_redacted_and_tokenised() -> None:
    made = await prepared(message("a red rose"))
    assert isinstance(made.command, cm.MessageCreate) and made.command.content == (InputText(text="a ~ rose"),)
    assert made.prepared is not None and made.prepared.tokens and made.refused is None
    assert [each.text for each in made.findings] == ["red"]


@virtual
@pytest.mark.parametrize(
    ("content", "code"),
    [("black", "content_filter"), ("x" * 41, "content_too_large"), ("slow", "overloaded"), ("bug", "internal_error")],
)
async def test_what_fails_refuses_the_command(content: str, code: str) -> None:
    made = await prepared(message(content))
    assert made.refused is not None and made.refused.code == code
    assert made.prepared is None


@virtual
async def test_a_turn_has_tokens_beside_each_item_but_for_answers_with_calls() -> None:
    call_id = CallId("x")
    items = (
        cm.NewMessage(role="user", content="red"),
        cm.NewMessage(role="assistant", content="let me look"),
        cm.NewCall(call_id=call_id, name="look", arguments="{}"),
        cm.NewOutput(call_id=call_id, output="red"),
    )
    settings = cm.SessionSettings(instructions="red")
    made = await prepared(cm.TurnCreate(id=ID, session=SESSION, items=items, create=settings, instructions="red"))
    assert [each is not None for each in made.prepared_items] == [True, False, False, True]
    assert isinstance(made.command, cm.TurnCreate) and made.command.create is not None
    assert made.command.create.instructions == made.command.instructions == "~"
    output = made.command.items[3]
    assert isinstance(output, cm.NewOutput) and output.output == "~"


@virtual
async def test_an_appeal_is_blocked_where_filters_refuse_its_text() -> None:
    appeal = cm.ReviewAppeal(id=ID, session=SESSION, content="black", note="")
    assert (await prepared(appeal)).blocked
    assert not (await prepared(msgspec.structs.replace(appeal, content="white"))).blocked


@virtual
async def test_what_a_conversation_begins_with_is_filtered_and_only_its_creation_reads_it() -> None:
    listed, unlisted = (cm.SessionSettings(listed=each) for each in (True, False))
    commands: list[tuple[cm.ActorCommand, tuple[str, ...]]] = [
        (cm.SessionCreate(id=ID), ("a ~ rose",)),
        (cm.TurnCreate(id=ID, session=SESSION, create=listed), ("a ~ rose",)),
        (cm.TurnCreate(id=ID, session=SESSION, create=unlisted), ()),
    ]
    for command, kept in commands:
        assert (await prepared(command, "a red rose", "black", begun=False)).memories == kept
        assert (await prepared(command, "a red rose", "black")).memories == ()
    assert (await prepared(message("a rose"), "a red rose")).memories == ()


@virtual
@pytest.mark.parametrize("field", each_field())
async def test_a_field_that_the_engine_does_not_honour_refuses_the_command_by_its_name(field: str) -> None:
    sampling = msgspec.structs.asdict(each_field()[field])
    refused = (await prepared(cm.MessageCreate(id=ID, session=SESSION, content="rose", **sampling))).refused
    assert refused is not None and (refused.code, refused.param) == ("unsupported_parameter", field)


@virtual
async def test_a_value_that_asks_for_nothing_is_honoured_by_every_engine() -> None:
    nothing: dict[str, Any] = {"top_k": 0, "min_p": 0.0, "top_p": 1.0, "repeat_penalty": 1.0, "logit_bias": {}}
    nothing |= {"frequency_penalty": 0.0, "presence_penalty": 0.0, "min_tokens": 0, "top_logprobs": 0}
    nothing["text"] = TextOptions({"type": "text"})
    assert (await prepared(cm.MessageCreate(id=ID, session=SESSION, content="rose", **nothing))).refused is None


@virtual
async def test_a_field_about_thoughts_is_refused_where_the_model_has_none_but_of_openais_endpoints_which_warn() -> None:
    for field, value in {"thinking": True, "thinking_tokens": 9, "effort": "low"}.items():
        given: dict[str, Any] = {"id": ID, "session": SESSION, field: value}
        refused = (await prepared(cm.MessageCreate(content="rose", **given))).refused
        assert refused is not None and (refused.code, refused.param) == ("unsupported_parameter", field)
        assert (await prepared(cm.TurnCreate(**given))).refused is None
    assert (await prepared(cm.MessageCreate(id=ID, session=SESSION, content="rose", thinking=False))).refused is None


OPTIONS = SimulatedOptions(answer_tokens_mean=30)
OFTEN = RuntimeLimits(actor=ActorLimits(snapshot_events=16))
TIGHT_BYTES = 12_000  # for what the turns below write, and too little for a snapshot of what they have said
LONG = "where is the river " * 100


async def turn(replica: Replica, reader: Reader, text: str) -> None:
    async with asyncio.timeout(60.0):
        answer = await replica.say(text)
        assert isinstance(await reader.ended(answer.response_id), ev.ResponseCompleted)


def snapshots_tried(place: Place, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets of the snapshots that the replica hands to its journal from now on."""
    tried: list[int] = []
    append = replica.journal.append

    async def seen(write: Append) -> None:
        if write.snapshot is not None:
            tried.append(write.snapshot.offset)
        await append(write)

    monkeypatch.setattr(replica.journal, "append", seen)
    return tried


@virtual
async def test_a_session_whose_snapshot_is_too_large_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be written, handed over and deleted like any other, and is not packed again at every turn."""
    async with Place(OPTIONS) as place:
        place.store.write_bytes_max = TIGHT_BYTES
        replica = await place.replica(limits=OFTEN)
        reader = place.read(replica)
        tried = snapshots_tried(place, replica, monkeypatch)
        await replica.create()
        for _ in range(12):
            await turn(replica, reader, LONG)
        first = replica.runtime.actor(PLACE_KEY)
        assert reader.records == place.records() and first is not None
        loaded = run_now(place.store.journal.load(PLACE_KEY, now_ms=place.now_ms()))
        assert loaded is not None and (loaded.snapshot is None or loaded.snapshot.offset < place.head().top)
        refused = [offset for offset in tried if loaded.snapshot is None or offset > loaded.snapshot.offset]
        assert replica.runtime.metrics.snapshots_left_out.total == len(refused)
        gaps = [later - before for before, later in itertools.pairwise(refused)]
        assert len(refused) >= 2 and gaps == sorted(gaps) and gaps[-1] >= 32, "each time it waits for longer"
        assert len(usage_in(place.store)) == 12
        first.leaves_soon()
        before = len(tried)
        await turn(replica, reader, "and the sea")
        assert len(tried) <= before + 1
        await replica.runtime.passivate(PLACE_KEY)
        await turn(replica, reader, "and the sea")
        await replica.delete()
        assert place.head().deleted_at is not None


def full() -> Overloaded:
    return Overloaded("journal_overloaded", "Too much waits to be stored.", retry_after_ms=250)


def overloaded(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """The replica's journal refuses appends while that is switched on."""
    on = False
    append = replica.journal.append

    async def refusing(write: Append) -> None:
        if on:
            raise full()
        await append(write)

    def switch(to: bool) -> None:
        nonlocal on
        on = to

    monkeypatch.setattr(replica.journal, "append", refusing)
    return switch


@virtual
async def test_patience_with_a_full_journal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Place(OPTIONS) as place:
        replica = await place.replica(limits=RuntimeLimits(actor=ActorLimits(journal_patience_s=1.0)))
        await replica.create()
        switch = overloaded(replica, monkeypatch)
        switch(True)
        told = await outcome(replica.say())
        assert isinstance(told, Overloaded) and told.code == "journal_overloaded" and told.retryable
        assert replica.runtime.actor(PLACE_KEY) is None
        switch(False)
        assert isinstance(await replica.say(respond=False), cm.Ok)


@virtual
async def test_a_drain_parks_idle_sessions_a_few_at_a_time() -> None:
    """Each leaves a snapshot behind: thousands of them at once would fill the journal's queue."""
    async with Place(OPTIONS) as place:
        replica = await place.replica(limits=RuntimeLimits(passivations_max=16))
        names = [SessionId(f"s{n:03}") for n in range(300)]
        for name in names:
            await replica.do(cm.SessionCreate(id=place.name(), session=name))
        under_way = most = 0

        async def counted(call: str, key: SessionKey | None, effect: Callable[[], object]) -> object:
            nonlocal under_way, most
            under_way += call == "append"
            most = max(most, under_way)
            await passed(0.01)
            under_way -= call == "append"
            return effect()

        replica.journal._medium = counted
        nobody: Any = SimpleNamespace(
            change=lambda **_: None, view=None, leaving=lambda key: False, choose=lambda *_, **__: None
        )
        planner = HandoffPlanner(replica.runtime, replica.engine, nobody, nobody, nobody)
        drain = Drain(planner, place.clock)
        await drain.drain(lambda *_: None, by=BY_SIGNAL)
        assert replica.runtime.actors == [] and drain.parked == 300 and most == 16


def verdicts(place: Place) -> list[object]:
    return [row for row in audit_rows_of(place.store, TenantId("local")) if b'"verdict"' in row.body]


@pytest.mark.parametrize("fault", ["refused", "lost", "applied"])
@virtual
async def test_a_refused_message_is_written_down_once(fault: str) -> None:
    """The append has no records, so the log's end does not tell whether it stands."""
    async with Place(OPTIONS) as place:
        replica = await place.replica(filters=KeywordFilterSet(input_phrases=["river"]))
        await replica.create()
        for number in range(1, 4):
            replica.faults.next("append", fault)  # type: ignore[arg-type]
            told = await outcome(replica.say("where is the RIVER"))
            assert isinstance(told, SessileError) and told.code in ("content_filter", "journal_unavailable")
            await advance(1.0)
            assert len(verdicts(place)) == number
        assert isinstance(await outcome(replica.say("where is the RIVER")), BadInput)
        assert len(verdicts(place)) == 4 and place.head().top == 1


def test_errors_for_senders() -> None:
    own = BadInput("invalid_request", "no")
    assert error_for_sender(own) is own
    assert isinstance(error_for_sender(Fenced("fenced", "x")), ActorStopped)
    assert isinstance(error_for_sender(asyncio.CancelledError()), ActorStopped)
    away = error_for_sender(Unavailable("journal_away", "x"))
    assert isinstance(away, Unavailable) and away.code == "journal_unavailable"
    bug = error_for_sender(ZeroDivisionError())
    assert getattr(bug, "retryable", False), "repeated by its id it is applied at most once"


NOW = UnixMs(1_800_000_000_000)
PUSHED_KEY = SessionKey(TenantId("acme"), SessionId("s"))
RESPONSE = ResponseId("resp_1")


def a_state(**more: Any) -> State:
    return State(**{"key": PUSHED_KEY, "user": "ana", **more})


def an_end(offset: int = 7, kind: Any = ev.ResponseCompleted, **more: Any) -> ev.Record:
    body = ev.ResponseBody(id=RESPONSE, created_at=NOW, status="completed", model="m", parent_id=None, **more)
    return ev.Record(offset, NOW, kind(response_id=RESPONSE, sequence_number=offset, response=body))


def a_wait(*calls: str, missing: tuple[str, ...]) -> Awaiting:
    """For outputs, of which the server itself carries `calls` out."""
    ana = Principal(tenant=PUSHED_KEY.tenant, key_id="ana", user="ana")
    known = {CallId(name): ServerCall(call_id=CallId(name), name="f") for name in calls}
    return Awaiting(
        response_id=RESPONSE,
        sampling=Sampling(),
        missing=[CallId(name) for name in missing],
        last=ItemId("i"),
        since=NOW,
        server=ServerCalls(calls=known, principal=ana),
    )


def test_calls_that_the_server_carries_out_wait_for_nobody_until_somebody_is_asked() -> None:
    server, both = a_wait("call_1", missing=("call_1",)), a_wait("call_1", missing=("call_1", "call_2"))
    assert push_notice(Step(records=[an_end()]), a_state(awaiting={RESPONSE: server})) is None
    notice = push_notice(Step(records=[an_end()]), a_state(awaiting={RESPONSE: both}))
    assert notice is not None and notice.cause == "tool_call", "one of the calls is the client's"
    asked = ev.ToolApprovalRequested(response_id=RESPONSE, call_id=CallId("call_1"), name="f")
    step = Step(records=[ev.Record(9, NOW, asked)])
    assert concerns_user(step) and not concerns_user(Step(records=[an_end()]))
    notice = push_notice(step, a_state(awaiting={RESPONSE: server}))
    assert notice is not None and (notice.cause, notice.response_id, notice.offset) == ("approval", RESPONSE, 9)
    assert push_notice(step, a_state(user=None)) is None


def test_what_nobody_is_to_be_told_of() -> None:
    whole = Step(records=[an_end()])
    cancelled = an_end(kind=ev.ResponseIncomplete, incomplete_details={"reason": "cancelled"})
    assert push_notice(Step(records=[cancelled]), a_state()) is None
    assert push_notice(Step(), a_state()) is None
    for state in (a_state(user=None), a_state(listed=False), a_state(deleted=True)):
        assert push_notice(whole, state) is None


FLAG = Finding(category="c/keyword", action="flag", start=0, end=3, text="gun", review=True)


class Observed:
    def __init__(self) -> None:
        self.ground = Ground()
        self.ground.create()
        self.metrics = Metrics()

    def step(self, input: inputs_and_effects.Input) -> inputs_and_effects.Step:
        world: Any = SimpleNamespace(metrics=self.metrics)
        return observed_step(input, self.ground.machine, world, structlog.get_logger(), UnixMs(2_000_000))

    def command(self, command: cm.ActorCommand, **more: Any) -> inputs_and_effects.Step:
        return self.step(inputs_and_effects.Command(LOCAL_PRINCIPAL, command, cm.command_digest(command), **more))

    def message(self) -> cm.MessageCreate:
        return cm.MessageCreate(id=self.ground.name(), session=SESSION, content="gun")


@pytest.fixture
def observed() -> Observed:
    return Observed()


def test_a_refused_message_is_audited_with_its_code(observed: Observed) -> None:
    step = observed.command(observed.message(), findings=(FLAG,), refused=BadInput("content_filter", "no"))
    assert [row.detail["outcome"] for row in step.audit] == ["content_filter"]


def test_what_an_appeal_repeats_is_counted_once(observed: Observed) -> None:
    appeal = cm.ReviewAppeal(id=observed.ground.name(), session=SESSION, content="gun", note="")
    step = observed.command(appeal, findings=(FLAG,), blocked=True)
    assert observed.metrics.verdicts.total == 0 and step.audit == []


def test_a_retraction_and_its_finding_are_audited_as_the_servers(observed: Observed) -> None:
    ground = observed.ground
    response_id = ground.say().response_id
    assert response_id is not None
    verdict = Verdict(action="retract", start=0, end=1, category="c")
    output = inputs_and_effects.Output(
        response_id, ground.running[response_id], (event_writer.Text("gun"),), b"", "", (FLAG,), verdict
    )
    step = observed.step(output)
    assert [(row.action, row.by) for row in step.audit] == [("verdict", None), ("content.retracted", None)]
    assert {row.response for row in step.audit} == {response_id}
    assert observed.metrics.verdicts.values == {("output", "flag", "c"): 1}


def test_a_call_of_a_server_tool_is_audited_and_what_it_says_like_a_users_words(observed: Observed) -> None:
    observed.command(
        cm.SessionUpdate(id=observed.ground.name(), session=SESSION, tools=(Tool(name="book", server=True),))
    )
    machine, now = observed.ground.machine, UnixMs(2_000_001)
    answer = observed.command(observed.message()).answer
    assert isinstance(answer, cm.Ok) and answer.response_id is not None
    response_id = answer.response_id
    pieces = (event_writer.CallBegin("book"), event_writer.CallArguments("{}"))
    machine.step(inputs_and_effects.Output(response_id, 1, pieces, b""), now)
    machine.step(inputs_and_effects.GenerationFinished(response_id, 1, "stop", Usage(1, 1)), now)
    (call_id,) = machine.state.awaiting[response_id].missing
    observed.step(inputs_and_effects.ToolApprovalNeeded(response_id, call_id))
    decided = observed.command(cm.ToolApprove(id=observed.ground.name(), session=SESSION, call_id=call_id))
    assert [(row.action, row.by, row.detail["approved"]) for row in decided.audit] == [
        ("tool.decided", LOCAL_PRINCIPAL, True)
    ]
    sent = observed.step(inputs_and_effects.ToolStarting(response_id, call_id, "call_x"))
    (row,) = sent.audit
    assert (row.action, row.response, row.detail["name"]) == ("tool.called", response_id, "book")
    said = observed.step(
        inputs_and_effects.ToolAnswered(response_id=response_id, call_id=call_id, output="gun", findings=(FLAG,))
    )
    assert [row.action for row in said.audit] == ["verdict"]
    assert observed.metrics.verdicts.values == {("input", "flag", "c"): 1}
