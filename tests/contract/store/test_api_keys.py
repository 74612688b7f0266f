"""One suite for API keys on every store: stored by hash, returned in the order of their changes, revoked for good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sessions.model.api_keys import KEPT_MS, ApiKey, ApiKeyRequest, ApiKeyStore, make_api_key, parse_key, secret_matches
from sessions.model.errors import Conflict, Limited
from sessions.model.types import Scope, UnixMs
from sessions.store import Store
from tests.support.stores.audit_tables import a_row
from tests.support.stores.journals import ACME, NOW, Bed


@pytest.fixture
def keys(store: Store) -> ApiKeyStore:
    return store.api_keys


def many(count: int, **fields: Any) -> list[ApiKey]:
    return [a_key_of(bytes([n]) * 40, **fields) for n in range(1, count + 1)]


def a_key_of(random_bytes: bytes, *, now: int = NOW, **fields: object) -> ApiKey:
    return make_api_key(ApiKeyRequest(tenant="acme", **fields), random_bytes, now=UnixMs(now))[0]  # type: ignore[arg-type]


async def test_what_is_stored_is_the_key_without_its_secret(keys: ApiKeyStore, bed: Bed) -> None:
    scopes: tuple[Scope, ...] = ("usage", "chat")
    key, written = make_api_key(
        ApiKeyRequest(tenant="acmé", role="service", scopes=scopes, name="Ünïcode 🙂", expires_at=NOW + 5),
        bytes(range(40)),
        now=NOW,
        created_by="boss",
    )
    added = await keys.add(key)
    assert added.version == 1
    (found,) = await keys.changes(after=0, limit=10)
    assert found == added and found.scopes == scopes and found.created_by == "boss"
    named, secret = parse_key(written) or ("", "")
    assert named == found.id and secret_matches(found, secret) and not secret_matches(found, secret[:-1] + "a")
    assert secret.encode() not in found.digest and secret not in repr(found)


async def test_changes_come_in_order_and_once(keys: ApiKeyStore) -> None:
    one, two, three = [await keys.add(key) for key in many(3)]
    assert [key.version for key in (one, two, three)] == [1, 2, 3]
    assert await keys.changes(after=1, limit=1) == [two]
    revoked = await keys.revoke(one.id, at=UnixMs(NOW + 7))
    assert revoked is not None and revoked.revoked_at == NOW + 7 and revoked.version == 4
    assert await keys.changes(after=2, limit=10) == [three, revoked]
    assert await keys.changes(after=4, limit=10) == []
    assert [key.id for key in await keys.changes(after=0, limit=10)] == [two.id, three.id, one.id]


async def test_revoking_again_changes_nothing(keys: ApiKeyStore) -> None:
    key = await keys.add(many(1)[0])
    first = await keys.revoke(key.id, at=UnixMs(NOW + 1))
    assert await keys.revoke(key.id, at=UnixMs(NOW + 2)) == first
    assert len(await keys.changes(after=0, limit=10)) == 1
    assert await keys.revoke("nobodyshere2", at=UnixMs(NOW)) is None


async def test_what_changes_nothing_is_not_audited(keys: ApiKeyStore, store: Store) -> None:
    key = await keys.add(many(1)[0], audit=a_row(1))
    with pytest.raises(Conflict):
        await keys.add(key, audit=a_row(2))
    for n in (3, 4):
        await keys.revoke(key.id, at=NOW, audit=a_row(n))
    await keys.revoke("unknown", at=NOW, audit=a_row(5))
    assert [row.at for row in await store.audit.rows(ACME, after=0, limit=9)] == [NOW + 1, NOW + 3]


async def test_an_id_is_given_once(keys: ApiKeyStore) -> None:
    key = await keys.add(many(1)[0])
    with pytest.raises(Conflict):
        await keys.add(key)
    assert await keys.changes(after=0, limit=10) == [key]


async def test_changes_at_the_same_time_get_places_of_their_own(keys: ApiKeyStore) -> None:
    added = await asyncio.gather(*(keys.add(key) for key in many(8)))
    await asyncio.gather(*(keys.revoke(key.id, at=NOW) for key in added[:4]))
    found = await keys.changes(after=0, limit=100)
    assert sorted(key.version for key in added) == list(range(1, 9))
    assert [key.version for key in found[4:]] == list(range(9, 13))
    assert {key.id for key in found[4:]} == {key.id for key in added[:4]}
    assert {key.id for key in found[:4]} == {key.id for key in added[4:]}


async def test_keys_outlive_the_process(bed: Bed, store: Store) -> None:
    key = await store.api_keys.add(many(1)[0])
    await store.api_keys.revoke(key.id, at=NOW)
    await store.close()
    again = await bed.open()
    try:
        (found,) = await again.api_keys.changes(after=0, limit=10)
        assert found.revoked_at == NOW and found.digest == key.digest
    finally:
        await again.close()


async def test_what_ended_long_ago_is_forgotten_and_its_place_is_not_given_again(keys: ApiKeyStore) -> None:
    ended, lasting, last = many(3, expires_at=NOW + 1)[0], *many(3)[1:]
    await keys.add(ended)
    await keys.add(lasting)
    later = UnixMs(NOW + KEPT_MS + 10)
    added = await keys.add(a_key_of(bytes([9]) * 40, now=later))
    assert [key.id for key in await keys.changes(after=0, limit=10)] == [lasting.id, added.id]
    assert (await keys.add(last)).version == 4


async def test_there_are_not_more_keys_than_a_process_can_hold(
    keys: ApiKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for driver in ("memory", "sql"):
        monkeypatch.setattr(f"persistence.{driver}.api_keys.KEYS_MAX", 2)
    one, two, three = many(3)
    await keys.add(one)
    await keys.add(two)
    with pytest.raises(Limited):
        await keys.add(three)
    assert len(await keys.changes(after=0, limit=10)) == 2
