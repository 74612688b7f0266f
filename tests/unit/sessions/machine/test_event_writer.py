"""Pieces of an answer as Responses events: which items and parts they open and close, and in which order."""

from __future__ import annotations

from sessions.machine import event_writer
from sessions.machine.event_writer import CallArguments, CallBegin, Piece, RefusalText, Text
from sessions.model import events as ev
from sessions.model.types import FunctionCall, ItemId, Message, Refusal, ResponseId
from tests.support.machine.machine_fixture import Ground


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


def kinds(events: list[ev.AnyEvent]) -> list[type]:
    return [type(event) for event in events]


def test_the_first_text_opens_an_item_and_a_part_and_later_text_only_adds() -> None:
    _, response_id, events = written(Text("a"), Text("b"))
    assert kinds(events) == [ev.OutputItemAdded, ev.ContentPartAdded, ev.OutputTextDelta, ev.OutputTextDelta]
    added = events[0]
    assert isinstance(added, ev.OutputItemAdded)
    assert added.item.id == ItemId(f"msg_{response_id.removeprefix('resp_')}_0")


def test_only_text_behind_text_takes_the_short_way_and_becomes_the_same_event() -> None:
    ground, response_id, _ = written(Text("a"))
    open_ = ground.machine.state.open[response_id]
    more = Text("b", ({"token": "b"},))
    assert event_writer.going_on(open_, (more,)) == next(event_writer.write(open_, more, open_.body.created_at))
    for pieces in ((), (more, more), (RefusalText("no"),), (CallBegin("f"),)):
        assert event_writer.going_on(open_, pieces) is None
    ground.write(response_id, CallBegin("f"))
    assert event_writer.going_on(open_, (more,)) is None, "a call is being written"


def test_a_call_closes_the_text_before_it() -> None:
    _, _, events = written(Text("a"), CallBegin("f"), CallArguments("{}"))
    assert kinds(events)[3:] == [
        ev.OutputTextDone,
        ev.ContentPartDone,
        ev.OutputItemDone,
        ev.OutputItemAdded,
        ev.ArgumentsDelta,
    ]
    done, added = events[5], events[6]
    assert isinstance(done, ev.OutputItemDone) and isinstance(added, ev.OutputItemAdded)
    assert done.item.status == "completed" and isinstance(added.item, FunctionCall)
    assert added.item.parent_id == done.item.id and added.output_index == 1


def test_a_refusal_behind_text_is_a_second_part_of_the_same_item() -> None:
    _, _, events = written(Text("a"), RefusalText("no"))
    part, delta = events[-2:]
    assert isinstance(part, ev.ContentPartAdded) and isinstance(part.part, Refusal) and part.content_index == 1
    assert isinstance(delta, ev.RefusalDelta) and delta.content_index == 1


def test_a_refusal_behind_a_call_ends_the_call_incomplete() -> None:
    _, _, events = written(CallBegin("f"), CallArguments("{"), RefusalText("no"))
    (done,) = (event for event in events if isinstance(event, ev.OutputItemDone))
    assert isinstance(done.item, FunctionCall) and done.item.status == "incomplete"
    delta = events[-1]
    assert isinstance(delta, ev.RefusalDelta) and (delta.output_index, delta.content_index) == (1, 0)


def test_closing_repeats_what_the_deltas_made() -> None:
    ground, response_id, _ = written(Text("a"), Text("b"))
    events = list(event_writer.close_drafts(ground.state.open[response_id], "incomplete"))
    assert kinds(events) == [ev.OutputTextDone, ev.ContentPartDone, ev.OutputItemDone]
    text, _, done = events
    assert isinstance(text, ev.OutputTextDone) and text.text == "ab"
    assert isinstance(done, ev.OutputItemDone) and isinstance(done.item, Message)
    assert done.item.status == "incomplete"


def test_nothing_is_closed_where_nothing_is_open() -> None:
    ground, response_id, _ = written()
    assert list(event_writer.close_drafts(ground.state.open[response_id], "completed")) == []


def test_tokens_stand_beside_the_event_that_shows_their_text() -> None:
    _, _, events = written(Text("a"), CallBegin("f"))
    for piece, carrier in ((Text("a"), ev.OutputTextDelta), (CallBegin("f"), ev.OutputItemAdded)):
        assert {type(event) for event in events if event_writer.carries(piece, event)} == {carrier}
