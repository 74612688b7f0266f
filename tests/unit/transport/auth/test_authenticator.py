"""Keys, tickets and revocations: who is let in, how soon nobody is any more, and how often one may be wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from persistence.memory.database import MemoryDatabase
from persistence.sql.api_keys import SqlApiKeys
from persistence.sql.revocations import SqlRevocations
from sessions.model.api_keys import ApiKey, ApiKeyRequest
from sessions.model.audit import INSTALLATION
from sessions.model.errors import Limited, SessileError, Unauthorized, Unavailable
from sessions.model.revocations import Revocation, make_revocation, revocation_audit
from sessions.model.types import Principal, TenantId, TokenRef, UnixMs
from tests.support.virtual_time import advance, virtual
from transport.auth import tickets
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.auth_throttle import AuthThrottle, AuthThrottleLimits
from transport.auth.authenticator import Authenticator, Issuance, key_digest
from transport.auth.revocation_cache import RevocationCache
from transport.auth.store_follower import POLL_S, READ_S, STALE_S, StoreFollower

ALICE = Principal(tenant=TenantId("acme"), key_id="k1", user="alice")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def guarded(clock: Clock | None = None, **options: Any) -> Authenticator:
    return Authenticator({key_digest("sk-good"): ALICE}, clock=clock or Clock(), now_ms=lambda: UnixMs(0), **options)


def test_a_key_is_its_principal_and_everything_else_is_nobody() -> None:
    door = guarded()
    assert door.authenticate("sk-good") == ALICE
    for wrong in (
        None,
        "",
        "sk-goo",
        "SK-GOOD",
        key_digest("sk-good"),
        "x" * 1_000_000,
        "sk-g\N{CYRILLIC SMALL LETTER O}od",
    ):
        with pytest.raises(Unauthorized) as caught:
            door.authenticate(wrong)
        assert caught.value.code == "unauthorized"


async def test_a_ticket_is_good_once_and_for_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    door = guarded(clock)
    first, second, third = [await door.issue_ticket(ALICE) for _ in range(3)]
    assert len({first, second, third}) == 3
    assert await door.redeem_ticket(first) == ALICE
    for used in (first, "tkt_made_up", ""):
        with pytest.raises(Unauthorized):
            await door.redeem_ticket(used)
    clock.now += 29.9
    assert await door.redeem_ticket(second) == ALICE
    clock.now += 0.1
    with pytest.raises(Unauthorized):
        await door.redeem_ticket(third)
    monkeypatch.setattr(tickets, "TICKETS_MAX", 2)
    await door.issue_ticket(ALICE)
    await door.issue_ticket(ALICE)
    with pytest.raises(Limited) as caught:
        await door.issue_ticket(ALICE)
    assert caught.value.retry_after_ms == 30_000
    clock.now += 31
    assert await door.issue_ticket(ALICE)


NOW = UnixMs(1_750_000_000_000)


class Store(SqlApiKeys):
    """One that can be away, or silent."""

    away = False
    silent = False

    async def changes(self, *, after: int, limit: int) -> list[ApiKey]:
        if self.silent:
            await asyncio.Event().wait()
        if self.away:
            raise Unavailable("journal_away", "away")
        return await super().changes(after=after, limit=limit)


class World:
    """Two processes on one store, under virtual time that began at `NOW`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.memory = MemoryDatabase()
        self.stores: list[Store] = []
        self.incarnation = "one"

    def now_ms(self) -> UnixMs:
        return UnixMs(NOW + round((self.loop.time() - self.began) * 1000))

    def process(self) -> tuple[ApiKeyCache, Authenticator]:
        store = Store(self.memory)
        self.stores.append(store)
        ring = ApiKeyCache(store, now_ms=self.now_ms, clock=self.loop.time, incarnation=lambda: self.incarnation)
        return ring, Authenticator({}, clock=self.loop.time, ring=ring, now_ms=self.now_ms)


