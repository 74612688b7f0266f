"""One suite for every key store: a key per session, durable, the session's own, and gone for good once destroyed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from persistence.keys import MemoryKeyStore, PostgresKeyStore, SqliteKeyStore
from persistence.master_key import KEY_BYTES, MasterKey, read_master_key
from persistence.open_store import open_key_store
from persistence.sqlite.library import sqlite3
from sessions.model.errors import BadInput, Unavailable
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.journals import postgres

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


async def test_rows_that_were_exchanged_unwrap_to_nothing(tmp_path: Path) -> None:
    store = SqliteKeyStore(tmp_path / "keys.db", MASTER)
    await store.open()
    one, two = await store.current(key("a")), await store.current(key("b"))
    await store.close()
    data = (tmp_path / "keys.db").read_bytes()
    assert one.secret not in data and two.secret not in data
    with sqlite3.connect(tmp_path / "keys.db") as database:
        database.execute("UPDATE data_keys SET wrapped = (SELECT wrapped FROM data_keys WHERE session = 'b')")
    await store.open()
    assert await store.find(key("a"), one.id) is None
    assert (await store.current(key("a"))).id != one.id
    await store.close()


async def test_a_destroyed_key_is_overwritten_in_the_file(tmp_path: Path) -> None:
    store = SqliteKeyStore(tmp_path / "keys.db", MASTER)
    await store.open()
    await store.current(key("a"))
    with sqlite3.connect(tmp_path / "keys.db") as database:
        ((wrapped,),) = database.execute("SELECT wrapped FROM data_keys").fetchall()
    assert wrapped in (tmp_path / "keys.db").read_bytes()
    await store.destroy(key("a"))
    await store.close()
    assert wrapped not in (tmp_path / "keys.db").read_bytes()
    assert (tmp_path / "keys.db").stat().st_mode & 0o077 == 0


async def test_a_store_that_is_away_says_so(tmp_path: Path) -> None:
    closed = SqliteKeyStore(tmp_path / "keys.db", MASTER)
    with pytest.raises(Unavailable):
        await closed.current(key("a"))
    nobody = PostgresKeyStore(f"postgresql://x@/x?host={tmp_path}", MASTER, timeout_s=2.0)
    with pytest.raises(Unavailable):
        await nobody.open()
    with pytest.raises(Unavailable):
        await nobody.find(key("a"), "x")


@pytest.mark.cluster
async def test_a_postgres_that_went_away_is_an_answer_too() -> None:
    store = PostgresKeyStore(postgres().dsn, MASTER, schema="keys_away")
    await store.open()
    await store.current(key("a"))
    admin = await asyncpg.connect(postgres().dsn)
    await admin.execute('DROP SCHEMA "keys_away" CASCADE')
    await admin.close()
    with pytest.raises(Unavailable):
        await store.current(key("a"))
    await store.close()


def test_the_master_key_is_made_once_private_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "data" / "master.key"
    made = read_master_key(path, make=True)
    assert path.stat().st_mode & 0o777 == 0o600 and list(path.parent.iterdir()) == [path]
    assert read_master_key(path, make=True).id == made.id == read_master_key(path).id
    assert made.unwrap(made.wrap(b"secret", b"a"), b"a") == b"secret"
    assert made.unwrap(made.wrap(b"secret", b"a"), b"b") is None and made.unwrap(b"", b"a") is None


@pytest.mark.parametrize("kind", ["missing", "readable", "short", "text", "folder"])
def test_a_master_key_that_cannot_be_used_is_refused_with_advice(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "master.key"
    match kind:
        case "readable":
            path.write_text("ab" * 32)
            path.chmod(0o644)
        case "short":
            path.write_text("ab" * 31)
        case "text":
            path.write_text("a pass phrase")
        case "folder":
            path.mkdir()
    if kind not in ("missing", "readable", "folder"):
        path.chmod(0o600)
    with pytest.raises(BadInput) as refused:
        read_master_key(path)
    assert refused.value.code == "bad_master_key" and str(path) in refused.value.public_message


def test_settings_choose_the_store(tmp_path: Path) -> None:
    assert isinstance(open_key_store("memory", folder=tmp_path, master_key=""), MemoryKeyStore)
    assert list(tmp_path.iterdir()) == []
    assert isinstance(open_key_store("sqlite", folder=tmp_path, master_key=""), SqliteKeyStore)
    assert (tmp_path / "master.key").exists()
    assert isinstance(open_key_store("postgresql://x/y", folder=tmp_path, master_key=""), PostgresKeyStore)
    with pytest.raises(BadInput):
        open_key_store("sqlite", folder=tmp_path, master_key=str(tmp_path / "missing"))
