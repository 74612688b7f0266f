"""The fold of a log: records in order, snapshots of the right version, retractions, what a new device is shown."""

from __future__ import annotations

import msgspec
import pytest

from sessions.machine.state import STATE_VERSION, apply, empty, pack_state, replay, unpack_state
from sessions.model import events as ev
from sessions.model.journal_types import Loaded, Snapshot
from sessions.model.types import ItemId, Message, OutputText, ResponseId, Tool, UnixMs
from tests.support.machine.machine_fixture import KEY, Ground


@pytest.fixture
def ground() -> Ground:
    made = Ground()
    made.create(tools=(Tool(name="look", parameters={"type": "object"}),))
    return made


def retracted(response_id: ResponseId, item_id: ItemId, start: int, end: int) -> ev.ContentRetracted:
    return ev.ContentRetracted(
        response_id=response_id,
        item_id=item_id,
        content_index=0,
        start=start,
        end=end,
        replacement="~",
        category="c",
    )


def test_records_apply_in_order_only(ground: Ground) -> None:
    state = empty(KEY, user=None)
    with pytest.raises(AssertionError, match="does not follow"):
        apply(state, msgspec.structs.replace(ground.records[0], offset=2))
    apply(state, ground.records[0])
    assert state.top == 1 and state.info is not None


def test_a_snapshot_of_another_version_or_damaged_is_none(ground: Ground) -> None:
    packed = pack_state(ground.state)
    assert unpack_state(packed) is not None
    other = msgspec.structs.replace(ground.state, version=STATE_VERSION + 1)
    assert unpack_state(pack_state(other)) is None
    assert unpack_state(packed[:-1]) is None


def test_a_log_whose_snapshot_cannot_be_read_needs_its_beginning(ground: Ground) -> None:
    ground.say()
    records = tuple(ground.records)
    with pytest.raises(ValueError, match="left out"):
        replay(Loaded(ground.head(), Snapshot(2, b"?"), records[2:], (), True))
    with pytest.raises(ValueError, match="nothing stands behind"):  # idle, as most are
        replay(Loaded(ground.head(), Snapshot(len(records), b"?"), (), (), True))
    assert replay(Loaded(ground.head(), Snapshot(2, b"?"), records, (), True)).top == len(records)


def test_a_retraction_scrubs_a_draft_and_drops_its_ledger(ground: Ground) -> None:
    response_id = ground.say().response_id
    assert response_id is not None
    ground.text(response_id, "a secret word")
    open_ = ground.state.open[response_id]
    assert open_.tokens
    apply(
        ground.state, ev.Record(ground.state.top + 1, UnixMs(1), retracted(response_id, open_.drafts[0].item.id, 2, 8))
    )
    assert open_.drafts[0].so_far().content == (OutputText(text="a ~ word"),)  # type: ignore[union-attr]
    assert not open_.tokens and open_.tail == "a ~ word"


def test_a_retraction_scrubs_a_final_item_and_its_ledger(ground: Ground) -> None:
    response_id = ground.say().response_id
    assert response_id is not None
    ground.answer(response_id, "a secret word")
    (item_id,) = ground.state.answers[response_id].items
    apply(ground.state, ev.Record(ground.state.top + 1, UnixMs(1), retracted(response_id, item_id, 2, 8)))
    item = ground.state.items[item_id]
    assert isinstance(item, Message) and item.content == (OutputText(text="a ~ word"),)
    assert ground.state.answers[response_id].tokens == b""
