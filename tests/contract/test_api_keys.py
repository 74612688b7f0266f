"""One suite for API keys on every journal: stored by hash, told in the order of their changes, revoked for good."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from persistence import api_keys_of
from sessions.model import api_keys as ak
from sessions.model.api_keys import KEPT_MS, ApiKey, ApiKeyRequest, make_api_key, parse_key, secret_matches
from sessions.model.errors import Conflict, Limited
from sessions.model.types import Scope, UnixMs
from sessions.ports import Journal
from tests.support.journals import NOW, Bed

Store = ak.ApiKeyStore


@pytest.fixture
def store(journal: Journal) -> Store:
    return api_keys_of(cast(Any, journal))


def many(count: int, **fields: Any) -> list[ApiKey]:
    return [a_key_of(bytes([n]) * 40, **fields) for n in range(1, count + 1)]


def a_key_of(random_bytes: bytes, *, now: int = NOW, **fields: object) -> ApiKey:
    return make_api_key(ApiKeyRequest(tenant="acme", **fields), random_bytes, now=UnixMs(now))[0]  # type: ignore[arg-type]


async def test_what_is_stored_is_the_key_without_its_secret(store: Store, bed: Bed) -> None:
    scopes: tuple[Scope, ...] = ("usage", "chat")
    key, written = make_api_key(
        ApiKeyRequest(tenant="acmé", role="service", scopes=scopes, name="Ünïcode 🙂", expires_at=NOW + 5),
        bytes(range(40)),
        now=NOW,
        created_by="boss",
    )
    added = await store.add(key)
    assert added.version == 1
    (found,) = await store.changes(after=0, limit=10)
    assert found == added and found.scopes == scopes and found.created_by == "boss"
    named, secret = parse_key(written) or ("", "")
    assert named == found.id and secret_matches(found, secret) and not secret_matches(found, secret[:-1] + "a")
    assert secret.encode() not in found.digest and secret not in repr(found)


async def test_changes_come_in_order_and_once(store: Store) -> None:
    one, two, three = [await store.add(key) for key in many(3)]
    assert [key.version for key in (one, two, three)] == [1, 2, 3]
    assert await store.changes(after=1, limit=1) == [two]
    revoked = await store.revoke(one.id, at=UnixMs(NOW + 7))
    assert revoked is not None and revoked.revoked_at == NOW + 7 and revoked.version == 4
    assert await store.changes(after=2, limit=10) == [three, revoked]
    assert await store.changes(after=4, limit=10) == []
    assert [key.id for key in await store.changes(after=0, limit=10)] == [two.id, three.id, one.id]


async def test_revoking_again_changes_nothing(store: Store) -> None:
    key = await store.add(many(1)[0])
    first = await store.revoke(key.id, at=UnixMs(NOW + 1))
    assert await store.revoke(key.id, at=UnixMs(NOW + 2)) == first
    assert len(await store.changes(after=0, limit=10)) == 1
    assert await store.revoke("nobodyshere2", at=UnixMs(NOW)) is None


async def test_an_id_is_given_once(store: Store) -> None:
    key = await store.add(many(1)[0])
    with pytest.raises(Conflict):
        await store.add(key)
    assert await store.changes(after=0, limit=10) == [key]


async def test_changes_at_the_same_time_get_places_of_their_own(store: Store) -> None:
    keys = await asyncio.gather(*(store.add(key) for key in many(8)))
    await asyncio.gather(*(store.revoke(key.id, at=NOW) for key in keys[:4]))
    found = await store.changes(after=0, limit=100)
    assert sorted(key.version for key in keys) == list(range(1, 9))
    assert [key.version for key in found[4:]] == list(range(9, 13))
    assert {key.id for key in found[4:]} == {key.id for key in keys[:4]}
    assert {key.id for key in found[:4]} == {key.id for key in keys[4:]}


async def test_keys_outlive_the_process(bed: Bed, journal: Journal) -> None:
    key = await api_keys_of(cast(Any, journal)).add(many(1)[0])
    await api_keys_of(cast(Any, journal)).revoke(key.id, at=NOW)
    await journal.close()
    again = await bed.open()
    try:
        (found,) = await api_keys_of(cast(Any, again)).changes(after=0, limit=10)
        assert found.revoked_at == NOW and found.digest == key.digest
    finally:
        await again.close()


async def test_what_ended_long_ago_is_forgotten_and_its_place_is_not_given_again(store: Store) -> None:
    ended, lasting, last = many(3, expires_at=NOW + 1)[0], *many(3)[1:]
    await store.add(ended)
    await store.add(lasting)
    later = UnixMs(NOW + KEPT_MS + 10)
    added = await store.add(a_key_of(bytes([9]) * 40, now=later))
    assert [key.id for key in await store.changes(after=0, limit=10)] == [lasting.id, added.id]
    assert (await store.add(last)).version == 4


async def test_there_are_not_more_keys_than_a_process_can_hold(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.api_keys.KEYS_MAX", 2)
    one, two, three = many(3)
    await store.add(one)
    await store.add(two)
    with pytest.raises(Limited):
        await store.add(three)
    assert len(await store.changes(after=0, limit=10)) == 2
