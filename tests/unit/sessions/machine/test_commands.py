"""The machine applies commands and folds old logs; all else of it is in `tests/golden/machine`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from sessions.machine import event_writer, item_tree
from sessions.machine.client_state import client_state
from sessions.machine.event_writer import CallArguments, CallBegin, Piece, RefusalText, Text
from sessions.machine.inputs_and_effects import RunTools, TitleWritten, ToolAnswered
from sessions.machine.responses import KEPT_SERVICE, TOOL_ROUNDS_MAX
from sessions.machine.state import STATE_VERSION, State, apply, empty, pack_state, replay, unpack_state
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.journal_types import Loaded, Snapshot
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CallId,
    CommandId,
    ItemId,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
    Tool,
    derived_session_id,
)
from tests.support.machine import machine_fixture as grounds
from tests.support.machine.machine_fixture import KEY, SESSION, TERMINAL, Ground

ID = CommandId("old")
replace = msgspec.structs.replace


def ends(state: State) -> None:
    """Every item has the root above it."""
    for leaf in state.items:
        at: ItemId | None = leaf
        for _ in range(len(state.items)):
            at = state.items[at].parent_id if at is not None else None
        assert at is None, f"{leaf} stands in a ring"
        assert item_tree.branch(state, leaf)[-1].id == leaf


def a_day_later(ground: Ground) -> None:
    """The journal keeps commands for 24 h; another activation knows only those."""
    ground.commands.clear()
    ground.activate()


def asked(ground: Ground) -> Ground:
    first = ground.say()
    assert first.response_id is not None
    ground.answer(first.response_id)
    return ground


def test_the_first_turn_of_a_session_does_not_become_its_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a door names the session after the command, the id in use says that the command was."""
    session = derived_session_id(LOCAL_PRINCIPAL, ID)
    monkeypatch.setattr(grounds, "KEY", SessionKey(TenantId("local"), SessionId(session)))
    for items, respond in (((cm.NewMessage(content="one"),), True), ((), False)):
        ground = Ground()
        command = cm.TurnCreate(id=ID, session=session, create=cm.SessionSettings(), items=items, respond=respond)
        done = ground.ok(command)
        assert done == ground.ok(command)
        if done.response_id is not None:
            ground.answer(done.response_id)
        a_day_later(ground)
        ground.refused(command, "idempotency_conflict")
        ground.check()


def asked_again(event: ev.AnyEvent, below: ItemId | None) -> ev.AnyEvent | None:
    """A message and its answer, with the message below what followed them."""
    if isinstance(event, ev.ItemCreated):
        return replace(event, item=replace(event.item, parent_id=below))
    return event


def answered_again(event: ev.AnyEvent, below: ItemId | None) -> ev.AnyEvent | None:
    """The answer alone, below what followed it."""
    match event:
        case ev.OutputItemAdded() | ev.OutputItemDone():
            return replace(event, item=replace(event.item, parent_id=below))
        case ev.ResponseCreated() | ev.ResponseCompleted():
            output = tuple(replace(item, parent_id=below) for item in event.response.output)
            return replace(event, response=replace(event.response, parent_id=below, output=output))
        case ev.ResponseEvent():
            return event
    return None


Again = Callable[[ev.AnyEvent, ItemId | None], ev.AnyEvent | None]


def with_a_ring(again: Again) -> Ground:
    """A log of two turns whose first was written again."""
    ground = Ground()
    ground.create()
    asked(ground)
    first = list(ground.records[1:])
    asked(ground)
    newest = ground.state.newest
    for record in first:
        event = again(record.event, newest)
        if event is not None:
            ground.records.append(ev.Record(len(ground.records) + 1, record.at, event, record.private))
    return ground