class Ear:
    def __init__(self) -> None:
        self.heard: list[SessileError] = []
        self.event = asyncio.Event()

    def __call__(self, error: SessileError) -> None:
        self.heard.append(error)
        self.event.set()


def refused(access: Authenticator, credential: str | None) -> str:
    with pytest.raises(SessileError) as caught:
        access.authenticate(credential)
    return caught.value.public_message


@virtual
async def test_a_key_is_its_principal_and_near_misses_are_nobody() -> None:
    world = World()
    ring, access = world.process()
    await ring.refresh()
    key, written = await ring.create(ApiKeyRequest(tenant="acme", user="ana"), created_by="boss")
    assert access.authenticate(written) == key.principal == Principal("acme", key.id, "ana", "user")  # type: ignore[arg-type]
    other, _ = await ring.create(ApiKeyRequest(tenant="acme"), created_by="boss")
    wrong = [written[:-1] + ("a" if written[-1] != "a" else "b"), written.replace(key.id, other.id)]
    messages = {refused(access, each) for each in (*wrong, written.replace(key.id, "2" * 12), written.upper(), "")}
    assert messages == {"This key is not known here."}


@virtual
async def test_a_revocation_ends_the_key_here_at_once_and_elsewhere_within_a_poll() -> None:
    world = World()
    (here, access_here), (there, access_there) = world.process(), world.process()
    await here.refresh()
    key, written = await here.create(ApiKeyRequest(tenant="acme"), created_by="")
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(ring.run()) for ring in (here, there)]
        await advance(POLL_S + 0.01)  # the other process has heard of the key
        principal = access_there.authenticate(written)
        near, far = Ear(), Ear()
        access_here.watch(access_here.authenticate(written), near)
        access_there.watch(principal, far)
        await here.revoke(key.id, revoked_by="boss")
        revoked_at = world.loop.time()
        assert [error.public_message for error in near.heard] == ["This key was revoked."]
        assert refused(access_here, written) == "This key was revoked."
        await far.event.wait()
        assert world.loop.time() - revoked_at <= POLL_S + 0.01
        assert refused(access_there, written) == "This key was revoked."
        with pytest.raises(Unauthorized):
            access_there.verify(principal)
        with pytest.raises(Unauthorized):
            access_there.watch(principal, far)
        for task in running:
            task.cancel()
    assert len(far.heard) == len(near.heard) == 1


@pytest.mark.parametrize("how", ["away", "silent"])
@virtual
async def test_keys_that_cannot_be_checked_for_long_let_nobody_in(how: str) -> None:
    world = World()
    ring, access = world.process()
    with pytest.raises(Unavailable, match="Keys cannot be checked"):
        ring.check_fresh()
    setattr(world.stores[0], how, True)
    with pytest.raises(Unavailable):
        await ring.refresh()
    assert world.loop.time() - world.began == pytest.approx(READ_S if how == "silent" else 0.0)
    setattr(world.stores[0], how, False)
    await ring.refresh()
    _, written = await ring.create(ApiKeyRequest(tenant="acme"), created_by="")
    principal, ear = access.authenticate(written), Ear()
    access.watch(principal, ear)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(ring.run())
        await advance(5 * POLL_S)
        setattr(world.stores[0], how, True)
        cut_at = world.loop.time()
        await advance(POLL_S)
        assert access.authenticate(written) == principal  # a journal that is away for a moment changes nothing
        await ear.event.wait()
        assert STALE_S - POLL_S <= world.loop.time() - cut_at <= STALE_S + POLL_S + READ_S
        assert ear.heard[0].retryable and isinstance(ear.heard[0], Unavailable)
        for refused_now in (lambda: access.authenticate(written), lambda: access.verify(principal)):
            with pytest.raises(Unavailable):
                refused_now()
        setattr(world.stores[0], how, False)
        await advance(POLL_S + READ_S + 0.1)
        assert access.authenticate(written) == principal
        running.cancel()


