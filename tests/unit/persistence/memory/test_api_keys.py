"""API keys in memory: versions, room, and what is audited."""

from __future__ import annotations

import pytest

from persistence.memory.store import MemoryStore
from sessions.model.api_keys import KEPT_MS, ApiKey, ApiKeyRequest, make_api_key
from sessions.model.errors import Conflict, Limited
from sessions.model.types import UnixMs
from tests.support.stores.audit_tables import a_row
from tests.support.stores.journals import ACME, NOW


def a_key(number: int, *, now: int = NOW, expires_at: int | None = None) -> ApiKey:
    request = ApiKeyRequest(tenant=ACME, name=f"k{number}", scopes=("usage",), expires_at=expires_at)
    return make_api_key(request, bytes([number]) * 40, now=UnixMs(now))[0]


async def test_a_key_comes_back_as_it_was_with_the_next_version(store: MemoryStore) -> None:
    first = await store.api_keys.add(a_key(1, expires_at=NOW + 5))
    second = await store.api_keys.add(a_key(2))
    assert (first.version, second.version) == (1, 2)
    assert await store.api_keys.changes(after=0, limit=9) == [first, second]
    assert await store.api_keys.changes(after=1, limit=9) == [second] == await store.api_keys.changes(after=1, limit=1)


async def test_only_what_changes_a_key_is_audited(store: MemoryStore) -> None:
    key = await store.api_keys.add(a_key(1), audit=a_row(1))
    for at in (1, 2):
        revoked = await store.api_keys.revoke(key.id, at=UnixMs(NOW + at), audit=a_row(2))
        assert revoked is not None and revoked.revoked_at == NOW + 1
    assert await store.api_keys.revoke("unknown", at=NOW, audit=a_row(3)) is None
    with pytest.raises(Conflict):
        await store.api_keys.add(a_key(1), audit=a_row(4))
    assert len(await store.audit.rows(ACME, after=0, limit=9)) == 2


async def test_long_ended_keys_make_room_but_the_newest_stays(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.memory.api_keys.KEYS_MAX", 2)
    ended, newest = await store.api_keys.add(a_key(1, expires_at=NOW + 1)), a_key(2, expires_at=NOW + 1)
    newest = await store.api_keys.add(newest)
    with pytest.raises(Limited):
        await store.api_keys.add(a_key(3))
    added = await store.api_keys.add(a_key(4, now=NOW + KEPT_MS + 9))
    assert await store.api_keys.changes(after=0, limit=9) == [newest, added] and ended.version == 1
    assert added.version == 3