@pytest.mark.parametrize("again", [asked_again, answered_again])
def test_a_log_with_a_ring_in_it_folds_to_a_tree(again: Again) -> None:
    """Written by an older version: an id keeps the place that it had first."""
    ground = with_a_ring(again)
    ends(ground.folded())
    for snapshot_at in range(0, len(ground.records) + 1, 3):
        ends(ground.folded(snapshot_at))
    ground.activate()
    ground.say("and on")
    ends(ground.state)
    path = item_tree.branch(ground.state, ground.state.newest)
    assert len(path) == len({item.id for item in path}) == 5, "it goes on below all that was said"


@pytest.fixture
def ground() -> Ground:
    made = Ground()
    made.create(tools=(Tool(name="look", parameters={"type": "object"}),))
    return made


def test_records_apply_in_order_only(ground: Ground) -> None:
    state = empty(KEY, user=None)
    with pytest.raises(AssertionError, match="does not follow"):
        apply(state, msgspec.structs.replace(ground.records[0], offset=2))
    apply(state, ground.records[0])
    assert state.top == 1 and state.info is not None


def test_a_snapshot_of_another_version_or_damaged_is_none(ground: Ground) -> None:
    packed = pack_state(ground.state)
    assert unpack_state(packed) is not None
    for version in (1, STATE_VERSION + 1):  # the first could have a ring
        assert unpack_state(pack_state(replace(ground.state, version=version))) is None
    assert unpack_state(packed[:-1]) is None


def test_a_log_whose_snapshot_cannot_be_read_needs_its_beginning(ground: Ground) -> None:
    ground.say()
    records = tuple(ground.records)
    with pytest.raises(ValueError, match="left out"):
        replay(Loaded(ground.head(), Snapshot(2, b"?"), records[2:], (), True))
    with pytest.raises(ValueError, match="nothing stands behind"):  # idle, as most are
        replay(Loaded(ground.head(), Snapshot(len(records), b"?"), (), (), True))
    assert replay(Loaded(ground.head(), Snapshot(2, b"?"), records, (), True)).top == len(records)


SMALL = "sim-small"
TOOL = Tool(name="look_up", parameters={"type": "object"})


def bodies(ground: Ground, response_id: ResponseId | None) -> list[ev.ResponseBody]:
    kinds = ev.ResponseQueued | ev.ResponseCreated | TERMINAL
    events = [record.event for record in ground.records]
    return [each.response for each in events if isinstance(each, kinds) and each.response_id == response_id]


def models(ground: Ground, response_id: ResponseId | None) -> list[str]:
    return [body.model for body in bodies(ground, response_id)]


def writes(ground: Ground, response_id: ResponseId | None) -> str:
    """Whom the machine would have write a response, "" for the session's own model."""
    assert response_id is not None
    return ground.machine.other_model(ground.state.open[response_id])


def test_a_log_from_before_there_were_smaller_models_is_read_as_it_was() -> None:
    ground = Ground()
    ground.create()
    response = ground.say().response_id
    assert response is not None
    assert bodies(ground, response)[0].model == "sim" and writes(ground, response) == ""
    assert replay(Loaded(ground.head(), None, tuple(ground.records), (), True)).open[response].body.model == "sim"


def test_a_snapshot_from_before_there_were_smaller_models_goes_on_with_the_sessions_own() -> None:
    ground = Ground(smaller_model=SMALL)
    ground.create(tools=(TOOL,))
    response = ground.say().response_id
    assert response is not None
    ground.write(response, event_writer.CallBegin("look_up"), event_writer.CallArguments("{}"))
    ground.finish(response)
    body = msgspec.msgpack.decode(pack_state(ground.state))
    for waiting in body["awaiting"].values():
        del waiting["model"]
    state = unpack_state(msgspec.msgpack.encode(body))
    assert state is not None and [turn.model for turn in state.awaiting.values()] == [""]
    ground.machine.state.awaiting = state.awaiting
    (call,) = [each for turn in state.awaiting.values() for each in turn.missing]
    answered = ground.ok(cm.ToolOutput(id=ground.name(), session=SESSION, call_id=call, output="42"))
    assert models(ground, answered.response_id) == ["sim"] and writes(ground, answered.response_id) == ""