@virtual
async def test_a_key_expires_while_it_is_used() -> None:
    world = World()
    ring, access = world.process()
    await ring.refresh()
    _, written = await ring.create(ApiKeyRequest(tenant="acme", expires_at=NOW + 3000), created_by="")
    principal, ear, left = access.authenticate(written), Ear(), Ear()
    access.watch(principal, ear)
    access.watch(principal, left)()
    ticket = await access.issue_ticket(principal)
    await ear.event.wait()
    assert world.now_ms() == NOW + 3000
    await ring.refresh()
    assert ear.heard[0].code == "unauthorized" and left.heard == []
    assert refused(access, written) == "This key has expired."
    with pytest.raises(Unauthorized):
        access.verify(principal)
    with pytest.raises(Unauthorized):
        await access.redeem_ticket(ticket)


@virtual
async def test_a_restored_backup_is_what_is_true_now() -> None:
    world = World()
    ring, access = world.process()
    await ring.refresh()
    _, kept = await ring.create(ApiKeyRequest(tenant="acme"), created_by="")
    backup = world.memory.backup()
    _, lost = await ring.create(ApiKeyRequest(tenant="acme"), created_by="")
    ear = Ear()
    access.watch(access.authenticate(lost), ear)
    world.memory.restore(backup)
    world.incarnation = "two"
    await ring.refresh()
    assert access.authenticate(kept) and len(ear.heard) == 1
    assert refused(access, lost) == "This key is not known here."


LIMITS = AuthThrottleLimits(failures=3, refill_s=2.0, addresses_max=4)


def limited(throttle: AuthThrottle, address: str | None) -> bool:
    try:
        throttle.failed(address)
    except Limited as error:
        return 0 < (error.retry_after_ms or 0) <= 3001
    return False


def test_an_address_may_be_wrong_so_often_and_again_later() -> None:
    clock = Clock()
    throttle = AuthThrottle(clock=clock, limits=LIMITS)
    assert [limited(throttle, "192.0.2.1") for _ in range(5)] == [False, False, False, True, True]
    assert not limited(throttle, "192.0.2.2")
    clock.now += 2.0
    assert [limited(throttle, "192.0.2.1") for _ in range(2)] == [False, True]
    clock.now += 1000
    assert [limited(throttle, "192.0.2.1") for _ in range(4)] == [False, False, False, True]


def test_a_forgiven_failure_does_not_count() -> None:
    throttle = AuthThrottle(clock=Clock(), limits=LIMITS)
    for _ in range(10):
        throttle.failed("192.0.2.1")
        throttle.forgive("192.0.2.1")
    throttle.forgive("192.0.2.2")  # who was never wrong gains nothing
    for address in ("192.0.2.1", "192.0.2.2"):
        assert [limited(throttle, address) for _ in range(4)] == [False, False, False, True]


def test_a_crowd_of_addresses_is_forgotten_in_order() -> None:
    throttle = AuthThrottle(clock=Clock(), limits=LIMITS)
    for number in range(1000):
        throttle.failed(f"192.0.{number // 250}.{number % 250}")
    assert len(throttle._spent) == 4


ISSUER = "https://login.example"
ANA = TokenRef(ISSUER, "ana", "t1", UnixMs(1000))


class Time:
    def __init__(self) -> None:
        self.s = 10.0

    def clock(self) -> float:
        return self.s

    def now_ms(self) -> UnixMs:
        return UnixMs(round(self.s * 1000))


def revocation(
    *, subject: str | None = None, token_id: str | None = None, at: int = 5000, until: int = 99_000
) -> Revocation:
    return make_revocation(ISSUER, subject=subject, token_id=token_id, at=UnixMs(at), expires_at=until)


