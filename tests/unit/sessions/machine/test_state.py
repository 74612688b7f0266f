"""The fold of a log: records in order, snapshots of the right version, retractions, what a new device is shown."""

from __future__ import annotations

import msgspec
import pytest

from sessions.machine.state import STATE_VERSION, apply, empty, pack_state, replay, unpack_state
from sessions.model.journal_types import Loaded, Snapshot
from sessions.model.types import Tool
from tests.support.machine.machine_fixture import KEY, Ground


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
