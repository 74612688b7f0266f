"""Tenants' keys: one writes, old ones read, all are wrapped, and destroyed ones are gone for every process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from persistence.at_rest.tenant_keys import TenantKeys, any_tenant_key
from persistence.at_rest.wrapping import MasterKeyWrapper
from persistence.key_database import SqliteKeyDatabase
from persistence.master_key import MasterKey, MasterKeyRing, add_master_key, drop_older_master_keys, read_master_keys
from sessions.model.errors import Internal, Unavailable
from sessions.model.types import TenantId
from tests.support.stores.journals import ACME, MASTER, NOW

OTHER = TenantId("globex")


async def a_database(folder: Path) -> SqliteKeyDatabase:
    database = SqliteKeyDatabase(folder / "keys.db")
    await database.open()
    return database


def keys_on(database: SqliteKeyDatabase, *masters: MasterKey) -> TenantKeys:
    return TenantKeys(database, MasterKeyWrapper(MasterKeyRing(masters or [MASTER])), now_ms=lambda: NOW)


async def test_a_tenant_has_one_key_that_stays_until_it_is_rotated(tmp_path: Path) -> None:
    database = await a_database(tmp_path)
    keys = keys_on(database)
    assert not await any_tenant_key(database)
    first = await keys.writing(ACME)
    assert await keys.writing(ACME) == first and first.secret.hex() not in repr(first)
    assert (await keys.writing(OTHER)).secret != first.secret and await any_tenant_key(database)
    second = await keys.rotate(ACME)
    assert second.seq == first.seq + 1 and await keys.writing(ACME) == second
    again = keys_on(database)
    await again.load(ACME, first.id)
    ring = again.ring(ACME)
    assert ring is not None and ring.by_id == {first.id: first, second.id: second} and ring.writes == second
    assert await keys.tenants() == [ACME, OTHER] and await keys.counts(ACME) == (2, 0)
    assert first.secret not in (tmp_path / "keys.db").read_bytes()
    await database.close()
    with pytest.raises(Unavailable):
        await keys_on(database).writing(ACME)


class CountedDatabase(SqliteKeyDatabase):
    calls = 0

    async def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        self.calls += 1
        return await super().rows(statement, *values)


async def test_many_sessions_that_start_at_once_make_one_key_and_share_a_read(tmp_path: Path) -> None:
    database = CountedDatabase(tmp_path / "keys.db")
    await database.open()
    keys = keys_on(database)
    made = await asyncio.gather(*(keys.writing(ACME) for _ in range(50)))
    assert len(set(map(str, made))) == 1 and await keys.counts(ACME) == (1, 0)
    database.calls = 0
    again = keys_on(database)
    await asyncio.gather(*(again.load(ACME, made[0].id) for _ in range(50)))
    assert database.calls == 2  # the first one reads at once, the others behind it read together
    await database.close()


async def test_another_process_sees_what_was_rotated_and_destroyed(tmp_path: Path) -> None:
    database = await a_database(tmp_path)
    one, two = keys_on(database), keys_on(database)
    first = await one.writing(ACME)
    assert await two.writing(ACME) == first
    heard: list[TenantId] = []
    two.listen(heard.append)
    second = await one.rotate(ACME)
    assert await two.writing(ACME) == first and heard == []
    await two.refresh()
    assert await two.writing(ACME) == second and heard == [ACME]
    assert await one.destroy(ACME) == 2 and await one.destroy(ACME) == 0
    await two.refresh()
    with pytest.raises(Internal):
        await two.load(ACME, first.id)
    third = await two.writing(ACME)
    assert third.id not in (first.id, second.id) and await two.counts(ACME) == (1, 2)
    await database.close()


async def test_a_stranger_with_another_master_makes_no_key_of_its_own(tmp_path: Path) -> None:
    database = await a_database(tmp_path)
    stranger = keys_on(database, MasterKey(bytes(32)))
    assert await stranger.readable()
    await keys_on(database).writing(ACME)
    assert not await stranger.readable() and await keys_on(database).readable()
    with pytest.raises(Internal):
        await stranger.writing(ACME)
    assert await stranger.rewrap() == (0, 1)
    await database.close()


async def test_rows_that_were_exchanged_unwrap_to_nothing(tmp_path: Path) -> None:
    database = await a_database(tmp_path)
    await keys_on(database).writing(ACME)
    await keys_on(database).writing(OTHER)
    await database.rows(
        "UPDATE {tenant_keys} SET wrapped = (SELECT wrapped FROM {tenant_keys} WHERE tenant = 'globex')"
    )
    with pytest.raises(Internal):
        await keys_on(database).writing(ACME)
    await database.close()


async def test_a_master_is_replaced_while_servers_run(tmp_path: Path) -> None:
    database, file = await a_database(tmp_path), tmp_path / "master.key"
    server = TenantKeys(database, MasterKeyWrapper(read_master_keys(file, make=True)), now_ms=lambda: NOW)
    other = TenantKeys(database, MasterKeyWrapper(read_master_keys(file)), now_ms=lambda: NOW)
    key = await server.writing(ACME)
    added = add_master_key(file)
    assert await server.rewrap() == (1, 0) and await server.rewrap() == (0, 0)
    assert await other.writing(ACME) == key  # it reads the file again
    assert drop_older_master_keys(file) == 1
    last = TenantKeys(database, MasterKeyWrapper(read_master_keys(file)), now_ms=lambda: NOW)
    assert await last.writing(ACME) == key
    assert {row[0] for row in await database.rows("SELECT wrapper FROM {tenant_keys}")} == {added.id}
    await database.close()


async def test_keys_that_refuse_plain_rows_do_so_everywhere_until_that_is_taken_back(tmp_path: Path) -> None:
    database, file = await a_database(tmp_path), tmp_path / "master.key"
    one, two = (
        TenantKeys(database, MasterKeyWrapper(read_master_keys(file, make=True)), now_ms=lambda: NOW) for _ in range(2)
    )

    async def refuses(keys: TenantKeys, tenant: TenantId = ACME) -> bool:
        await keys.refresh()
        await keys.writing(tenant)
        ring = keys.ring(tenant)
        assert ring is not None
        return ring.refuses_plain

    first = await one.writing(ACME)
    assert not await refuses(two)
    await one.refuse_plain(ACME)
    assert await refuses(one) and await refuses(two) and not await refuses(one, OTHER)
    assert (await two.writing(ACME)).secret == first.secret
    await two.rotate(ACME)
    add_master_key(file)
    assert await one.rewrap() == (3, 0)
    drop_older_master_keys(file)
    again = TenantKeys(database, MasterKeyWrapper(read_master_keys(file)), now_ms=lambda: NOW)
    assert await again.readable() and await refuses(again)
    await database.rows("DELETE FROM {tenant_keys} WHERE tenant = $1 AND seq = 1", ACME)
    assert await refuses(again)  # each key says so
    await again.accept_plain()
    assert not await refuses(again) and not await refuses(one)
    await database.close()
