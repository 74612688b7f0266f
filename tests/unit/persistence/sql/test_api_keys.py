"""API keys in SQL: each column comes back, and what is audited stands in the same transaction."""

from __future__ import annotations

from typing import Any

import pytest

from persistence.sqlite.store import SqliteStore
from sessions.model.api_keys import ApiKey, ApiKeyRequest, make_api_key
from sessions.model.errors import Conflict
from sessions.model.types import UnixMs
from tests.support.stores.audit_tables import a_row
from tests.support.stores.journals import ACME, NOW


def a_key(number: int = 1, **fields: Any) -> ApiKey:
    return make_api_key(ApiKeyRequest(tenant=ACME, **fields), bytes([number]) * 40, now=NOW)[0]


@pytest.mark.parametrize(
    "fields",
    [{}, {"user": "ü"}, {"role": "service", "scopes": ("chat", "usage")}, {"name": "n", "expires_at": NOW + 1}],
)
async def test_every_column_comes_back(store: SqliteStore, fields: dict[str, Any]) -> None:
    added = await store.api_keys.add(a_key(**fields))
    assert await store.api_keys.changes(after=0, limit=9) == [added]
    revoked = await store.api_keys.revoke(added.id, at=UnixMs(NOW + 1))
    assert await store.api_keys.changes(after=added.version, limit=9) == [revoked]


async def test_what_changes_nothing_is_not_audited(store: SqliteStore) -> None:
    key = await store.api_keys.add(a_key(), audit=a_row(1))
    with pytest.raises(Conflict):
        await store.api_keys.add(a_key(), audit=a_row(2))
    await store.api_keys.revoke(key.id, at=NOW, audit=a_row(3))
    again = await store.api_keys.revoke(key.id, at=UnixMs(NOW + 9), audit=a_row(4))
    assert again is not None and again.revoked_at == NOW
    assert await store.api_keys.revoke("unknown", at=NOW, audit=a_row(5)) is None
    assert [row.at for row in await store.audit.rows(ACME, after=0, limit=9)] == [NOW + 1, NOW + 3]
