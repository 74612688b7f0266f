"""Compaction in the machine: what a summary holds for, what takes it back, and when it is too late for one."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.machine import compaction, event_writer, inputs_and_effects, item_tree
from sessions.machine.client_state import client_state
from sessions.machine.state import State, apply, empty
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import Internal, SessileError
from sessions.model.types import LOCAL_PRINCIPAL, ItemId, ResponseId, Usage
from tests.support.machine.machine_fixture import KEY, SESSION, Ground
from transport.protocol.retraction import BLOT, Scrubber


@pytest.fixture
def ground() -> Ground:
    made = Ground()
    made.create()
    for _ in range(3):
        answered(made)
    return made


def answered(ground: Ground) -> ResponseId:
    response_id = ground.say().response_id
    assert response_id is not None
    ground.write(response_id, event_writer.Text("an answer"))
    ground.finish(response_id)
    return response_id


def do(ground: Ground, kind: Any, **fields: Any) -> cm.Ok | SessileError:
    command = kind(id=ground.name(), session=SESSION, **fields)
    answer = ground.input(inputs_and_effects.Command(LOCAL_PRINCIPAL, command, cm.command_digest(command))).answer
    assert answer is not None
    return answer


def written(ground: Ground, *, items: int = 2, at: int | None = None, read: ItemId | None = None) -> ItemId | None:
    """Writes a summary; its id, if it came into force."""
    name = ItemId(f"cmp_{ground.state.top}")
    newest = read or ground.state.newest
    assert newest is not None
    ground.input(
        inputs_and_effects.CompactionWritten(
            compaction_id=name,
            at=ground.state.top if at is None else at,
            items=items,
            read=newest,
            text="a secret summary",
            model="m",
            prepared=inputs_and_effects.Prepared(b"", ""),
            tokens_before=100,
            tokens_after=40,
            usage=Usage(100, 10, 90),
            cause="limit",
        )
    )
    return name if name in ground.state.compactions else None


def test_one_that_comes_too_late_is_nothing(ground: Ground) -> None:
    top = ground.state.top
    first = item_tree.branch(ground.state, ground.state.newest)[0]
    ground.say()
    assert written(ground, at=top) is None  # an answer has begun
    ground.finish(next(iter(ground.state.open)))
    assert written(ground, at=top) is not None
    do(ground, cm.ItemDelete, item_id=first.id)
    assert written(ground, at=top) is None  # it has read what was taken back
    assert written(ground, items=99) is None and written(ground, items=0) is None


@pytest.mark.parametrize("how", ["item", "answer", "read behind what it stands for", "undone before"])
def test_what_it_has_read_takes_it_back_words_and_all(ground: Ground, how: str) -> None:
    name = written(ground)
    if how == "undone before":
        do(ground, cm.CompactionUndo)
    path = item_tree.branch(ground.state, ground.state.newest)
    if how == "answer":
        do(ground, cm.ResponseErase, response_id=ground.state.made_by[path[1].id])
    else:
        do(ground, cm.ItemDelete, item_id=path[-1 if how.startswith("read") else 0].id)
    assert not ground.state.compactions and name is not None
    taken = [r for r in ground.records if isinstance(r.event, ev.ContentRetracted)]
    assert name in [record.event.item_id for record in taken]  # type: ignore[union-attr]
    scrubber = Scrubber([(record.offset, record.event) for record in taken])  # type: ignore[misc]
    shown = [scrubber.scrub(record).event for record in ground.records]
    (compacted,) = [event for event in shown if isinstance(event, ev.ContextCompacted)]
    assert set(compacted.summary.text) == {BLOT}
    state: State = empty(KEY, user=None)
    for record in ground.records:
        apply(state, record)
    assert state == ground.state


def test_undo_names_one_or_means_the_newest_in_force(ground: Ground) -> None:
    refused = do(ground, cm.CompactionUndo)
    assert isinstance(refused, SessileError) and refused.code == "compaction_not_found"
    name = written(ground)
    ground.say()
    busy = do(ground, cm.CompactionUndo)
    assert isinstance(busy, SessileError) and busy.code == "response_in_progress" and busy.retryable
    ground.finish(next(iter(ground.state.open)))
    done = do(ground, cm.CompactionUndo, compaction_id=name)
    assert isinstance(done, cm.Ok) and done.compaction_id == name and not ground.state.compactions


def test_a_request_has_an_effect_and_its_failure_is_in_the_log(ground: Ground) -> None:
    command = cm.SessionCompact(id=ground.name(), session=SESSION, keep_turns=2)
    step = ground.input(inputs_and_effects.Command(LOCAL_PRINCIPAL, command, cm.command_digest(command)))
    assert isinstance(step.answer, cm.Ok) and step.answer.compaction_id is not None
    name = step.answer.compaction_id
    assert step.effects == [inputs_and_effects.Compact(name, LOCAL_PRINCIPAL, 2, None)]
    ground.input(inputs_and_effects.CompactionGivenUp(name, Internal("compaction_failed", "Nothing came.")))
    event = ground.records[-1].event
    assert event == ev.CompactionFailed(
        compaction_id=name, error={"code": "compaction_failed", "message": "Nothing came."}
    )
    nowhere = do(ground, cm.SessionCompact, item_id=ItemId("msg_none"))
    assert isinstance(nowhere, SessileError) and nowhere.code == "item_not_found"


def test_items_are_pinned_and_let_go(ground: Ground) -> None:
    item = item_tree.branch(ground.state, ground.state.newest)[0]
    assert isinstance(do(ground, cm.ItemPin, item_id=item.id), cm.Ok)
    again = do(ground, cm.ItemPin, item_id=item.id)
    assert isinstance(again, cm.Ok) and again.noop
    assert ground.state.pinned == [item.id] == client_state(ground.state)["pinned"]
    do(ground, cm.ItemPin, item_id=item.id, pinned=False)
    assert ground.state.pinned == [] and "pinned" not in client_state(ground.state)
    do(ground, cm.ItemPin, item_id=item.id)
    do(ground, cm.ItemDelete, item_id=item.id)
    assert ground.state.pinned == []
    refused = do(ground, cm.ItemPin, item_id=item.id)
    assert isinstance(refused, SessileError) and refused.code == "item_not_found"


def test_pins_are_bounded(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "PINNED_MAX", 1)
    first, second, *_ = item_tree.branch(ground.state, ground.state.newest)
    do(ground, cm.ItemPin, item_id=first.id)
    refused = do(ground, cm.ItemPin, item_id=second.id)
    assert isinstance(refused, SessileError) and refused.code == "too_many_pins"
