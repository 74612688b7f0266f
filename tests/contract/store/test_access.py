"""API keys, links of shared sessions, revoked tokens, keys of servers, on every store."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from persistence.keys import MemoryKeyStore, SqliteKeyStore
from persistence.master_key import KEY_BYTES, MasterKey
from persistence.postgres.keys import PostgresKeyStore
from sessions.model.api_keys import KEPT_MS, ApiKey, ApiKeyRequest, ApiKeyStore, make_api_key, parse_key, secret_matches
from sessions.model.audit import INSTALLATION, Audited, public
from sessions.model.errors import Conflict, Limited, NotFound, Unauthorized
from sessions.model.journal_types import Due
from sessions.model.revocations import Revocation, RevocationStore
from sessions.model.shares import ShareId, ShareLink, ShareStore, token_hash_of
from sessions.model.types import ItemId, Scope, SessionId, SessionKey, TenantId, TokenRef, UnixMs
from sessions.store import Store
from tests.support.stores.audit_tables import a_row
from tests.support.stores.journals import ACME, NOW, Bed, a_log, an_append, key, patch, postgres, purge, reopened
from transport.auth.revocation_cache import RevocationCache


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
    async with reopened(bed, store) as again:
        (found,) = await again.api_keys.changes(after=0, limit=10)
        assert found.revoked_at == NOW and found.digest == key.digest


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
    monkeypatch.setattr("persistence.sql.api_keys.KEYS_MAX", 2)
    one, two, three = many(3)
    await keys.add(one)
    await keys.add(two)
    with pytest.raises(Limited):
        await keys.add(three)
    assert len(await keys.changes(after=0, limit=10)) == 2


ROW = Audited(action="session.shared", at=NOW, detail={"share": "x"})


@pytest.fixture
def shares(store: Store) -> ShareStore:
    return store.shares


def a_share(name: str, session: str = "s", *, tenant: str = ACME, **more: Any) -> ShareLink:
    given = {"item_id": ItemId("msg_ünï"), "offset": 7, "created_at": NOW, "created_by": "app/ana 🙂", **more}
    return ShareLink(id=ShareId(name), key=key(session, tenant), token_hash=token_hash_of(name), **given)


async def test_a_share_is_found_by_its_token_alone(store: Store, shares: ShareStore) -> None:
    for tenant in (ACME, "beta"):
        await a_log(store.journal, "s", 2, tenant=tenant)
    mine, later = a_share("a"), a_share("b", created_at=UnixMs(NOW + 1))
    for each in (mine, later, a_share("c", tenant="beta")):
        await shares.add(each, ROW)
    assert await shares.find(token_hash_of("a")) == mine
    assert await shares.find(token_hash_of("d")) is None
    assert await shares.of_session(key("s")) == [later, mine]
    assert await shares.of_session(key("t")) == []


async def test_a_revoked_share_is_removed_and_both_changes_are_audited(store: Store, shares: ShareStore) -> None:
    await a_log(store.journal, "s", 2)
    await shares.add(a_share("a"), ROW)
    ended = Audited(action="session.unshared", at=NOW)
    assert not await shares.remove(key("t"), ShareId("a"), ended)
    assert not await shares.remove(key("s", "beta"), ShareId("a"), ended)
    assert await shares.remove(key("s"), ShareId("a"), ended)
    assert not await shares.remove(key("s"), ShareId("a"), ended)
    assert await shares.find(token_hash_of("a")) is None
    rows = await store.audit.rows(ACME, after=0, limit=9)
    assert [public(row)["action"] for row in rows] == ["session.shared", "session.unshared"]


async def test_the_shares_of_a_session_are_bounded(
    store: Store, shares: ShareStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.sql.shares.SHARES_MAX", 2)
    for session in ("s", "t"):
        await a_log(store.journal, session, 2)
    for name in ("a", "b"):
        await shares.add(a_share(name), ROW)
    with pytest.raises(Limited):
        await shares.add(a_share("c"), ROW)
    await shares.add(a_share("d", "t"), ROW)
    assert len(await store.audit.rows(ACME, after=0, limit=9)) == 3


async def test_nothing_is_shared_of_a_session_that_is_deleted_or_never_was(store: Store, shares: ShareStore) -> None:
    await a_log(store.journal, "s", 2, head=patch(deleted_at=NOW))
    for session in ("s", "nothing"):
        with pytest.raises(NotFound):
            await shares.add(a_share("a", session), ROW)
    assert await shares.find(token_hash_of("a")) is None


async def test_shares_are_purged_with_their_session_and_survive_a_restart(store: Store, bed: Bed) -> None:
    for session in ("s", "t"):
        await a_log(store.journal, session, 2)
        await store.shares.add(a_share(session, session), ROW)
    async with reopened(bed, store) as again:
        assert await again.shares.find(token_hash_of("t")) == a_share("t", "t")
        head = await again.journal.head(key("s"))
        assert head is not None
        await again.journal.append(an_append(head, 1, head=patch(deleted_at=NOW)))
        due = Due(deleted_before=UnixMs(NOW + 1))
        assert await purge(again.journal, due, commands_before=UnixMs(0), limit=9) == [key("s")]
        assert await again.shares.find(token_hash_of("s")) is None
        assert await again.shares.find(token_hash_of("t")) is not None


ISSUER = "https://login.example"


@pytest.fixture
def revocations(store: Store) -> RevocationStore:
    return store.revocations


def a_revocation(name: str, *, at: int = NOW, lasts: int = 1000, **fields: Any) -> Revocation:
    values: dict[str, Any] = {"issuer": ISSUER, "kind": "token", "by": "boss", **fields}
    return Revocation(name=name, at=UnixMs(at), expires_at=UnixMs(at + lasts), **values)


async def test_changes_of_revocations_come_in_order_and_once(revocations: RevocationStore) -> None:
    one, two, subject = [
        await revocations.add(each)
        for each in (a_revocation("jti-ünï 🙂"), a_revocation("t2"), a_revocation("t2", kind="subject"))
    ]
    assert [each.version for each in (one, two, subject)] == [1, 2, 3]
    assert await revocations.changes(after=0, limit=10) == [one, two, subject]
    assert await revocations.changes(after=1, limit=1) == [two]
    assert await revocations.changes(after=3, limit=10) == []


async def test_the_same_again_never_shortens_what_is_there(revocations: RevocationStore) -> None:
    first = await revocations.add(a_revocation("s", kind="subject", at=NOW + 5, lasts=1000))
    again = await revocations.add(a_revocation("s", kind="subject", at=NOW, lasts=10, by=""))
    assert (again.at, again.expires_at, again.version) == (first.at, first.expires_at, 2)
    longer = await revocations.add(a_revocation("s", kind="subject", at=NOW + 9, lasts=9000))
    assert (longer.at, longer.expires_at) == (NOW + 9, NOW + 9009)
    assert await revocations.changes(after=0, limit=10) == [longer]


async def test_what_has_expired_is_forgotten_but_never_the_newest(revocations: RevocationStore) -> None:
    await revocations.add(a_revocation("old", lasts=10))
    newest = await revocations.add(a_revocation("new", lasts=10))
    later = await revocations.add(a_revocation("later", at=NOW + 5000))
    assert await revocations.changes(after=0, limit=10) == [newest, later]
    assert later.version == 3


async def test_what_one_gateway_revoked_another_refuses_when_it_has_read(revocations: RevocationStore) -> None:
    one, other = (RevocationCache(revocations, lambda: NOW, lambda: 0.0) for _ in range(2))
    session = TokenRef(ISSUER, "ana", "session-1", NOW)
    for cache in (one, other):
        await cache.refresh()
        cache.check(session)
    audit = Audited(action="user.signed_out", at=NOW, by=None, user="ana", detail={})
    await one.add(a_revocation("session-1"), audit, TenantId("acme"))
    with pytest.raises(Unauthorized):
        one.check(session)
    other.check(session)
    await other.refresh()
    with pytest.raises(Unauthorized):
        other.check(session)


async def test_revocations_are_bounded(revocations: RevocationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.sql.revocations.REVOCATIONS_MAX", 2)
    for name in ("a", "b", "b"):
        await revocations.add(a_revocation(name))
    with pytest.raises(Limited):
        await revocations.add(a_revocation("c"))


async def test_it_is_written_down_with_it_and_survives_a_restart(store: Store, bed: Bed) -> None:
    row = Audited(action="token.revoked", at=NOW, detail={"kind": "token"})
    added = await store.revocations.add(a_revocation("t"), audit=row, tenant=INSTALLATION)
    rows = await store.audit.rows(INSTALLATION, after=0, limit=10)
    assert [msgspec.json.decode(each.body)["action"] for each in rows] == ["token.revoked"]
    async with reopened(bed, store) as again:
        assert await again.revocations.changes(after=0, limit=10) == [added]


MASTER = MasterKey(bytes(range(KEY_BYTES)))
OTHER = MasterKey(bytes(KEY_BYTES))
OpenKeyStore = MemoryKeyStore | SqliteKeyStore | PostgresKeyStore
Open = Callable[..., Awaitable[Any]]
_numbers = itertools.count()


def session_key(session: str, tenant: str = "t") -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(session))


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.cluster)])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the one store of this test, again and again; the memory one is the same object each time."""
    opened: list[OpenKeyStore] = []
    memory, schema = MemoryKeyStore(), f"keys_{next(_numbers)}"

    async def open_(master: MasterKey = MASTER) -> OpenKeyStore:
        store: OpenKeyStore
        match request.param:
            case "memory":
                store = memory
            case "sqlite":
                store = SqliteKeyStore(tmp_path / "keys.db", master)
            case _:
                store = PostgresKeyStore(postgres().dsn, master, schema=schema)
        await store.open()
        opened.append(store)
        return store

    open_.kind = request.param  # type: ignore[attr-defined]
    yield open_
    for store in opened:
        await store.close()


