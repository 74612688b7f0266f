"""What every tier below host memory shares: the pace of a read, and which key opens what."""

from __future__ import annotations

import time

import pytest

from inference.kv.cold_tier import PIECE_BYTES_MIN, FetchProgress, data_key_for
from inference.kv.encryption import StoredHead
from inference.kv.envelope import SnapshotRefused
from persistence.keys import MemoryKeyStore
from sessions.model.errors import Unavailable
from sessions.model.types import SessionKey
from sessions.ports import DataKey
from tests.support.engines.kv import key


def head_of(key_id: str) -> StoredHead:
    return StoredHead("t", "a", key_id, bytes(16), 10, 10)


def test_a_pace_is_known_from_the_first_bytes_on_and_pieces_grow_with_what_has_come() -> None:
    progress = FetchProgress()
    assert progress.seconds_for(100, time.monotonic()) is None and progress.piece_bytes == PIECE_BYTES_MIN
    progress.passed(1_000)
    progress.passed(PIECE_BYTES_MIN * 64)
    assert progress.first_s is not None and progress.first_bytes == 1_000
    assert PIECE_BYTES_MIN < progress.piece_bytes < 8 * PIECE_BYTES_MIN
    later_s = progress.first_s + 1.0
    pace = PIECE_BYTES_MIN * 64 + progress.piece_bytes
    assert progress.seconds_for(2 * pace, later_s) == pytest.approx(2.0)


def test_a_read_that_was_stopped_ends_at_its_next_piece() -> None:
    progress = FetchProgress()
    progress.passed(10)
    progress.stopped = True
    with pytest.raises(SnapshotRefused) as refused:
        progress.passed(10)
    assert refused.value.reason == "too_slow" and progress.num_bytes == 10


class AwayKeys(MemoryKeyStore):
    async def find(self, key: SessionKey, key_id: str) -> DataKey | None:
        raise Unavailable("keys_unavailable", "away")


async def test_a_snapshot_is_opened_by_its_own_key_or_refused_with_the_reason() -> None:
    keys = MemoryKeyStore()
    made = await keys.current(key("a"))
    assert await data_key_for(None, None) is None
    assert await data_key_for(keys, head_of(made.id)) == made
    for store, head, reason in (
        (None, head_of(made.id), "unknown_key"),
        (keys, None, "not_encrypted"),
        (keys, head_of("destroyed"), "unknown_key"),
        (AwayKeys(), head_of(made.id), "keys_away"),
    ):
        with pytest.raises(SnapshotRefused) as refused:
            await data_key_for(store, head)
        assert refused.value.reason == reason
