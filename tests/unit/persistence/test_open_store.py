"""Which store a setting names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from persistence import connect_store, make_stores, open_key_store
from persistence.at_rest.sweep import Reencryption
from persistence.keys import MemoryKeyStore, PostgresKeyStore, SqliteKeyStore
from persistence.memory.store import MemoryStore
from persistence.open_store import open_store
from persistence.postgres.store import PostgresStore
from persistence.sqlite.store import SqliteStore
from sessions.added_tools import AddedTool, AddedTools
from sessions.model.errors import BadInput, Unavailable
from tests.support.stores.journals import ACME, NOW, a_log, overwrite_added_tools
from transport.cli.settings import Settings


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite", SqliteStore),
        ("memory", MemoryStore),
        ("postgresql://u:p@db:5432/x", PostgresStore),
        ("postgres:///x?host=/run", PostgresStore),
    ],
)
def test_a_setting_names_a_store(tmp_path: Path, url: str, driver: type) -> None:
    assert isinstance(open_store(url, folder=tmp_path), driver)


@pytest.mark.parametrize("url", ["", "sqlite://x", "postgresql", "postgresql://", "mysql://db"])
def test_anything_else_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_store(url, folder=tmp_path)
    assert caught.value.param == "journal"


def test_sqlite_needs_its_folder() -> None:
    with pytest.raises(BadInput):
        open_store("sqlite", folder=None)


def test_an_audit_key_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        open_store("memory", folder=None, audit_key=str(tmp_path / "missing"))
    assert caught.value.param == "audit_key"


async def test_a_command_has_the_store_to_itself_and_closes_it(tmp_path: Path) -> None:
    settings = Settings(journal="sqlite", data=str(tmp_path))
    async with connect_store(settings, lambda: NOW) as store:
        head = await a_log(store.journal, "s", 2)
        with pytest.raises(Unavailable):
            async with connect_store(settings, lambda: NOW):
                pass
    with pytest.raises(Unavailable):
        await store.journal.head(head.key)
    async with connect_store(settings, lambda: NOW) as store:
        assert await store.journal.head(head.key) == head


def test_the_key_store_lies_where_the_store_does(tmp_path: Path) -> None:
    assert isinstance(open_key_store("memory", folder=tmp_path, master_key=""), MemoryKeyStore)
    assert list(tmp_path.iterdir()) == []
    assert isinstance(open_key_store("sqlite", folder=tmp_path, master_key=""), SqliteKeyStore)
    assert (tmp_path / "master.key").exists()
    assert isinstance(open_key_store("postgresql://x/y", folder=tmp_path, master_key=""), PostgresKeyStore)
    with pytest.raises(BadInput):
        open_key_store("sqlite", folder=tmp_path, master_key=str(tmp_path / "missing"))


def key_file(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text(os.urandom(32).hex())
    path.chmod(0o600)
    return str(path)


def test_what_is_encrypted_follows_from_the_settings(tmp_path: Path) -> None:
    url = "postgresql://x/y"
    for settings, sealed in (
        (Settings(journal="sqlite", data=str(tmp_path)), True),
        (Settings(journal="memory", data=str(tmp_path)), False),
        (Settings(journal=url, data=str(tmp_path)), False),
        (Settings(journal=url, data=str(tmp_path), master_key=key_file(tmp_path, "m")), True),
        (
            Settings(journal=url, data=str(tmp_path), key_service="http://127.0.0.1/transit/k", key_service_token="t"),
            True,
        ),
    ):
        codec = make_stores(settings, folder=tmp_path, now_ms=lambda: NOW).codec
        assert (codec is not None and codec.writes) == sealed
    plain = make_stores(
        Settings(journal="sqlite", data=str(tmp_path), journal_encryption="off"), folder=tmp_path, now_ms=lambda: NOW
    ).codec
    assert plain is not None and not plain.writes
    gateway = make_stores(
        Settings(journal=url, data="none", master_key=str(tmp_path / "m")), folder=None, now_ms=lambda: NOW
    )
    assert gateway.keys is not None and gateway.codec is not None
    with pytest.raises(BadInput) as refused:
        make_stores(
            Settings(journal=url, data=str(tmp_path), journal_encryption="on"), folder=tmp_path, now_ms=lambda: NOW
        )
    assert refused.value.code == "journal_key_missing"


async def test_plain_rows_are_refused_where_no_process_writes_them_any_more(tmp_path: Path) -> None:
    url, master = "postgresql://x/y", key_file(tmp_path, "m")
    for settings, refuses in (
        (Settings(data=str(tmp_path)), True),
        (Settings(journal=url, data=str(tmp_path), master_key=master), False),  # others may not have the key yet
        (Settings(journal=url, data=str(tmp_path), master_key=master, journal_encryption="on"), True),
    ):
        assert make_stores(settings, folder=tmp_path, now_ms=lambda: NOW).refuses_plain == refuses

    async def refused(mode: Literal["auto", "off"]) -> bool:
        stores = make_stores(Settings(data=str(tmp_path), journal_encryption=mode), folder=tmp_path, now_ms=lambda: NOW)
        async with stores.opened():
            assert stores.codec is not None
            await stores.codec.keys.writing(ACME)
            ring = stores.codec.keys.ring(ACME)
            was = ring is not None and ring.refuses_plain
            await stores.codec.keys.refuse_plain(ACME)
            return was

    assert [await refused(mode) for mode in ("auto", "auto", "off")] == [False, True, False]


async def test_a_store_under_another_key_stays_as_it_is(tmp_path: Path) -> None:
    settings = Settings(journal="sqlite", data=str(tmp_path))
    stores = make_stores(settings, folder=tmp_path, now_ms=lambda: NOW)
    async with stores.opened():
        assert stores.codec is not None
        await stores.codec.keys.writing(ACME)
    (tmp_path / "master.key").write_text(os.urandom(32).hex())
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(BadInput) as refused:
        async with connect_store(settings, lambda: NOW):
            pass
    assert refused.value.code == "journal_encrypted"
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize("other_has_keys", [False, True])
async def test_keys_of_another_folder_are_refused_and_nothing_is_written(tmp_path: Path, other_has_keys: bool) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder, rows in ((own, 2), (other, 2 * other_has_keys)):
        async with connect_store(Settings(data=str(folder)), lambda: NOW) as store:
            if rows:
                await a_log(store.journal, "s", rows)
    (own / "keys.db").write_bytes((other / "keys.db").read_bytes())
    before = {each.name: each.read_bytes() for each in own.iterdir()}
    with pytest.raises(BadInput, match=r": keys\.db is of another folder") as refused:
        async with connect_store(Settings(data=str(own)), lambda: NOW):
            pass
    assert (refused.value.code, refused.value.param) == ("journal_encrypted", "data")
    assert {each.name: each.read_bytes() for each in own.iterdir()} == before
    async with connect_store(Settings(data=str(other)), lambda: NOW):
        pass


async def test_added_tools_go_over_to_a_new_key_and_end_with_their_tenants_keys(tmp_path: Path) -> None:
    stores = make_stores(Settings(data=str(tmp_path)), folder=tmp_path, now_ms=lambda: NOW)
    async with stores.opened() as store:
        tool = AddedTool(kind="tool", name="weather", table={"url": "https://x.example/"}, revision="r", at=NOW, by="")
        stored = await store.added_tools.replace(AddedTools(tenant=ACME).with_tool(tool))
        await a_log(store.journal, "s", 2)
        assert stores.codec is not None and stores.sql is not None
        sweep = Reencryption(stores.sql, stores.codec, now_ms=lambda: NOW, settle_s=0)
        administration = stores.administration(sweep)
        assert administration is not None
        await administration.act("rotate", ACME)
        assert await sweep.sweep()
        ((key_id,),) = await stores.sql.rows("SELECT key_id FROM added_tools")
        assert key_id == (await stores.codec.keys.writing(ACME)).id
        assert await store.added_tools.tools_of(ACME) == stored
        await administration.act("destroy", ACME)
        (ended,) = await store.added_tools.changes(after=stored.version, limit=10)
        assert ended.tenant == ACME and ended.tools == (), "what holds them in memory is told"
        assert await sweep.sweep() and await store.added_tools.tools_of(ACME) == ended


async def test_tools_that_cannot_be_read_keep_no_key_from_being_destroyed(tmp_path: Path) -> None:
    stores = make_stores(Settings(data=str(tmp_path)), folder=tmp_path, now_ms=lambda: NOW)
    async with stores.opened() as store:
        tool = AddedTool(kind="tool", name="weather", table={"url": "https://x.example/"}, revision="r", at=NOW, by="")
        stored = await store.added_tools.replace(AddedTools(tenant=ACME).with_tool(tool))
        assert stores.codec is not None and stores.sql is not None
        await overwrite_added_tools(stores.sql)
        assert not (await store.added_tools.tools_of(ACME)).readable
        administration = stores.administration(Reencryption(stores.sql, stores.codec, now_ms=lambda: NOW, settle_s=0))
        assert administration is not None
        assert (await administration.act("destroy", ACME)).changed == 1
        (ended,) = await store.added_tools.changes(after=stored.version, limit=10)
        assert ended.readable and ended.tools == () and await store.added_tools.tools_of(ACME) == ended
