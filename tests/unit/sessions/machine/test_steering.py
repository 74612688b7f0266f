"""Words for an answer that is written: it ends where it is, another goes on; behind tools they wait for the outputs."""

from __future__ import annotations

import msgspec
import pytest

from sessions.machine import event_writer
from sessions.machine.inputs_and_effects import Start, Stop, ToolDeadline
from sessions.machine.responses import KEPT_SERVICE
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.generation import drawn_seed
from sessions.model.types import CallId, FunctionCall, ItemId, Message, ResponseId, Tool
from tests.support.machine.machine_fixture import SESSION, Ground

TOOL = Tool(name="look_up", parameters={"type": "object"})


@pytest.fixture
def ground() -> Ground:
    made = Ground()
    made.create(tools=(TOOL,))
    return made


def steer(ground: Ground, response_id: ResponseId | None, content: str = "shorter") -> cm.Ok:
    assert response_id is not None
    return ground.ok(cm.ResponseSteer(id=ground.name(), session=SESSION, response_id=response_id, content=content))


def call(ground: Ground, response_id: ResponseId) -> CallId:
    ground.write(response_id, event_writer.CallBegin("look_up"), event_writer.CallArguments("{}"))
    calls = [item for item in ground.state.items.values() if isinstance(item, FunctionCall)]
    return calls[-1].call_id


def text(ground: Ground, item_id: ItemId | None) -> str:
    assert item_id is not None
    item = ground.state.items[item_id]
    assert isinstance(item, Message)
    return item.text


def test_it_ends_with_what_was_released_and_another_goes_on_below_the_words(ground: Ground) -> None:
    first = ground.say(temperature=0.5, max_output_tokens=40).response_id
    assert first is not None
    ground.text(first, "once upon")
    before = len(ground.records)
    ok = steer(ground, first)
    kinds = [type(record.event).__name__ for record in ground.records[before:]]
    assert kinds[-4:] == ["ResponseIncomplete", "ItemCreated", "ResponseCreated", "ResponseInProgress"]
    ended = next(record.event for record in ground.records if isinstance(record.event, ev.ResponseIncomplete))
    assert ended.response.incomplete_details == {"reason": "steered", "response_id": ok.response_id}
    assert text(ground, ended.response.output[-1].id) == "once upon"
    assert ok.item_id is not None and ok.response_id is not None
    words, open_ = ground.state.items[ok.item_id], ground.state.open[ok.response_id]
    assert words.parent_id == ended.response.output[-1].id and text(ground, ok.item_id) == "shorter"
    assert open_.body.parent_id == ok.item_id
    assert (open_.sampling.temperature, open_.sampling.max_output_tokens) == (0.5, 40)
    assert [row.status for row in ground.usage] == ["incomplete"]
    ground.answer(ok.response_id)
    ground.check()
    ground.check_folding(before)


@pytest.mark.parametrize("seed", [None, 7])
def test_what_goes_on_keeps_a_seed_that_was_chosen_and_none_that_was_drawn(ground: Ground, seed: int | None) -> None:
    def sampled(response_id: ResponseId | None) -> int | None:
        assert response_id is not None
        drawn = ground.state.open[response_id].sampling.seed
        assert drawn == (drawn_seed(response_id) if seed is None else seed)
        return drawn

    first = ground.say(seed=seed).response_id
    assert first is not None
    sampled(first)
    second = steer(ground, first).response_id
    sampled(second)
    assert second is not None
    name = call(ground, second)
    ground.finish(second)
    output = cm.ToolOutput(id=ground.name(), session=SESSION, call_id=name, output="{}")
    third = ground.ok(output).response_id
    sampled(third)
    assert third is not None
    call(ground, third)
    waiting = steer(ground, third).response_id
    ground.cancel(third)
    sampled(waiting)


def test_the_engine_has_let_go_before_it_goes_on(ground: Ground) -> None:
    first = ground.say().response_id
    assert first is not None
    ground.text(first)
    step_of = ground.machine.step
    command = cm.ResponseSteer(id=ground.name(), session=SESSION, response_id=first, content="x")
    effects = []

    def step(*given):  # type: ignore[no-untyped-def]
        made = step_of(*given)
        effects.extend(made.effects)
        return made

    ground.machine.step = step  # type: ignore[method-assign]
    ok = ground.ok(command)
    assert ok.response_id is not None
    assert effects == [Stop(first), Start(ok.response_id, 2, first)]


def test_before_its_first_text_the_words_stand_below_the_question(ground: Ground) -> None:
    said = ground.say()
    ok = steer(ground, said.response_id)
    assert ok.item_id is not None and ground.state.items[ok.item_id].parent_id == said.item_id
    ground.check()


