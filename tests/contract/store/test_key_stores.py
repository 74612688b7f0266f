"""One suite for every key store: a key per session, durable, the session's own, and gone for good once destroyed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from persistence.keys import MemoryKeyStore, PostgresKeyStore, SqliteKeyStore
from persistence.master_key import KEY_BYTES, MasterKey
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.stores.journals import postgres

MASTER = MasterKey(bytes(range(KEY_BYTES)))
OTHER = MasterKey(bytes(KEY_BYTES))
Store = MemoryKeyStore | SqliteKeyStore | PostgresKeyStore
Open = Callable[..., Awaitable[Any]]
_numbers = itertools.count()


def key(session: str, tenant: str = "t") -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(session))


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.cluster)])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the one store of this test, again and again; the memory one is the same object each time."""
    opened: list[Store] = []
    memory, schema = MemoryKeyStore(), f"keys_{next(_numbers)}"

    async def open_(master: MasterKey = MASTER) -> Store:
        store: Store
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
    one = await store.current(key("a"))
    assert len(one.secret) == 32 and one.secret.hex() not in repr(one)
    assert await store.current(key("a")) == one
    others = [await store.current(key("b")), await store.current(key("a", tenant="u"))]
    assert len({one.secret, *(other.secret for other in others)}) == 3
    assert await store.find(key("a"), one.id) == one
    assert await store.find(key("b"), one.id) is None and await store.find(key("c"), one.id) is None
    again = await reopen()
    assert await again.find(key("a"), one.id) == one and await again.current(key("a")) == one


async def test_a_destroyed_key_is_gone_and_its_session_gets_another(reopen: Open) -> None:
    store = await reopen()
    one = await store.current(key("a"))
    kept = await store.current(key("b"))
    await store.destroy(key("a"))
    await store.destroy(key("a"))
    assert await store.find(key("a"), one.id) is None
    new = await store.current(key("a"))
    assert new.id != one.id and new.secret != one.secret and await store.find(key("a"), one.id) is None
    assert await store.find(key("b"), kept.id) == kept


async def test_many_ask_at_once_and_get_one_key(reopen: Open) -> None:
    store = await reopen()
    keys = await asyncio.gather(*(store.current(key("a")) for _ in range(20)))
    assert len({found.id for found in keys}) == 1


async def test_a_call_that_was_cancelled_leaves_the_store_in_order(reopen: Open) -> None:
    store = await reopen()
    for number in range(20):
        task = asyncio.create_task(store.current(key(f"s{number}")))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        found = await store.current(key(f"s{number}"))
        assert await store.find(key(f"s{number}"), found.id) == found


async def test_another_master_reads_nothing_and_gets_keys_of_its_own(reopen: Open) -> None:
    if reopen.kind == "memory":  # type: ignore[attr-defined]
        return  # knows no masters: nothing of it is ever written
    one = await (await reopen()).current(key("a"))
    stranger = await reopen(OTHER)
    assert await stranger.find(key("a"), one.id) is None
    assert (await stranger.current(key("a"))).id != one.id
    first = await reopen()
    assert await first.find(key("a"), one.id) == one
    await stranger.destroy(key("a"))  # a purge is everybody's
    assert await first.find(key("a"), one.id) is None
