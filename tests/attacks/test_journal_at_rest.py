"""Whoever has the disk has no conversation: what people and models wrote stands nowhere in clear text.

Every byte that a server leaves in its data folder is searched, while it runs, after it was killed and after it ended
well, for what deleted users wrote too; and every row of PostgreSQL's tables.
"""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.sweep import Reencryption
from persistence.open_store import make_stores
from persistence.postgres.store import PostgresStore
from persistence.sqlite.library import sqlite3
from persistence.sqlite.store import SqliteStore
from sessions.model.errors import BadInput, Internal
from sessions.model.memories import MemoryId, UserMemory
from testbed.server_process import ServerProcess
from tests.support.stores.journals import ACME, NOW, PostgresBed, SqliteBed, a_log, key, postgres
from tests.support.stores.planted import files_under, planted_numbers, sentences
from tests.support.stores.planted_logs import plant, read_back
from tests.support.stores.rotation import RotationRun, rotation_settings


async def test_a_server_leaves_no_words_on_its_disk(tmp_path: Path) -> None:
    texts = sentences(12)
    flags = ("--engine", "sim", "--sim-answer-tokens", "8", "--sim-tokens-per-s", "2000", "--sim-tools")
    with ServerProcess(*flags, data=str(tmp_path / "data")) as server:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as http:
            tool = {"type": "function", "name": "look", "description": texts[0], "parameters": {"title": texts[1]}}
            created = await http.post(
                "/v1/conversations",
                json={"metadata": {"topic": texts[2]}, "items": [{"role": "user", "content": texts[3]}]},
            )
            assert created.status_code == 200, created.text
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            for number, text in enumerate(texts[4:8]):
                answer = await http.post(
                    "/v1/responses",
                    headers={"idempotency-key": f"key-{number}"},
                    json={
                        "model": model,
                        "input": text,
                        "instructions": texts[8],
                        "tools": [tool],
                        "metadata": {"topic": texts[9]},
                        "conversation": created.json()["id"],
                    },
                )
                assert answer.status_code == 200, answer.text
            assert (await http.delete(f"/v1/conversations/{created.json()['id']}")).status_code == 200
        folder = [tmp_path / "data"]
        assert planted_numbers(files_under(folder)) == set()
        server.kill()
        assert planted_numbers(files_under(folder)) == set()
        server.start()
        assert server.stop() == 0
        assert planted_numbers(files_under(folder)) == set()


async def test_the_search_finds_what_is_in_the_clear(tmp_path: Path) -> None:
    texts = sentences(12)
    store = await SqliteBed(tmp_path).open()
    await plant(store, texts)
    await store.close()
    assert planted_numbers(files_under([tmp_path])) == set(range(12))


async def test_everything_that_is_written_is_sealed_and_a_plain_journal_becomes_so(tmp_path: Path) -> None:
    texts = sentences(24)
    store = await SqliteBed(tmp_path).open()
    await plant(store, texts[:12])
    await store.close()
    store = await SqliteBed(tmp_path, sealed=True).open()
    await plant(store, texts[12:], first=12)
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)
    assert await Reencryption(store.database, store.database.codec, now_ms=lambda: NOW, settle_s=0).sweep()
    assert await read_back(store) == set(texts)
    await store.close()
    store = await SqliteBed(tmp_path, sealed=True).open()
    assert planted_numbers(files_under([tmp_path])) == set()
    assert await read_back(store) == set(texts)
    await store.close()
    assert planted_numbers(files_under([tmp_path])) == set()


async def test_memories_are_sealed_and_open_for_their_own_user_alone(tmp_path: Path) -> None:
    texts = sentences(2)

    def memory(number: int) -> UserMemory:
        name, user = MemoryId(f"mem{number}"), f"user{number}"
        return UserMemory(id=name, tenant=ACME, user=user, text=texts[number], created_at=NOW, updated_at=NOW)

    store = await SqliteBed(tmp_path).open()
    await a_log(store.journal, "planted", 1)  # a tenant that is swept
    await store.end_users.add_memory(memory(0))
    await store.close()
    store = await SqliteBed(tmp_path, sealed=True).open()
    await store.end_users.add_memory(memory(1))
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)
    assert await Reencryption(store.database, store.database.codec, now_ms=lambda: NOW, settle_s=0).sweep()
    assert [await store.end_users.memories(ACME, f"user{n}") for n in range(2)] == [[memory(0)], [memory(1)]]
    await store.close()
    store = await SqliteBed(tmp_path, sealed=True).open()
    await store.close()
    assert planted_numbers(files_under([tmp_path])) == set()
    with closing(sqlite3.connect(tmp_path / "data" / "journal.db")) as database:
        database.execute("UPDATE memories SET end_user = 'user0', id = 'other' WHERE id = 'mem1'")
        database.commit()
    store = await SqliteBed(tmp_path, sealed=True).open()
    with pytest.raises(Internal):
        await store.end_users.memories(ACME, "user0")
    await store.close()