def test_deltas_carry_the_usage_so_far_where_the_request_says_so() -> None:
    for request, counted in (({"continuous_usage_stats": True}, True), ({}, False)):
        ground = Ground()
        ground.create()
        items = (cm.NewMessage(content="hello"),)
        turn = cm.TurnCreate(id=ground.name(), session=SESSION, items=items, request=request)
        response = ground.ok(turn).response_id
        assert response is not None
        ground.machine.prompted(response, 5, 3)
        ground.write(response, event_writer.Text("one"), event_writer.Text("two"))
        ground.text(response)
        ground.answer(response)
        deltas = [record.event for record in ground.records if isinstance(record.event, ev.OutputTextDelta)]
        shown = [(each.usage.cached_tokens, each.usage.output_tokens) for each in deltas if each.usage is not UNSET]
        assert shown == ([(3, 2), (3, 3), (3, 4)] if counted else [])
        assert all(each.usage.input_tokens == 5 for each in deltas if each.usage is not UNSET)


SESSION_COMMANDS_TOOL = Tool(name="look", parameters={"type": "object"})


def test_tools_that_the_model_cannot_call_are_refused_and_write_nothing() -> None:
    ground = Ground(takes_tools=False)
    ground.refused(
        cm.SessionCreate(id=ground.name(), session=SESSION, tools=(SESSION_COMMANDS_TOOL,)), "unsupported_parameter"
    )
    assert not ground.records
    ground.create()
    ground.refused(
        cm.SessionUpdate(id=ground.name(), session=SESSION, tools=(SESSION_COMMANDS_TOOL,)), "unsupported_parameter"
    )
    ground.ok(cm.SessionUpdate(id=ground.name(), session=SESSION, tools=None))
    items = (cm.NewMessage(content="hello"),)
    turn = cm.TurnCreate(id=ground.name(), session=SESSION, tools=(SESSION_COMMANDS_TOOL,), items=items, respond=False)
    ground.refused(turn, "unsupported_parameter")
    ground.ok(msgspec.structs.replace(turn, tool_choice="none"))


def test_a_title_of_what_was_taken_back_meanwhile_is_refused() -> None:
    ground = Ground()
    ground.create()
    said = ground.say("My PIN is 4711")
    assert said.response_id is not None and said.item_id is not None
    ground.answer(said.response_id)
    read = ground.state.top
    ground.ok(cm.ItemDelete(id=ground.name(), session=SESSION, item_id=said.item_id))
    assert ground.input(TitleWritten("My PIN is 4711", read)).records == []
    ground.input(TitleWritten("Nothing of it", ground.state.top))
    assert ground.state.info is not None and ground.state.info.title == "Nothing of it"


def test_a_sessions_own_settings_hold_for_answers_that_name_none() -> None:
    ground = Ground()
    ground.create(temperature=0.0, max_output_tokens=7)
    first = ground.say().response_id
    assert first is not None
    assert (ground.state.open[first].sampling.temperature, ground.state.open[first].sampling.max_output_tokens) == (
        0,
        7,
    )
    ground.finish(first)
    own = ground.say(temperature=1.5, max_output_tokens=9).response_id
    assert own is not None
    assert (ground.state.open[own].sampling.temperature, ground.state.open[own].sampling.max_output_tokens) == (1.5, 9)
    ground.finish(own)
    ground.ok(cm.SessionUpdate(id=ground.name(), session=SESSION, temperature=None))
    info = ground.state.info
    assert info is not None and info.temperature is UNSET and info.max_output_tokens == 7
    shown = client_state(ground.state)
    assert (shown["temperature"], shown["max_output_tokens"]) == (None, 7)


@pytest.fixture
def steered_ground() -> Ground:
    made = Ground()
    made.create(tools=(TOOL,))
    return made


def steer(ground: Ground, response_id: ResponseId | None, content: str = "shorter") -> cm.Ok:
    assert response_id is not None
    return ground.ok(cm.ResponseSteer(id=ground.name(), session=SESSION, response_id=response_id, content=content))


