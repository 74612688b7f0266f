"""Pieces of an answer as Responses events: which items and parts they open and close, and in which order."""

from __future__ import annotations

from sessions.machine import event_writer
from sessions.machine.event_writer import CallBegin, Piece, RefusalText, Text
from sessions.model import events as ev
from sessions.model.types import ResponseId
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


def test_only_text_behind_text_takes_the_short_way_and_becomes_the_same_event() -> None:
    ground, response_id, _ = written(Text("a"))
    open_ = ground.machine.state.open[response_id]
    more = Text("b", ({"token": "b"},))
    assert event_writer.going_on(open_, (more,)) == next(event_writer.write(open_, more, open_.body.created_at))
    for pieces in ((), (more, more), (RefusalText("no"),), (CallBegin("f"),)):
        assert event_writer.going_on(open_, pieces) is None
    ground.write(response_id, CallBegin("f"))
    assert event_writer.going_on(open_, (more,)) is None, "a call is being written"