@pytest.mark.cluster
async def test_postgres_tables_hold_no_words(tmp_path: Path) -> None:
    texts = sentences(24)
    bed = PostgresBed(postgres(), tmp_path)
    store = await bed.open()
    await plant(store, texts[:12])
    await store.close()
    assert planted_numbers(await bed.tables()) == set(range(12))
    bed = PostgresBed(postgres(), tmp_path, sealed=True, schema=bed.schema)
    store = await bed.open()
    await plant(store, texts[12:], first=12)
    assert isinstance(store, PostgresStore) and isinstance(store.database.codec, SealingCodec)
    assert await Reencryption(store.database, store.database.codec, now_ms=lambda: NOW, settle_s=0).sweep()
    assert await read_back(store) == set(texts)
    await store.close()
    assert planted_numbers(await bed.tables()) == set()


async def test_rows_that_were_exchanged_open_nowhere(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    await plant(store, sentences(12))
    await a_log(store.journal, "planted0", 1, tenant="globex")
    await store.close()
    for table in ("events", "snapshots"):
        with closing(sqlite3.connect(tmp_path / "data" / "journal.db")) as database:
            database.execute(
                f"UPDATE {table} SET body = (SELECT body FROM {table} WHERE session = 'planted6')"
                " WHERE session = 'planted0' AND tenant = 'acme'"
            )
            database.commit()
        store = await SqliteBed(tmp_path, sealed=True).open()
        with pytest.raises(Internal):
            await store.journal.load(key("planted0"), now_ms=NOW)
        assert await store.journal.load(key("planted6"), now_ms=NOW) is not None
        await store.close()


@pytest.mark.parametrize("table", ["events", "heads", "snapshots", "commands", "reviews"])
async def test_rows_in_the_clear_open_nowhere_once_all_are_encrypted(tmp_path: Path, table: str) -> None:
    """Who writes into the database has no key, and so no word that anybody gets to read."""
    texts = sentences(6)
    store = await SqliteBed(tmp_path).open()
    await plant(store, texts)
    await store.close()
    columns = "key_id, body" if table in ("events", "snapshots") else "key_id, about"
    columns = {"commands": "digest, answer", "reviews": "kept, note, remark"}.get(table, columns)
    with closing(sqlite3.connect(tmp_path / "data" / "journal.db")) as database:
        (plain,) = database.execute(f"SELECT {columns} FROM {table} WHERE tenant = 'acme'").fetchall()

    store = await SqliteBed(tmp_path, sealed=True).open()
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)
    assert await read_back(store) == set(texts)  # from the time before: read until the sweep has ended
    sweep = Reencryption(store.database, store.database.codec, now_ms=lambda: NOW, settle_s=0, seals=True)
    assert await sweep.sweep()
    assert await read_back(store) == set(texts)
    await store.close()

    with closing(sqlite3.connect(tmp_path / "data" / "journal.db")) as database:
        assigned = ", ".join(f"{name} = ?" for name in columns.split(", "))
        database.execute(f"UPDATE {table} SET {assigned} WHERE tenant = 'acme'", plain)
        database.commit()
    store = await SqliteBed(tmp_path, sealed=True).open()
    with pytest.raises(Internal) as refused:
        await read_back(store)
    assert refused.value.code == "body_unreadable"
    await store.close()


async def test_a_destroyed_key_makes_backups_unreadable_too(tmp_path: Path) -> None:
    bed = SqliteBed(tmp_path, sealed=True)
    store = await bed.open()
    await plant(store, sentences(6))
    await store.close()
    await bed.backup()
    store = await bed.open()
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)
    assert await store.database.codec.keys.destroy(ACME) == 1
    await store.close()
    await bed.restore()
    store = await bed.open()
    with pytest.raises(Internal):
        await store.journal.load(key("planted0"), now_ms=NOW)
    await store.close()


async def test_a_server_without_the_key_does_not_start_on_an_encrypted_journal(tmp_path: Path) -> None:
    run = rotation_settings(str(tmp_path))
    async with make_stores(run, folder=tmp_path, now_ms=lambda: NOW).opened() as store:
        await a_log(store.journal, "s", 2)
    (tmp_path / "master.key").unlink()
    for _ in range(2):
        with pytest.raises(BadInput) as refused:
            async with make_stores(run, folder=tmp_path, now_ms=lambda: NOW).opened():
                pass
        assert refused.value.code == "journal_encrypted"


def test_keys_rotate_under_load_and_survive_being_killed(tmp_path: Path) -> None:
    run, chance = RotationRun(tmp_path), random.Random(16)
    for _ in range(4):
        run.kill_once(chance.uniform(0.05, 0.6))
        assert run.check() == []
    assert len(run.acknowledged) == 12
