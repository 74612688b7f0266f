"""The index of passages: its databases, their dialects, words as keyed hashes, what is sealed."""

from __future__ import annotations

import asyncio
import stat
import threading
from array import array
from pathlib import Path
from typing import Any

import numpy
import pytest

from persistence.codec import KeyNotLoaded, PlainCodec, Row
from persistence.passages import index as module
from persistence.passages import opening
from persistence.passages import signs as signs_module
from persistence.passages.databases import SqlitePassages
from persistence.passages.dialects import (
    COMMON_CHUNKS,
    Dialect,
    PostgresDialect,
    SqliteDialect,
    WordQuery,
    condition,
    halved,
)
from persistence.passages.index import SqlPassageIndex
from persistence.passages.postgres import PostgresPassages
from persistence.passages.signs import SignCache, StoreSigns, packed, signs
from persistence.passages.words import hashed, indexed_text, words
from persistence.sql.script import Parameters, Query, Script, one_query
from sessions.model.errors import BadInput, Limited, Unavailable
from sessions.model.types import SessionKey, TenantId, UnixMs
from sessions.retrieval.filters import parse_filter
from sessions.retrieval.vector_stores import DocumentId, NewChunk, StoreFile, StoreId, VectorStore

INSERT = (
    "INSERT INTO stores (tenant, id, end_user, model, dimensions, created_at, key_id, body)"
    " VALUES ($1, $2, '', 'm', 3, 1, '', x'00')"
)


async def test_a_script_stands_whole_or_not_at_all(tmp_path: Path) -> None:
    database = SqlitePassages(tmp_path / "passages.db")
    await database.open()

    def broken() -> Script[None]:
        yield Query(INSERT, ("acme", "a"))
        raise BadInput("invalid_request", "no")

    with pytest.raises(BadInput):
        await database.run(broken)
    assert await database.rows("SELECT id FROM stores") == []
    await database.run(lambda: one_query(INSERT, ("acme", "b")))
    with pytest.raises(Unavailable, match="IntegrityError"):
        await database.run(lambda: one_query(INSERT, ("acme", "b")))
    assert await database.rows("SELECT id FROM stores WHERE tenant = $1", ("acme",)) == [("b",)]
    many = await asyncio.gather(*(database.rows("SELECT count(*) FROM stores") for _ in range(9)))
    assert many == [[(1,)]] * 9
    await database.close()
    with pytest.raises(Unavailable):
        await database.rows("SELECT 1")
    again = SqlitePassages(tmp_path / "passages.db")
    await again.open()
    assert await again.rows("SELECT id FROM stores") == [("b",)]
    await again.close()


async def test_extensions_can_be_loaded_by_no_statement(tmp_path: Path) -> None:
    database = SqlitePassages(None)
    await database.open()
    with pytest.raises(Unavailable):
        await database.rows("SELECT load_extension($1)", ("libm.so.6",))
    await database.close()


async def test_a_server_that_is_not_there_says_so() -> None:
    database = PostgresPassages("postgresql://127.0.0.1:1/none")
    with pytest.raises(Unavailable, match="do not answer"):
        await database.open()
    work: Any = database.rows("SELECT 1")
    with pytest.raises(Unavailable):
        await work
    await database.close()


async def test_a_cancelled_read_of_a_stopped_server_ends_its_connection_before_giving_it_back() -> None:
    class StoppedConnection:
        def __init__(self) -> None:
            self.terminated = asyncio.Event()
            self.asked = asyncio.Event()

        async def fetch(self, *_: object) -> list[Any]:
            self.asked.set()
            await asyncio.Event().wait()
            return []

        def terminate(self) -> None:
            self.terminated.set()

    class Pool:
        async def acquire(self, *, timeout: float) -> StoppedConnection:
            return connection

        async def release(self, given_back: StoppedConnection) -> None:
            await given_back.terminated.wait()  # as asyncpg's waits for the server's answer to a cancelled query

    connection = StoppedConnection()
    database = PostgresPassages("postgresql://127.0.0.1:1/none")
    database._pool = Pool()
    reading = asyncio.create_task(database.rows("SELECT 1"))
    async with asyncio.timeout(60):
        await connection.asked.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert connection.terminated.is_set()