def test_it_is_let_in_with_what_it_goes_on_from(steered_ground: Ground) -> None:
    steered_ground.service = {"brownout": 2, "queue_position": 3, "max_output_tokens": 10}
    first = steered_ground.say().response_id
    steered_ground.service = None
    ok = steer(steered_ground, first)
    assert ok.response_id is not None
    service = steered_ground.state.open[ok.response_id].body.service
    assert isinstance(service, dict) and set(service) <= set(KEPT_SERVICE) and service["brownout"] == 2


@pytest.fixture
def bare_ground() -> Ground:
    return Ground()


def turn(ground: Ground, *items: cm.NewItem, **more: Any) -> cm.TurnCreate:
    return cm.TurnCreate(id=ground.name(), session=SESSION, items=items, **more)


def a_question(content: str = "hello") -> cm.NewMessage:
    return cm.NewMessage(role="user", content=content)


def test_a_response_that_stands_nowhere_is_refused_as_what_a_turn_goes_on_from(bare_ground: Ground) -> None:
    bare_ground.create()
    said = bare_ground.say()
    assert said.response_id is not None
    bare_ground.cancel(said.response_id)
    bare_ground.state.answers[said.response_id].parent = UNSET  # as of one that never began
    bare_ground.refused(turn(bare_ground, a_question(), after_response=said.response_id), "invalid_request")


OURS = Tool(name="book", server=True)


def called(*names: str, **more: Any) -> tuple[Ground, ResponseId, list[CallId]]:
    """A response that has called these and ended."""
    ground = Ground()
    ground.create(tools=(OURS,))
    response_id = ground.say("go", **more).response_id
    assert response_id is not None
    calls = call(ground, response_id, *names)
    return ground, response_id, calls


def call(ground: Ground, response_id: ResponseId, *names: str) -> list[CallId]:
    for name in names:
        ground.write(response_id, CallBegin(name), CallArguments("{}"))
    step = ground.finish(response_id)
    assert (RunTools(response_id) in step.effects) == ("book" in names)
    return list(ground.state.awaiting[response_id].missing)


def answer(ground: Ground, response_id: ResponseId, call_id: CallId) -> None:
    ground.input(ToolAnswered(response_id=response_id, call_id=call_id, output="booked"))


def test_after_so_many_rounds_no_tool_may_be_called() -> None:
    ground, response_id, (only,) = called("book", tool_choice="required")
    for round in range(1, TOOL_ROUNDS_MAX + 1):
        answer(ground, response_id, only)
        (response_id,) = ground.state.open
        chosen = ground.state.open[response_id].sampling.tool_choice
        assert chosen == ("none" if round == TOOL_ROUNDS_MAX else None)
        if round < TOOL_ROUNDS_MAX:
            (only,) = call(ground, response_id, "book")
    ground.check()


def written(*pieces: Piece) -> tuple[Ground, ResponseId, list[ev.AnyEvent]]:
    """The events of pieces that are released one after the other."""
    ground = Ground()
    ground.create()
    response_id = ground.say().response_id
    assert response_id is not None
    before = len(ground.records)
    for piece in pieces:
        ground.write(response_id, piece)
    return ground, response_id, [record.event for record in ground.records[before:]]


def test_only_text_behind_text_takes_the_short_way_and_becomes_the_same_event() -> None:
    ground, response_id, _ = written(Text("a"))
    open_ = ground.machine.state.open[response_id]
    more = Text("b", ({"token": "b"},))
    assert event_writer.going_on(open_, (more,)) == next(event_writer.write(open_, more, open_.body.created_at))
    for pieces in ((), (more, more), (RefusalText("no"),), (CallBegin("f"),)):
        assert event_writer.going_on(open_, pieces) is None
    ground.write(response_id, CallBegin("f"))
    assert event_writer.going_on(open_, (more,)) is None, "a call is being written"
