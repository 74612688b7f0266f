"""A folder's lock and marker, its keys, and the store that a setting names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import asyncpg
import pytest

from persistence import connect_store, make_stores, open_key_store
from persistence.at_rest.sweep import Reencryption
from persistence.data_dir import Marker, MarkerRecord
from persistence.folder_lock import FolderLock
from persistence.keys import MemoryKeyStore, SqliteKeyStore
from persistence.master_key import (
    KEY_BYTES,
    MasterKey,
    add_master_key,
    drop_older_master_keys,
    read_master_keys,
    read_secret,
)
from persistence.memory.store import MemoryStore
from persistence.open_store import open_store
from persistence.postgres.keys import PostgresKeyStore
from persistence.postgres.store import PostgresStore
from persistence.sqlite.library import sqlite3
from persistence.sqlite.store import SqliteStore
from sessions.added_tools import AddedTool, AddedTools
from sessions.model.errors import BadInput, Unavailable
from tests.support.stores.journals import ACME, NOW, a_log, overwrite_added_tools, postgres
from tests.support.stores.stores import key
from transport.cli.settings import Settings


def test_a_locked_folder_is_refused_by_name_and_free_after_release(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    first, second = FolderLock(folder), FolderLock(folder)
    first.take()
    with pytest.raises(Unavailable) as caught:
        second.take()
    assert caught.value.code == "journal_folder_locked"
    assert str(folder) in caught.value.public_message
    first.release()
    second.take()
    second.release()
    second.release()


def test_the_lock_of_a_dead_process_is_gone(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from persistence.folder_lock import FolderLock\n"
        f"lock = FolderLock(Path({str(tmp_path)!r})); lock.take(); print('taken', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "taken\n"
    with pytest.raises(Unavailable, match=f"pid {holder.pid}"):
        FolderLock(tmp_path).take()
    holder.kill()
    holder.communicate()
    lock = FolderLock(tmp_path)
    lock.take()
    lock.release()


def test_a_file_where_the_folder_should_be_is_refused_with_its_name(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.write_text("")
    with pytest.raises(Unavailable) as caught:
        FolderLock(place).take()
    assert caught.value.code == "journal_folder_unusable"
    assert str(place) in caught.value.public_message


def reopened(path: Path) -> MarkerRecord | None:
    marker = Marker(path)
    try:
        return marker.open()
    finally:
        marker.close()


def test_a_shorter_mark_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "marker"
    marker = Marker(path)
    marker.open()
    marker.write("a-long-name-of-an-incarnation", 2**52)
    marker.write("b", 1)
    found = reopened(path)
    assert found is not None and (found.incarnation, found.position) == ("b", 1)
    marker.close()


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


def test_the_master_key_is_made_once_private_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "data" / "master.key"
    made = read_master_keys(path, make=True)
    assert path.stat().st_mode & 0o777 == 0o600 and list(path.parent.iterdir()) == [path]
    assert read_master_keys(path, make=True).newest.id == made.newest.id == read_master_keys(path).newest.id
    key = made.newest
    assert key.unwrap(key.wrap(b"secret", b"a"), b"a") == b"secret"
    assert key.unwrap(key.wrap(b"secret", b"a"), b"b") is None and key.unwrap(b"", b"a") is None


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
        read_master_keys(path)
    assert refused.value.code == "bad_master_key" and str(path) in refused.value.public_message


def test_a_secret_names_the_setting_that_it_is_for(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        read_secret(tmp_path / "missing", "audit_key")
    assert refused.value.param == "audit_key" and "audit key file" in refused.value.public_message


def test_a_new_master_key_goes_in_front_and_the_older_ones_are_dropped_later(tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    ring = read_master_keys(path, make=True)
    first = ring.newest
    added = add_master_key(path)
    assert ring.newest is first
    ring.reload()
    assert [each.id for each in ring] == [added.id, first.id] and [each.id for each in ring.older] == [first.id]
    assert ring.find(first.id) is not None and ring.find("none") is None
    assert path.stat().st_mode & 0o777 == 0o600 and list(tmp_path.iterdir()) == [path]
    with pytest.raises(BadInput):
        read_secret(path, "audit_key")  # that one is never two
    assert drop_older_master_keys(path) == 1 and drop_older_master_keys(path) == 0
    ring.reload()
    assert [each.id for each in ring] == [added.id]
    path.write_text("no key")
    with pytest.raises(BadInput):
        ring.reload()
    assert ring.newest.id == added.id


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
    with pytest.raises(BadInput):
        open_store("sqlite", folder=None)  # it needs one


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
