"""Several responses of the log as the one that a client asked for."""

from __future__ import annotations

from typing import Any

from sessions.machine.event_writer import CallArguments, CallBegin
from sessions.machine.inputs_and_effects import ToolAnswered
from sessions.model import events as ev
from sessions.model.types import FunctionCall, Message, ResponseId, Tool
from tests.support.machine.machine_fixture import Ground
from transport.openai.continued import ContinuedAnswer, added_usage


def story() -> tuple[Ground, ResponseId]:
    """Words, a call of the server's tool, its output, and words."""
    ground = Ground()
    ground.create(tools=(Tool(name="book", server=True),))
    first = ground.say("go").response_id
    assert first is not None
    ground.text(first, "Let me see.")
    ground.write(first, CallBegin("book"), CallArguments("{}"))
    ground.finish(first)
    (call_id,) = ground.state.awaiting[first].missing
    ground.input(ToolAnswered(response_id=first, call_id=call_id, output="booked"))
    (second,) = ground.state.open
    ground.answer(second, "Done.")
    return ground, first


def shown(ground: Ground, answer: ContinuedAnswer) -> list[ev.ResponseEvent]:
    return [part for record in ground.records for part in answer.take(record.event)]


def test_it_is_one_response_numbered_through() -> None:
    ground, first = story()
    answer = ContinuedAnswer(first)
    events = shown(ground, answer)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert {event.response_id for event in events} == {first} and answer.at != first
    added = [(e.output_index, e.item.__class__.__name__) for e in events if isinstance(e, ev.OutputItemAdded)]
    assert added == [(0, "Message"), (1, "FunctionCall"), (2, "FunctionCallOutput"), (3, "Message")]
    last = events[-1]
    assert isinstance(last, ev.ResponseCompleted) and last.response.id == first and len(last.response.output) == 4
    assert last.response.usage is not None and last.response.usage["output_tokens"] == 4
    assert sum(isinstance(event, ev.ResponseCreated) for event in events) == 1


def test_who_knows_nothing_of_the_servers_tools_sees_the_words() -> None:
    ground, first = story()
    events = shown(ground, ContinuedAnswer(first, hidden=True))
    assert "".join(event.delta for event in events if isinstance(event, ev.OutputTextDelta)) == "Let me see.Done."
    assert not any(isinstance(getattr(event, "item", None), FunctionCall) for event in events)
    last = events[-1]
    assert isinstance(last, ev.ResponseCompleted)
    assert all(isinstance(item, Message) for item in last.response.output) and len(last.response.output) == 2


def test_one_without_tools_is_as_it_stands_in_the_log() -> None:
    ground = Ground()
    ground.create()
    name = ground.say().response_id
    assert name is not None
    ground.answer(name)
    mine = [r.event for r in ground.records if isinstance(r.event, ev.ResponseEvent)]
    assert shown(ground, ContinuedAnswer(name)) == mine == shown(ground, ContinuedAnswer(name, hidden=True))


def test_usage_is_added_up_with_its_cost() -> None:
    one: dict[str, Any] = {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}
    assert added_usage([one, None]) == one and added_usage([None]) is None
    assert added_usage([one, one]) == {
        "input_tokens": 6,
        "output_tokens": 4,
        "input_tokens_details": {"cached_tokens": 2},
    }
