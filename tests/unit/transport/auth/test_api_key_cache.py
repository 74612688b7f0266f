"""The key ring: who is let in, how soon a revocation ends a key, and what happens when the journal is away."""

from __future__ import annotations

import asyncio

import pytest

from persistence.memory.api_keys import MemoryApiKeys
from persistence.memory.database import MemoryDatabase
from sessions.model.api_keys import ApiKey, ApiKeyRequest
from sessions.model.errors import SessileError, Unauthorized, Unavailable
from sessions.model.types import Principal, UnixMs
from tests.support.virtual_time import advance, virtual
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator
from transport.auth.store_follower import POLL_S, READ_S, STALE_S

NOW = UnixMs(1_750_000_000_000)


class Store(MemoryApiKeys):
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
