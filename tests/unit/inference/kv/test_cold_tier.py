"""What every tier below host memory shares: the pace of a read, and which key opens what."""

from __future__ import annotations

import pytest

from inference.kv.cold_tier import data_key_for
from inference.kv.encryption import StoredHead
from inference.kv.envelope import SnapshotRefused
from persistence.keys import MemoryKeyStore
from sessions.model.errors import Unavailable
from sessions.model.types import SessionKey
from sessions.ports import DataKey
from tests.support.engines.kv import key


def head_of(key_id: str) -> StoredHead:
    return StoredHead("t", "a", key_id, bytes(16), 10, 10)


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
