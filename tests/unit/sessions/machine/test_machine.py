"""A first turn never becomes a second (other repeats: `tests/golden/machine`); no log makes a ring of the item tree."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from sessions.machine import item_tree
from sessions.machine.state import State, pack_state, unpack_state
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CommandId,
    ItemId,
    SessionId,
    SessionKey,
    TenantId,
    derived_session_id,
)
from tests.support.machine import machine_fixture as grounds
from tests.support.machine.machine_fixture import Ground

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


# -- logs that were written before it was refused ----------------------------------------------------------------------


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


def with_a_ring(again: Again = asked_again) -> Ground:
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


def test_a_snapshot_of_a_version_that_could_have_a_ring_is_not_read() -> None:
    state = with_a_ring().folded()
    assert unpack_state(pack_state(state)) is not None
    assert unpack_state(pack_state(replace(state, version=1))) is None