def test_what_waited_for_it_waits_for_what_goes_on(ground: Ground) -> None:
    first = ground.say().response_id
    assert first is not None
    waits = ground.say("later", queue=True).response_id
    ok = steer(ground, first)
    assert [(each.body.id, each.after) for each in ground.state.queue] == [(waits, ok.response_id)]
    assert ok.response_id is not None
    ground.answer(ok.response_id)
    assert set(ground.state.open) == {waits}
    ground.check()


@pytest.mark.parametrize("ended", [True, False], ids=["turn waits", "call is written"])
@pytest.mark.parametrize("stateless", [False, True], ids=["tool.output", "turn.create"])
def test_words_for_an_answer_that_calls_stand_below_the_outputs(ground: Ground, ended: bool, stateless: bool) -> None:
    first = ground.say().response_id
    assert first is not None
    call_id = call(ground, first)
    if ended:
        ground.finish(first)
    one, two = steer(ground, first, "one"), steer(ground, first, "two")
    assert [each.body.id for each in ground.state.queue] == [one.response_id, two.response_id]
    if not ended:
        assert first in ground.state.open
        ground.finish(first)
    if stateless:
        output = cm.NewOutput(call_id=call_id, output="found")
        after = cm.NewMessage(content="and mine")
        ok = ground.ok(cm.TurnCreate(id=ground.name(), session=SESSION, items=(output, after)))
    else:
        ok = ground.ok(cm.ToolOutput(id=ground.name(), session=SESSION, call_id=call_id, output="found"))
    assert ok.response_id is not None and ground.state.queue == []
    leaf = ground.state.open[ok.response_id].body.parent_id
    if stateless:
        assert text(ground, leaf) == "and mine"
        assert leaf is not None
        leaf = ground.state.items[leaf].parent_id
    assert leaf == two.item_id
    assert one.item_id is not None and ground.state.items[one.item_id].parent_id not in (None, two.item_id)
    ends = {r.event.response_id: r.event.response for r in ground.records if isinstance(r.event, ev.ResponseIncomplete)}
    for each in (one, two):
        assert each.response_id is not None
        assert ends[each.response_id].incomplete_details == {"reason": "steered", "response_id": ok.response_id}
    ground.answer(ok.response_id)
    ground.check()
    ground.check_folding(3)


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_where_no_output_comes_the_words_are_answered_all_the_same(ground: Ground, how: str) -> None:
    first = ground.say().response_id
    assert first is not None
    call(ground, first)
    ground.finish(first)
    later = ground.say("later", queue=True).response_id
    ok = steer(ground, first)
    if how == "deadline":
        ground.input(ToolDeadline(first))
    else:
        ground.cancel(first)
    assert ok.response_id is not None and set(ground.state.open) == {ok.response_id}
    ground.answer(ok.response_id)
    assert set(ground.state.open) == {later}
    ground.check()


def test_what_has_ended_or_waits_is_not_steered(ground: Ground) -> None:
    first = ground.say().response_id
    assert first is not None
    waits = ground.say("later", queue=True).response_id
    assert waits is not None

    def refused(response_id: ResponseId, code: str) -> None:
        command = cm.ResponseSteer(id=ground.name(), session=SESSION, response_id=response_id, content="x")
        ground.refused(command, code)

    refused(waits, "response_not_active")
    refused(ResponseId("resp_none"), "response_not_found")
    ground.answer(first)
    refused(first, "response_already_completed")


def test_at_most_eight_wait(ground: Ground) -> None:
    first = ground.say().response_id
    assert first is not None
    call(ground, first)
    for _ in range(8):
        steer(ground, first)
    command = cm.ResponseSteer(id=ground.name(), session=SESSION, response_id=first, content="x")
    ground.refused(command, "queue_full")


def test_a_crash_behind_it_goes_on_with_the_new_answer(ground: Ground) -> None:
    first = ground.say().response_id
    assert first is not None
    ground.text(first)
    ok = steer(ground, first)
    ground.activate(cause="failover")
    assert set(ground.running) == {ok.response_id}
    ground.check()


def test_the_same_words_again_are_the_same_steering(ground: Ground) -> None:
    first = ground.say().response_id
    assert first is not None
    command = cm.ResponseSteer(id=ground.name(), session=SESSION, response_id=first, content="x")
    assert ground.ok(command) == ground.ok(command)
    ground.refused(msgspec.structs.replace(command, content="y"), "idempotency_conflict")


def test_it_is_let_in_with_what_it_goes_on_from(ground: Ground) -> None:
    ground.service = {"brownout": 2, "queue_position": 3, "max_output_tokens": 10}
    first = ground.say().response_id
    ground.service = None
    ok = steer(ground, first)
    assert ok.response_id is not None
    service = ground.state.open[ok.response_id].body.service
    assert isinstance(service, dict) and set(service) <= set(KEPT_SERVICE) and service["brownout"] == 2
