"""The sweep that encrypts older rows: it may stop anywhere, changes nothing that is said, and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.sweep import Reencryption
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore
from sessions.metrics import Metrics
from sessions.model.journal_types import Snapshot
from sessions.model.types import UnixMs
from tests.support.stores.journals import ACME, NOW, SqliteBed, a_command, a_log, key, patch


async def a_plain_journal(folder: Path) -> None:
    store = await SqliteBed(folder).open()
    for name in ("a", "b"):
        fields: dict[str, Any] = {
            "head": patch(title=f"title {name}"),
            "commands": (a_command(1),),
            "snapshot": Snapshot(5, b"folded"),
        }
        await a_log(store.journal, name, 250, **fields)
    await store.close()


def parts(store: object) -> tuple[SqliteDatabase, SealingCodec]:
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)
    return store.database, store.database.codec


async def key_ids(database: SqliteDatabase) -> set[str]:
    union = " UNION ".join(f"SELECT key_id FROM {name}" for name in ("events", "snapshots"))
    return {each for (each,) in await database.rows(f"{union} UNION SELECT key_id FROM heads WHERE tenant <> ''")}


async def test_plain_rows_are_encrypted_and_read_as_before(tmp_path: Path) -> None:
    await a_plain_journal(tmp_path)
    store = await SqliteBed(tmp_path, sealed=True).open()
    database, codec = parts(store)
    before = await store.journal.load(key("a"), now_ms=NOW)
    measures = Metrics()
    sweep = Reencryption(database, codec, now_ms=lambda: NOW, metrics=measures, settle_s=0)
    assert await sweep.sweep() and await sweep.sweep()
    (place,) = await sweep.status()
    assert place.done_at is not None and place.changed == place.plain == 2 * (250 + 3)
    assert measures.counter("journal_reencrypted_rows", "").total == place.changed
    assert await key_ids(database) == {place.key_id}
    assert await store.journal.load(key("a"), now_ms=NOW) == before
    await store.close()
    for each in (await SqliteBed(tmp_path, sealed=True).open(),):  # written anew: nothing of it is left in the file
        await each.close()
    assert not any(b"title" in file.read_bytes() for file in (tmp_path / "data").glob("journal.db*"))


async def test_a_sweep_that_ended_anywhere_goes_on_from_there(tmp_path: Path) -> None:
    await a_plain_journal(tmp_path)
    pages = 0
    while True:
        store = await SqliteBed(tmp_path, sealed=True).open()
        sweep = Reencryption(*parts(store), now_ms=lambda: NOW, settle_s=0)
        finished = await sweep.step(ACME)  # and the process ends
        await store.close()
        if finished:
            break
        pages += 1
    assert 8 <= pages < 20
    store = await SqliteBed(tmp_path, sealed=True).open()
    assert len(await key_ids(parts(store)[0])) == 1
    loaded = await store.journal.load(key("b"), now_ms=NOW)
    assert loaded is not None and loaded.head.title == "title b" and loaded.snapshot == Snapshot(5, b"folded")
    await store.close()


async def test_a_new_key_is_swept_for_when_every_process_has_it(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    database, codec = parts(store)
    await a_log(store.journal, "a", 3)
    now = int(NOW)
    sweep = Reencryption(database, codec, now_ms=lambda: UnixMs(now), settle_s=30)
    assert not await sweep.sweep()
    now += 30_000
    assert await sweep.sweep()
    await codec.keys.rotate(ACME)
    assert await sweep.step(ACME) is False  # the clock of the keys stands still
    assert await sweep.sweep()
    assert await key_ids(database) == {(await codec.keys.writing(ACME)).id}
    await store.close()


async def test_who_stops_it_stops_it_everywhere_and_rows_that_open_no_more_are_left(tmp_path: Path) -> None:
    await a_plain_journal(tmp_path)
    store = await SqliteBed(tmp_path, sealed=True).open()
    database, codec = parts(store)
    sweep = Reencryption(database, codec, now_ms=lambda: NOW, settle_s=0)
    await Reencryption(database, codec, now_ms=lambda: NOW).stop(True)
    assert await sweep.stopped() and not await sweep.sweep() and await sweep.status() == []
    await sweep.stop(False)
    await database.rows("SELECT 1")
    damaged = "UPDATE events SET key_id = 'gone' WHERE session = 'a' AND \"offset\" = 9"
    async with database.reader() as reader:
        await reader.execute_fetchall("PRAGMA query_only = OFF")
        await reader.execute_fetchall(damaged)
    assert await sweep.sweep()
    assert "gone" in await key_ids(database)
    await store.close()


async def test_a_sweep_that_seals_ends_with_keys_that_refuse_plain_rows(tmp_path: Path) -> None:
    await a_plain_journal(tmp_path)
    store = await SqliteBed(tmp_path, sealed=True).open()
    database, codec = parts(store)

    def refused() -> bool:
        ring = codec.keys.ring(ACME)
        return ring is not None and ring.refuses_plain

    assert await Reencryption(database, codec, now_ms=lambda: NOW, settle_s=0).sweep() and not refused()
    sweep = Reencryption(database, codec, now_ms=lambda: NOW, settle_s=0, seals=True)
    await sweep.step(ACME)
    assert not refused()  # only when it has seen all, once more
    assert await sweep.sweep() and refused() and await sweep.step(ACME) is True
    await codec.keys.accept_plain()
    assert await sweep.step(ACME) is False and await sweep.sweep() and refused()
    await store.close()
