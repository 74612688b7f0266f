"""SQL that both databases share, where their contract does not see it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from persistence.at_rest.codec import SealingCodec
from persistence.postgres import schema as postgres_schema
from persistence.sql import file_chunks
from persistence.sql.file_chunks import SqlFileChunks
from persistence.sql.folder_file_chunks import FolderFileChunks
from persistence.sql.migrations import read_migrations, required_version
from persistence.sqlite import schema as sqlite_schema
from persistence.sqlite.store import SqliteStore
from sessions.model.errors import BadInput, Conflict, Internal, Unavailable
from sessions.model.knowledge.files import BlobId
from sessions.model.push import GRACE_MS, PushId
from sessions.model.reviews import DECIDED_MS, OPEN_MS, Case, ReviewId
from sessions.model.types import Epoch, TenantId, UnixMs
from tests.support.neighbours.previous import SCHEMA
from tests.support.stores.file_rows import content_of, uploaded
from tests.support.stores.journals import ACME, NOW, SqliteBed, a_log, an_append, grant, key, patch
from tests.support.stores.push_rows import a_device
from tests.support.stores.review_cases import a_case


async def test_rows_of_a_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_chunks, "DROP_ROWS", 2)
    store = await SqliteBed(tmp_path).open()
    assert isinstance(store, SqliteStore)
    chunks = SqlFileChunks(store.database)
    blob = await store.files.begin(ACME, "ü", NOW)
    for index in range(5):
        await chunks.put(ACME, "ü", blob, index, b"%d" % index)
    await chunks.put(ACME, "ü", blob, 0, b"again")
    assert [await chunks.get(ACME, blob, index) for index in (0, 4, 5)] == [b"0", b"4", None]
    await chunks.put(ACME, "ü", BlobId("none"), 0, b"x")
    assert await chunks.get(ACME, BlobId("none"), 0) is None
    await chunks.drop(ACME, blob)
    assert await store.database.rows("SELECT count(*) FROM file_chunks") == [(0,)]
    await store.close()


CONTENT = b"the words of a document, unlike any others " * 20_000


async def test_nothing_of_a_file_stands_in_the_clear(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    file = await uploaded(store.files, CONTENT, name="payroll-2026.txt", media_type="text/x-secret")
    await store.close()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").glob("journal.db*"))
    for secret in (b"unlike any others", b"payroll", b"x-secret", file.sha256.encode(), bytes.fromhex(file.sha256)):
        assert secret not in stored, secret


async def test_a_file_that_is_removed_loses_its_key_at_once(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    file = await uploaded(store.files, CONTENT)
    await store.files.remove(ACME, file.id, NOW)
    assert isinstance(store, SqliteStore)
    assert await store.database.rows("SELECT count(*) FROM files") == [(0,)]
    assert await store.database.rows("SELECT count(*) > 0 FROM file_chunks") == [(1,)], "their sweep comes later"
    await store.close()


@pytest.mark.parametrize(
    "change", ["body = (SELECT body FROM files WHERE id <> '{0}')", "size = size + 1", "end_user = end_user || 'x'"]
)
async def test_a_row_that_was_changed(tmp_path: Path, change: str) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    file, _ = await uploaded(store.files, CONTENT), await uploaded(store.files, b"other")
    assert isinstance(store, SqliteStore)
    database = store.database
    statement = f"UPDATE files SET {change.format(file.id)} WHERE id = '{file.id}'"

    def script():  # type: ignore[no-untyped-def]
        from persistence.sql.script import Query

        yield Query(statement)

    await database.run(script)
    with pytest.raises(Internal):
        await content_of(store.files, file)
    await store.close()


BLOB = BlobId("4f31")


async def test_chunks_are_put_read_and_dropped(tmp_path: Path) -> None:
    chunks = FolderFileChunks.of(tmp_path.as_uri())
    for index in range(3):
        await chunks.put(ACME, "ü", BLOB, index, b"%d" % index)
    await chunks.put(ACME, "ü", BLOB, 1, b"1")
    await chunks.put(ACME, "ü", BlobId("4f32"), 0, b"other")
    assert [await chunks.get(ACME, BLOB, index) for index in range(4)] == [b"0", b"1", b"2", None]
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert names == [*(f"files/4f/4f31/00000{index}" for index in range(3)), "files/4f/4f32/000000"]
    await chunks.drop(ACME, BLOB)
    await chunks.drop(ACME, BLOB)
    assert await chunks.get(ACME, BLOB, 0) is None and await chunks.get(ACME, BlobId("4f32"), 0) == b"other"


async def test_a_folder_that_cannot_be_used_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "files").write_bytes(b"no folder")
    chunks = FolderFileChunks.of(str(tmp_path))
    with pytest.raises(Unavailable) as caught:
        await chunks.put(ACME, "ü", BLOB, 0, b"x")
    assert caught.value.code == "file_folder_unavailable"


@pytest.mark.parametrize("address", ["s3://bucket/prefix", "http://host/x", "file://host/x"])
def test_a_bucket_is_refused_with_what_to_do(address: str) -> None:
    with pytest.raises(BadInput, match="aws s3 sync"):
        FolderFileChunks.of(address)


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_a_file_in_the_place_of_the_folder_is_refused(address: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"no folder")
    with pytest.raises(BadInput, match="this is no folder"):
        FolderFileChunks.of(address.format(tmp_path / "a"))
    FolderFileChunks.of(address.format(tmp_path / "new"))


async def test_a_tenant_whose_keys_are_destroyed_stops_no_sweep(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)
    for tenant in ("acme", "globex"):
        head = await grant(store.journal, key("s", tenant))
        about = patch(open=True, title=f"of {tenant}")
        await store.journal.append(an_append(head, 1, head=about, at=UnixMs(1)))
    await store.database.codec.keys.destroy(ACME)
    heads = await store.journal.open_heads(limit=10, after=None)
    assert [(head.key.tenant, head.title) for head in heads] == [("acme", None), ("globex", "of globex")]
    listed = await store.journal.list_heads(ACME, user=None, limit=10, after=None)
    assert [head.key for head in listed] == [key("s")]
    alone = await store.journal.head(key("s"))
    assert alone is not None and alone.title is None
    again = await store.journal.grant(
        key("s"), expected_fence=alone.fence, owner="r/a", new_epoch=Epoch("e"), now_ms=UnixMs(2)
    )
    assert again.fence > alone.fence and again.title is None
    with pytest.raises(Internal):
        await store.journal.load(key("s"), now_ms=UnixMs(3))
    await store.close()


async def test_a_damaged_head_costs_its_title_alone(tmp_path: Path) -> None:
    bed = SqliteBed(tmp_path)
    store = await bed.open()
    for name in ("one", "two", "three"):
        await a_log(store.journal, name, 1)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "data" / "journal.db")) as database:
        database.execute("UPDATE heads SET about = x'ff00' WHERE session = 'two'")
        database.commit()
    store = await bed.open()
    heads = await store.journal.list_heads(TenantId("acme"), user=None, limit=10, after=None)
    assert {head.key.session for head in heads} == {"one", "two", "three"}
    alone = await store.journal.head(key("two"))
    assert alone is not None and alone.title is None and alone.top == 1
    await store.close()


def test_both_databases_have_the_same_versions_without_a_gap() -> None:
    """Whoever adds a table to one adds it to the other, under the same number."""
    assert len(read_migrations(sqlite_schema.MIGRATIONS)) == len(read_migrations(postgres_schema.MIGRATIONS)) >= 9


@pytest.mark.parametrize(
    "names", [[], ["002.sql"], ["001.sql", "003.sql"], ["001.sql", "2.sql"], ["001.sql", "01.sql"]]
)
def test_a_gap_or_another_name_is_noticed(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(AssertionError):
        read_migrations(tmp_path)


def test_a_compatible_migration_does_not_raise_what_a_program_has_to_know() -> None:
    assert required_version([]) == 0
    assert required_version(["SELECT 1", "SELECT 2"]) == 2
    assert required_version(["SELECT 1", "-- compatible with 1\nSELECT 2", "-- compatible with 1\nSELECT 3"]) == 1
    assert required_version(["SELECT 1", "-- compatible with 1\nSELECT 2", "DROP TABLE x"]) == 3
    assert required_version(["SELECT 1", "SELECT 2 -- compatible with 1\n"]) == 2, "in the first line alone"


def test_each_release_leaves_the_database_to_the_one_before() -> None:
    """14 is what the release before knows (tests/support/neighbours/previous.py)."""
    for folder in (sqlite_schema.MIGRATIONS, postgres_schema.MIGRATIONS):
        assert required_version(read_migrations(folder)) <= SCHEMA


async def test_a_relay_without_work_commits_nothing(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.push.subscribe(a_device("phone"))
    await a_log(store.journal, "s", 2)

    async def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a transaction")

    monkeypatch.setattr(store.database, "run", refuse)
    assert await store.push.claim(UnixMs(NOW + GRACE_MS), until=UnixMs(NOW + GRACE_MS), limit=9) == []
    await store.push.read_to(key("s"), 9)


async def test_names_that_cannot_be_stored_are_refused(store: SqliteStore) -> None:
    with pytest.raises(BadInput):
        await store.push.subscriptions(ACME, "\x00")
    with pytest.raises(BadInput):
        await store.push.unsubscribe(ACME, "ü", PushId("\ud800"))


async def put(store: SqliteStore, *cases: Case) -> None:
    await store.journal.append(an_append(await a_log(store.journal, "s", 0), 1, reviews=cases))


async def test_a_transition_that_always_meets_another_gives_up(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement never finds the state that the check has seen."""
    await put(store, a_case("a"))
    monkeypatch.setattr(
        "persistence.sql.reviews.CLAIM", "UPDATE reviews SET state = 'claimed' WHERE id = $1 AND $2 = $4 AND $3 = $5"
    )
    with pytest.raises(Conflict) as caught:
        await store.reviews.claim(ReviewId("a"), by="eve", now=NOW, command="c")
    assert caught.value.retryable


async def test_tidying_goes_in_steps_and_counts_what_was_not_decided(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.sql.reviews.TIDY_ROWS", 2)
    await put(store, *(a_case(f"c{n}", action="flag") for n in range(5)))
    name = ReviewId("c0")
    await store.reviews.claim(name, by="eve", now=NOW, command="c")
    decided = await store.reviews.decide(name, by="eve", outcome="upheld", remark="", now=NOW, command="d")
    assert decided.told, "nobody waits to hear of a mere flag"
    assert await store.reviews.tidy(now=UnixMs(NOW + OPEN_MS + 1)) == (4, 0)
    assert await store.reviews.tidy(now=UnixMs(NOW + DECIDED_MS + 1)) == (0, 0)
    assert await store.reviews.find(name) is None