async def test_another_process_follows_and_ends_what_is_open() -> None:
    time, database = Time(), MemoryDatabase()
    here, there = (RevocationCache(SqlRevocations(database), time.now_ms, time.clock) for _ in range(2))
    await there.refresh()
    access = Authenticator({}, clock=time.clock, now_ms=time.now_ms, issued=Issuance(revocations=there))
    ended: list[str] = []
    for name, token in (("first", ANA), ("later", TokenRef(ISSUER, "ana", "t2", UnixMs(6000)))):
        principal = Principal(tenant=TenantId("acme"), key_id=f"jwt:{ISSUER}", user="ana", token=token)
        access.verify(principal)
        access._watched.setdefault("jwt", {})[name] = (principal, lambda error, name=name: ended.append(name))  # type: ignore[misc]
    row = revocation(subject="ana")
    await here.add(row, revocation_audit(row, None), INSTALLATION)
    with pytest.raises(Unauthorized):
        here.check(ANA)
    there.check(ANA)
    await there.refresh()
    assert ended == ["first"]
    with pytest.raises(Unauthorized):
        there.check(ANA)
    there.check(TokenRef(ISSUER, "ana", "t2", UnixMs(6000)))
    there.check(TokenRef("https://other.example", "ana", "t1", UnixMs(1000)))
    row = revocation(token_id="t2")
    await there.add(row, revocation_audit(row, None), INSTALLATION)
    assert ended == ["first", "later"]
    assert [each.name for each in there.all()] == ["t2", "ana"]


async def test_what_has_expired_is_forgotten() -> None:
    time, database = Time(), MemoryDatabase()
    cache = RevocationCache(SqlRevocations(database), time.now_ms, time.clock)
    row = revocation(token_id="t1", until=20_000)
    await cache.add(row, revocation_audit(row, None), INSTALLATION)
    time.s = 21.0
    await cache.refresh()
    assert cache.all() == []
    cache.check(ANA)


async def test_a_restored_backup_brings_no_token_back() -> None:
    time, database, incarnation = Time(), MemoryDatabase(), ["one"]
    cache = RevocationCache(SqlRevocations(database), time.now_ms, time.clock, lambda: incarnation[0])
    row = revocation(token_id="t1")
    await cache.add(row, revocation_audit(row, None), INSTALLATION)
    database.query("DELETE FROM revocations")
    incarnation[0] = "two"
    await cache.refresh()
    with pytest.raises(Unauthorized):
        cache.check(ANA)


class FollowedStore:
    def __init__(self) -> None:
        self.reads = 0
        self.away = False
        self.stale: list[str] = []
        self.follower = StoreFollower(
            self.read,
            lambda error: self.stale.append(error.public_message),
            asyncio.get_running_loop().time,
            name="keys",
            checked="Keys",
        )

    async def read(self) -> None:
        self.reads += 1
        if self.away:
            raise Unavailable("journal_away", "away")


@virtual
async def test_each_outage_is_reported_once() -> None:
    store = FollowedStore()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.follower.run())
        for outages in (1, 2):
            await advance(2 * POLL_S)
            store.follower.check_fresh()
            store.away = True
            await advance(STALE_S - 2 * POLL_S)
            assert len(store.stale) == outages - 1
            await advance(10 * POLL_S)
            assert store.stale == ["Keys cannot be checked at the moment."] * outages
            store.away = False
        running.cancel()
    assert store.reads > STALE_S / POLL_S


async def test_wrong_keys_are_limited_and_a_good_one_and_people_who_sign_in_are_not() -> None:
    alice = Principal(tenant=TenantId("acme"), key_id="k1")
    access = Authenticator({key_digest("sk-good"): alice}, clock=Clock(), now_ms=lambda: UnixMs(0))
    answers = []
    for _ in range(30):
        with pytest.raises((Unauthorized, Limited)) as caught:
            access.authenticate("sk-wrong", "192.0.2.1")
        answers.append(caught.value.code)
    assert answers == ["unauthorized"] * 20 + ["rate_limited"] * 10
    assert access.authenticate("sk-good", "192.0.2.1") == alice
    with pytest.raises(Limited):
        await access.redeem_ticket("tkt_wrong", "192.0.2.1")
    with pytest.raises(Unauthorized):
        access.authenticate(None, "192.0.2.1")  # no key is no wrong key
    access.sign_ins.failed("192.0.2.1")
    access.logouts.failed("192.0.2.1")  # so their provider still says who signed out
