"""Messages, edits, responses, cancellation and tool outputs: what each refuses, and what waits in the queue."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.machine.event_writer import CallArguments, CallBegin
from sessions.machine.message_commands import QUEUE_MAX
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.types import CallId, ItemId, Message, ResponseId, Tool
from tests.support.machine.machine_fixture import SESSION, Ground


@pytest.fixture
def ground() -> Ground:
    made = Ground()
    made.create(tools=(Tool(name="look", parameters={"type": "object"}),))
    return made


def begun(ground: Ground, **more: Any) -> ResponseId:
    response_id = ground.say(**more).response_id
    assert response_id is not None
    return response_id


def message(ground: Ground, **more: Any) -> cm.MessageCreate:
    return cm.MessageCreate(id=ground.name(), session=SESSION, content="hello", **more)


def test_a_busy_branch_refuses_unless_the_client_queues(ground: Ground) -> None:
    begun(ground)
    assert ground.refused(message(ground), "response_in_progress").retryable
    waiting = ground.ok(message(ground, queue=True))
    assert [each.body.id for each in ground.state.queue] == [waiting.response_id]
    assert waiting.item_id not in ground.state.items, "its message is put when its turn comes"


def test_queue_needs_a_response(ground: Ground) -> None:
    ground.refused(message(ground, queue=True, respond=False), "invalid_request")


def test_the_queue_has_a_limit(ground: Ground) -> None:
    begun(ground)
    for _ in range(QUEUE_MAX):
        ground.ok(message(ground, queue=True))
    assert ground.refused(message(ground, queue=True), "queue_full").retry_after_ms


def test_what_waited_begins_behind_the_end_of_the_answer_before_it(ground: Ground) -> None:
    first = begun(ground)
    second = ground.ok(message(ground, queue=True))
    ground.answer(first)
    assert list(ground.state.open) == [second.response_id] and not ground.state.queue
    assert second.item_id is not None
    item = ground.state.items[second.item_id]
    assert isinstance(item, Message) and item.status == "completed"
    assert item.parent_id == ground.state.answers[first].items[-1]


def test_a_cancelled_one_leaves_the_queue_and_the_next_moves_up(ground: Ground) -> None:
    first = begun(ground)
    second, third = (ground.ok(message(ground, queue=True)).response_id for _ in range(2))
    assert second is not None
    ground.cancel(second)
    (left,) = ground.state.queue
    assert (left.body.id, left.after) == (third, first)


def test_cancelling_again_is_a_noop_and_an_unknown_response_is_not_found(ground: Ground) -> None:
    first = begun(ground)
    assert not ground.cancel(first).noop
    assert ground.cancel(first).noop
    ground.refused(
        cm.ResponseCancel(id=ground.name(), session=SESSION, response_id=ResponseId("r")), "response_not_found"
    )


def test_only_messages_that_were_sent_can_be_edited(ground: Ground) -> None:
    asked = ground.say()
    assert asked.response_id is not None and asked.item_id is not None
    ground.answer(asked.response_id)
    (answer,) = ground.state.answers[asked.response_id].items

    def edit(item_id: ItemId) -> cm.MessageEdit:
        return cm.MessageEdit(id=ground.name(), session=SESSION, item_id=item_id, content="other")

    ground.refused(edit(ItemId("nothing")), "item_not_found")
    ground.refused(edit(answer), "invalid_request")
    edited = ground.ok(edit(asked.item_id)).item_id
    assert edited is not None
    assert ground.state.items[edited].parent_id == ground.state.items[asked.item_id].parent_id, "a sibling"


def test_responding_again_answers_the_same_question(ground: Ground) -> None:
    asked = ground.say()
    assert asked.response_id is not None
    ground.answer(asked.response_id)
    again = ground.ok(cm.ResponseCreate(id=ground.name(), session=SESSION)).response_id
    assert again is not None
    assert ground.state.open[again].body.parent_id == asked.item_id


def test_the_response_behind_a_required_call_is_free_to_choose(ground: Ground) -> None:
    response_id = begun(ground, tool_choice="required")
    ground.write(response_id, CallBegin("look"), CallArguments("{}"))
    ground.finish(response_id)
    (call_id,) = ground.state.awaiting[response_id].missing
    output = cm.ToolOutput(id=ground.name(), session=SESSION, call_id=call_id, output="there")
    following = ground.ok(output).response_id
    assert following is not None
    assert ground.state.open[following].sampling.tool_choice is None
    repeat = cm.ToolOutput(id=ground.name(), session=SESSION, call_id=call_id, output="again")
    ground.refused(repeat, "call_answered")
    unknown = cm.ToolOutput(id=ground.name(), session=SESSION, call_id=CallId("c"), output="?")
    ground.refused(unknown, "call_not_found")


def test_a_cancelled_tool_turn_gets_outputs_that_say_so(ground: Ground) -> None:
    response_id = begun(ground)
    ground.write(response_id, CallBegin("look"), CallArguments("{}"))
    ground.finish(response_id)
    ground.cancel(response_id)
    event = ground.records[-1].event
    assert isinstance(event, ev.ItemCreated)
    assert (event.item.output, event.item.is_error) == ("cancelled", True)  # type: ignore[union-attr]
    assert not ground.state.awaiting