@pytest.mark.parametrize("in_a_file", [True, False])
async def test_cancelled_reads_leave_the_line_and_later_ones_are_answered(tmp_path: Path, in_a_file: bool) -> None:
    database = SqlitePassages(tmp_path / "passages.db" if in_a_file else None)
    await database.open()
    waiting, held = asyncio.get_running_loop(), threading.Event()
    entered, executed = asyncio.Semaphore(0), list[str]()
    plain = database._execute

    def execute(connection: Any, text: str, values: Any) -> list[Any]:
        executed.append(text)
        if text == "SELECT 'slow'":
            waiting.call_soon_threadsafe(entered.release)
            assert held.wait(60)
        return plain(connection, text, values)

    database._execute = execute  # type: ignore[method-assign]
    slow = [asyncio.create_task(database.rows("SELECT 'slow'")) for _ in range(2 if in_a_file else 1)]
    async with asyncio.timeout(60):
        for _ in slow:
            await entered.acquire()
    behind = [asyncio.create_task(database.rows("SELECT 'behind'")) for _ in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    for task in (*behind, slow[0]):
        task.cancel()
    await asyncio.gather(*behind, return_exceptions=True)
    held.set()
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*slow, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert await asyncio.gather(*(database.rows("SELECT 1") for _ in range(5))) == [[(1,)]] * 5
    assert "SELECT 'behind'" not in executed
    await database.close()


VECTOR = array("f", [0.5, -0.25, 0.0, 1.0]).tobytes()


def test_vectors_as_they_are_stored() -> None:
    assert signs(VECTOR) == bytes([0b10010000])
    assert array("H", halved(VECTOR))[0] == 0x3800
    assert PostgresDialect().vector(VECTOR) == "[0.5,-0.25,0,1]"
    assert packed([7, 258]) == bytes(7) + b"\x07" + bytes(6) + b"\x01\x02"


def some_signs(store: StoreSigns, row: int, vectors: numpy.ndarray[Any, Any]) -> StoreSigns:
    bits = b"".join(signs(vector.tobytes()) for vector in vectors)
    return store.joined([(row, packed(range(row, row + len(vectors))), bits)])


@pytest.mark.parametrize("dimensions", [4, 64, 100])
def test_the_nearest_signs_are_those_with_the_fewest_other_bits(dimensions: int) -> None:
    rng = numpy.random.default_rng(1)
    vectors = rng.normal(size=(60, dimensions)).astype("<f4")
    store = some_signs(some_signs(SignCache().get(1), 100, vectors[:50]), 200, vectors[50:])
    query = rng.normal(size=dimensions).astype("<f4")
    others = ((vectors > 0) != (query > 0)).sum(axis=1)
    order = sorted(zip(others.tolist(), [*range(100, 150), *range(200, 210)], strict=True))
    assert store.nearest(query.tobytes(), None, 20) == [number for _, number in order[:20]]
    assert store.nearest(query.tobytes(), {200}, 5) == [number for _, number in order if number >= 200][:5]
    assert store.nearest(query.tobytes(), set(), 5) == []
    rest = store.of_rows({200, 300}, 7)
    assert (rest.version, rest.rows) == (7, {200: 10})
    assert rest.nearest(query.tobytes(), None, 60) == [number for _, number in order if number >= 200]


def test_the_cache_of_signs_drops_the_store_that_was_not_searched_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, one = SignCache(), some_signs(SignCache().get(1), 1, numpy.ones((4, 64), "<f4"))
    monkeypatch.setattr(signs_module, "KEPT_BYTES_MAX", 2 * one.size)
    for store in (1, 2):
        cache.put(store, one)
    cache.get(1)
    cache.put(3, one)
    assert [len(cache.get(store).rows) for store in (2, 1, 3)] == [0, 1, 1]
    monkeypatch.setattr(signs_module, "KEPT_BYTES_MAX", 0)
    cache.put(4, one)
    cache.put(4, one)
    assert cache.get(4) is one and cache._size == one.size


def test_rare_words_find_chunks_and_common_ones_only_together() -> None:
    common = COMMON_CHUNKS + 1
    rare = WordQuery.of([(common, "the"), (7, "b"), (0, "none"), (3, "a")])
    assert rare == (("a", "b"), (), ("the", "b", "a"))
    misspelt = WordQuery.of([(0, "brigde"), (common, "river"), (common, "boat")])
    assert misspelt == ((), ("river", "boat"), ("river", "boat"))
    assert WordQuery.of([(common, word) for word in "abcd"]) == ((), ("a", "b", "c"), tuple("abcd"))
    many = WordQuery.of([(COMMON_CHUNKS, word) for word in "abc"])
    assert many.some == ("a", "b")  # together they have RANKED_CHUNKS


@pytest.mark.parametrize("dialect", [SqliteDialect(), PostgresDialect()])
def test_no_word_of_a_filter_stands_in_its_condition(dialect: Dialect) -> None:
    statement = Parameters()
    inner = [{"type": op, "key": "k'\"", "value": "v'\""} for op in ("eq", "ne", "gt", "lte")]
    numbers = [{"type": "in", "key": "n", "value": [1, 2.5, True]}, {"type": "lt", "key": "n", "value": 3}]
    text = condition(dialect, statement, parse_filter({"type": "or", "filters": [*inner, *numbers]}))
    assert "k'" not in text and "v'" not in text and text.count("EXISTS") == 6 and text.count("NOT EXISTS") == 1
    assert text.count(" OR ") >= 5 and "k'\"" in statement.values


ACME = TenantId("acme")
STORE = VectorStore(
    id=StoreId("vs_1"), tenant=ACME, user=None, model="m", dimensions=8, created_at=UnixMs(1), name="a secret name"
)
INDEX_VECTOR = b"\x00\x00\x80\x3f" * 8


def a_file(name: str = "f1") -> StoreFile:
    return StoreFile(id=DocumentId(name), store=STORE.id, tenant=ACME, filename="secret.md", created_at=UnixMs(1))


class Reversing(PlainCodec):
    """Stands in for encryption, with a key that has to be loaded first; each row opens as itself alone."""

    def __init__(self) -> None:
        self.loaded = False

    def encode(self, key: SessionKey, row: Row, plain: bytes) -> tuple[str, bytes]:
        if not self.loaded:
            raise KeyNotLoaded(key.tenant, "")
        return "k", f"{key.tenant} {row}|".encode() + plain[::-1]

    def decode(self, key: SessionKey, row: Row, key_id: str, stored: bytes) -> bytes:
        name, _, body = stored.partition(b"|")
        assert (key_id, name) == ("k", f"{key.tenant} {row}".encode())
        return body[::-1]

    async def load(self, tenant: TenantId, key_id: str) -> None:
        self.loaded = True


async def test_texts_and_names_are_sealed_row_by_row() -> None:
    database = SqlitePassages(None)
    await database.open()
    index = SqlPassageIndex(database, Reversing())
    await index.create(STORE)
    await index.add_file(a_file(), "the secret text")
    claimed = await index.claim(UnixMs(5), UnixMs(9))
    assert claimed is not None
    assert await index.put_chunks(
        claimed, [NewChunk("the secret text", 0, 15, INDEX_VECTOR)], last=True, until=UnixMs(9)
    )
    rows = [
        *await database.rows("SELECT body FROM stores"),
        *await database.rows("SELECT body FROM files"),
        *await database.rows("SELECT text FROM files"),
        *await database.rows("SELECT body FROM chunks"),
    ]
    assert len(rows) == 4 and not any(b"secret" in bytes(body) for (body,) in rows)
    ((number, _),) = await index.nearest(ACME, STORE.id, INDEX_VECTOR, None, 5)
    (passage,) = await index.passages(ACME, STORE.id, [number])
    assert (passage.text, passage.filename) == ("the secret text", "secret.md")
    assert await index.text(ACME, STORE.id, DocumentId("f1")) == "the secret text"
    assert (await index.stores(ACME, None, anybody=True))[0].name == "a secret name"
    await database.close()


async def test_bounds_of_stores_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORES_MAX", 1)
    monkeypatch.setattr(module, "FILES_MAX", 1)
    database = SqlitePassages(None)
    await database.open()
    index = SqlPassageIndex(database, PlainCodec())
    await index.create(STORE)
    with pytest.raises(Limited, match="vector stores"):
        await index.create(VectorStore(**{**{n: getattr(STORE, n) for n in STORE.__struct_fields__}, "id": "vs_2"}))
    await index.add_file(a_file(), "x")
    with pytest.raises(Limited, match="files"):
        await index.add_file(a_file("f2"), "x")
    assert await index.nearest(ACME, STORE.id, INDEX_VECTOR, None, 5) == []
    monkeypatch.setattr(module, "STORE_CHUNKS_MAX", 1)
    claimed = await index.claim(UnixMs(5), UnixMs(9))
    assert claimed is not None
    chunk = NewChunk("x", 0, 1, INDEX_VECTOR)
    with pytest.raises(Limited, match="chunks"):
        await index.put_chunks(claimed, [chunk, chunk], last=True, until=UnixMs(9))
    assert await database.rows("SELECT count(*) FROM chunks") == [(0,)]
    assert await index.put_chunks(claimed, [chunk], last=True, until=UnixMs(9))
    await database.close()


async def test_a_file_beside_the_journal_memory_or_none(tmp_path: Path) -> None:
    async with opening.open_passages("sqlite", tmp_path, None) as index:
        assert index is not None
    made = tmp_path / opening.FILE
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    async with opening.open_passages("memory", tmp_path, None) as index:
        assert index is not None
    async with opening.open_passages("off", tmp_path, None) as index:
        assert index is None
    made.write_bytes(b"no database at all" * 1000)
    async with opening.open_passages("sqlite", tmp_path, None) as index:
        assert index is None
    async with opening.open_passages("postgresql://127.0.0.1:1/none", None, None) as index:
        assert index is None


ONE, OTHER = b"1" * 16, b"2" * 16


def test_forms_of_a_word_are_one_and_common_words_are_none() -> None:
    assert list(words("The Cats and a cat's CAT: Straßen, naïve")) == ["cat", "cat", "s", "cat", "strassen", "naiv"]
    assert list(words("studies studied running runs raised raise rates rate glasses glass"))[4:] == [
        *("rais", "rais", "rat", "rat", "glass", "glass")
    ]
    assert list(words("")) == [] and list(words("漢字 テスト")) == ["漢字", "テスト"]


def test_a_hash_is_letters_and_its_stores_alone() -> None:
    assert hashed("fox", ONE).isalpha() and len(hashed("fox", ONE)) == 16
    assert hashed("fox", ONE) != hashed("fox", OTHER)
    text = indexed_text("A fox, a fox and a dog", ONE).split()
    assert text == [hashed("fox", ONE), hashed("fox", ONE), hashed("dog", ONE)]