async def test_each_session_has_a_key_of_its_own_that_stays(reopen: Open) -> None:
    store = await reopen()
    one = await store.current(session_key("a"))
    assert len(one.secret) == 32 and one.secret.hex() not in repr(one)
    assert await store.current(session_key("a")) == one
    others = [await store.current(session_key("b")), await store.current(session_key("a", tenant="u"))]
    assert len({one.secret, *(other.secret for other in others)}) == 3
    assert await store.find(session_key("a"), one.id) == one
    assert await store.find(session_key("b"), one.id) is None and await store.find(session_key("c"), one.id) is None
    again = await reopen()
    assert await again.find(session_key("a"), one.id) == one and await again.current(session_key("a")) == one


async def test_a_destroyed_key_is_gone_and_its_session_gets_another(reopen: Open) -> None:
    store = await reopen()
    one = await store.current(session_key("a"))
    kept = await store.current(session_key("b"))
    await store.destroy(session_key("a"))
    await store.destroy(session_key("a"))
    assert await store.find(session_key("a"), one.id) is None
    new = await store.current(session_key("a"))
    assert new.id != one.id and new.secret != one.secret and await store.find(session_key("a"), one.id) is None
    assert await store.find(session_key("b"), kept.id) == kept


async def test_many_ask_at_once_and_get_one_key(reopen: Open) -> None:
    store = await reopen()
    keys = await asyncio.gather(*(store.current(session_key("a")) for _ in range(20)))
    assert len({found.id for found in keys}) == 1


async def test_a_call_that_was_cancelled_leaves_the_store_in_order(reopen: Open) -> None:
    store = await reopen()
    for number in range(20):
        task = asyncio.create_task(store.current(session_key(f"s{number}")))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        found = await store.current(session_key(f"s{number}"))
        assert await store.find(session_key(f"s{number}"), found.id) == found


async def test_another_master_reads_nothing_and_gets_keys_of_its_own(reopen: Open) -> None:
    if reopen.kind == "memory":  # type: ignore[attr-defined]
        return  # knows no masters: nothing of it is ever written
    one = await (await reopen()).current(session_key("a"))
    stranger = await reopen(OTHER)
    assert await stranger.find(session_key("a"), one.id) is None
    assert (await stranger.current(session_key("a"))).id != one.id
    first = await reopen()
    assert await first.find(session_key("a"), one.id) == one
    await stranger.destroy(session_key("a"))  # a purge is everybody's
    assert await first.find(session_key("a"), one.id) is None
