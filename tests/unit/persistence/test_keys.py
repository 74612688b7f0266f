"""Key stores below their port: what lies in the file, and a store that is away."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from persistence.keys import PostgresKeyStore, SqliteKeyStore
from persistence.master_key import KEY_BYTES, MasterKey
from persistence.sqlite.library import sqlite3
from sessions.model.errors import Unavailable
from tests.support.stores.journals import postgres
from tests.support.stores.stores import key

MASTER = MasterKey(bytes(range(KEY_BYTES)))


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
