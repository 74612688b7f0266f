"""The port `PassageIndex` on either database.

Texts, file names, names of stores and their metadata are sealed with the key of their tenant; a store's row also has
the secret by which its words are hashed (`words`). A chunk is found only while its file is `completed`, and a store
only while its row exists: the next search does not find what was deleted, and its rows are deleted in the same
transaction.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import msgspec

from persistence.codec import Codec, with_keys
from persistence.passages.databases import PassageDatabase
from persistence.passages.dialects import COMMON_CHUNKS, OVERSAMPLED, PUT_SIGNS, PUT_WORDS, WordQuery, condition
from persistence.passages.signs import ROWS_AT_ONCE, SignCache, StoreSigns, packed, signs
from persistence.passages.words import SECRET_BYTES, indexed_text, query_words
from persistence.sql.script import Parameters, Query, Script, one_query
from persistence.validation import check_text
from sessions.model.errors import Limited
from sessions.model.types import SessionKey, TenantId, UnixMs
from sessions.retrieval.chunking import Chunking
from sessions.retrieval.filters import AttributeFilter, Value
from sessions.retrieval.vector_stores import (
    FILES_MAX,
    PASSAGES,
    STORE_CHUNKS_MAX,
    STORES_MAX,
    WHOLE_LIST,
    DocumentId,
    DocumentKey,
    FileCounts,
    FileStatus,
    ListSlice,
    NewChunk,
    Passage,
    StoreFile,
    StoreId,
    VectorStore,
)

T = TypeVar("T")

_STORE: Final = "num, tenant, id, end_user, model, dimensions, chunks, version, created_at, key_id, body"
_FILE: Final = "f.tenant, s.id, f.id, f.status, f.created_at, f.batch, f.size, f.attributes, f.key_id, f.body"
_OF: Final = "FROM files f JOIN stores s ON s.num = f.store AND s.tenant = f.tenant"
_NUM: Final = "SELECT num FROM stores WHERE tenant = $1 AND id = $2"
_MINE: Final = f"tenant = $1 AND store = ({_NUM}) AND id = $3"
_CLAIMED: Final = f"{_MINE} AND claimed = $4 AND status = 'in_progress'"


class _StoreBody(msgspec.Struct, frozen=True):
    name: str
    metadata: dict[str, str]
    secret: bytes


class _FileBody(msgspec.Struct, frozen=True):
    filename: str
    error: str
    chunking: Chunking


class _ChunkBody(msgspec.Struct, frozen=True, array_like=True):
    text: str
    start: int
    end: int


class _StoreRow(msgspec.Struct, frozen=True):
    num: int
    store: VectorStore
    chunks: int
    version: int
    secret: bytes


_encode = msgspec.msgpack.Encoder().encode
_store_body = msgspec.msgpack.Decoder(_StoreBody).decode
_file_body = msgspec.msgpack.Decoder(_FileBody).decode
_chunk_body = msgspec.msgpack.Decoder(_ChunkBody).decode


class SqlPassageIndex:
    """The port `PassageIndex` on SQLite or PostgreSQL; usable while its database is open. It has as many methods as the
    port, and one for each statement that several of them share."""

    def __init__(self, database: PassageDatabase, codec: Codec) -> None:
        self._database = database
        self._codec = codec
        self._dialect = database.dialect
        self._signs = SignCache()
        self._loading = WeakValueDictionary[TenantId, asyncio.Lock]()

    # -- stores -------------------------------------------------------------------------------------------------------

    async def create(self, store: VectorStore) -> None:
        check_text(store.tenant, store.id, store.user)
        body = _StoreBody(store.name, store.metadata, os.urandom(SECRET_BYTES))
        key_id, sealed = await self._seal(store.tenant, f"store {store.id}", _encode(body))
        values = (store.tenant, store.id, store.user or "", store.model, store.dimensions, store.created_at)

        def script() -> Script[None]:
            ((count,),) = yield Query("SELECT count(*) FROM stores WHERE tenant = $1", (store.tenant,))
            if count >= STORES_MAX:
                raise Limited("quota_exceeded", f"This tenant has its {STORES_MAX} vector stores; delete some first.")
            yield Query(
                "INSERT INTO stores (tenant, id, end_user, model, dimensions, created_at, key_id, body)"
                " VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                (*values, key_id, sealed),
            )

        await self._database.run(script)

    async def store(self, tenant: TenantId, store_id: StoreId) -> VectorStore | None:
        row = await self._row(tenant, store_id)
        return None if row is None else row.store

    async def stores(
        self, tenant: TenantId, user: str | None, *, anybody: bool, part: ListSlice = WHOLE_LIST
    ) -> list[VectorStore]:
        statement = Parameters()
        owner = statement.put(tenant)
        text = f"SELECT {_STORE} FROM stores WHERE tenant = {owner}"
        if not anybody:
            text += f" AND end_user = {statement.put(user or '')}"
        cursor = f"SELECT created_at, num FROM stores WHERE tenant = {owner}"
        text += _cut(statement, part, "created_at, num", cursor)
        return [row.store for row in await self._read(text, statement.values, self._store_of)]

    async def stores_of_ids(self, tenant: TenantId, store_ids: Collection[StoreId]) -> list[VectorStore]:
        statement = Parameters()
        where = f"WHERE tenant = {statement.put(tenant)} AND id IN ({statement.put_ids(store_ids)})"
        text = f"SELECT {_STORE} FROM stores {where} ORDER BY created_at DESC, num DESC"
        return [row.store for row in await self._read(text, statement.values, self._store_of)]

    async def change(self, store: VectorStore) -> None:
        row = await self._row(store.tenant, store.id)
        if row is not None:
            body = _StoreBody(store.name, store.metadata, row.secret)
            sealed = await self._seal(store.tenant, f"store {store.id}", _encode(body))
            text = "UPDATE stores SET key_id = $3, body = $4 WHERE tenant = $1 AND id = $2"
            await self._database.run(lambda: one_query(text, (store.tenant, store.id, *sealed)))

    async def delete(self, tenant: TenantId, store_id: StoreId) -> bool:
        check_text(store_id)

        def script() -> Script[bool]:
            text = "DELETE FROM stores WHERE tenant = $1 AND id = $2 RETURNING num"
            for (num,) in (yield Query(text, (tenant, store_id))):
                yield from self._emptied(tenant, num, None)
                yield Query("DELETE FROM files WHERE tenant = $1 AND store = $2", (tenant, num))
                return True
            return False

        return await self._database.run(script)

    async def forget_user(self, tenant: TenantId, user: str) -> int:
        stores = await self.stores(tenant, user, anybody=False)
        return sum([await self.delete(tenant, store.id) for store in stores])

    async def counts(self, tenant: TenantId, store_id: StoreId, *, batch: str = "") -> FileCounts:
        check_text(store_id, batch)
        text = (
            f"SELECT status, count(*), sum(size) FROM files WHERE tenant = $1 AND store = ({_NUM})"
            " AND ($3 = '' OR batch = $3) GROUP BY status"
        )
        rows = await self._database.rows(text, (tenant, store_id, batch))
        counts = {status: int(count) for status, count, _ in rows}
        return FileCounts(**counts, size=sum(int(size) for _, _, size in rows))

    # -- files --------------------------------------------------------------------------------------------------------

    async def add_file(self, file: StoreFile, text: str, *, replace: bool = False) -> None:
        check_text(file.tenant, file.store, file.id, file.batch, *_texts_of(file.attributes))
        sealed = await self._seal(
            file.tenant, f"file {file.id}", _encode(_FileBody(file.filename, file.error, file.chunking))
        )
        sealed_text = await self._seal(file.tenant, f"text {file.id}", text.encode())

        def script() -> Script[None]:
            for (num,) in (yield Query(_NUM, (file.tenant, file.store))):
                where = "WHERE tenant = $1 AND store = $2 AND id = $3"
                if not replace:
                    same = f"UPDATE files SET batch = CASE WHEN $4 = '' THEN batch ELSE $4 END {where} RETURNING id"
                    if (yield Query(same, (file.tenant, num, file.id, file.batch))):
                        return
                elif (yield Query(f"DELETE FROM files {where} RETURNING id", (file.tenant, num, file.id))):
                    yield from self._emptied(file.tenant, num, file.id)
                of = "SELECT count(*) FROM files WHERE tenant = $1 AND store = $2"
                ((count,),) = yield Query(of, (file.tenant, num))
                if count >= FILES_MAX:
                    raise Limited("quota_exceeded", f"This store has its {FILES_MAX} files; take some out first.")
                yield Query(
                    "INSERT INTO files (tenant, store, id, status, created_at, batch, size, attributes, key_id, body,"
                    " text_key, text) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
                    " ON CONFLICT (tenant, store, id) DO NOTHING",
                    (
                        *(file.tenant, num, file.id, file.status, file.created_at, file.batch, file.size),
                        *(json.dumps(file.attributes), *sealed, *sealed_text),
                    ),
                )

        await self._database.run(script)

    async def file(self, tenant: TenantId, store_id: StoreId, file_id: DocumentId) -> StoreFile | None:
        check_text(store_id, file_id)
        text = f"SELECT {_FILE} {_OF} WHERE f.tenant = $1 AND s.id = $2 AND f.id = $3"
        return next(iter(await self._read(text, (tenant, store_id, file_id), self._file_of)), None)

    async def files(
        self,
        tenant: TenantId,
        store_id: StoreId,
        *,
        batch: str = "",
        status: FileStatus | None = None,
        part: ListSlice = WHOLE_LIST,
    ) -> list[StoreFile]:
        check_text(store_id, batch)
        statement = Parameters()
        owner, store = statement.put(tenant), statement.put(store_id)
        text = f"SELECT {_FILE} {_OF} WHERE f.tenant = {owner} AND s.id = {store}"
        if batch:
            text += f" AND f.batch = {statement.put(batch)}"
        if status is not None:
            text += f" AND f.status = {statement.put(status)}"
        num = f"(SELECT num FROM stores WHERE tenant = {owner} AND id = {store})"
        cursor = f"SELECT created_at, id FROM files WHERE tenant = {owner} AND store = {num}"
        text += _cut(statement, part, "f.created_at, f.id", cursor)
        return await self._read(text, statement.values, self._file_of)

    async def text(self, tenant: TenantId, store_id: StoreId, file_id: DocumentId) -> str | None:
        check_text(store_id, file_id)
        text = f"SELECT text_key, text FROM files WHERE {_MINE}"
        key, name = SessionKey(tenant, PASSAGES), f"text {file_id}"

        def opened(row: Any) -> str:
            key_id, stored = row
            return self._codec.decode(key, name, key_id, bytes(stored)).decode()

        return next(iter(await self._read(text, (tenant, store_id, file_id), opened)), None)

    async def set_attributes(
        self, tenant: TenantId, store_id: StoreId, file_id: DocumentId, attributes: Mapping[str, Value]
    ) -> bool:
        check_text(store_id, file_id, *_texts_of(attributes))
        text = f"UPDATE files SET attributes = $4 WHERE {_MINE} RETURNING id"
        values = (tenant, store_id, file_id, json.dumps(dict(attributes)))
        return bool(await self._database.run(lambda: one_query(text, values)))

    async def remove_file(self, tenant: TenantId, store_id: StoreId, file_id: DocumentId) -> bool:
        check_text(store_id, file_id)

        def script() -> Script[bool]:
            for (num,) in (yield Query(_NUM, (tenant, store_id))):
                gone = "DELETE FROM files WHERE tenant = $1 AND store = $2 AND id = $3 RETURNING id"
                there = yield Query(gone, (tenant, num, file_id))
                yield from self._emptied(tenant, num, file_id)
                return bool(there)
            return False

        return await self._database.run(script)

    async def remove_document(self, tenant: TenantId, file_id: DocumentId) -> int:
        check_text(file_id)
        text = f"SELECT s.id {_OF} WHERE f.tenant = $1 AND f.id = $2"
        stores = await self._database.rows(text, (tenant, file_id))
        return sum([await self.remove_file(tenant, StoreId(store_id), file_id) for (store_id,) in stores])

    async def documents(
        self, tenant: TenantId | None, prefix: str, after: DocumentKey | None, limit: int
    ) -> list[DocumentKey]:
        statement = Parameters()
        where = f"substr(id, 1, {len(prefix)}) = {statement.put(prefix)}"
        if tenant is not None:
            where += f" AND tenant = {statement.put(tenant)}"
        if after is not None:
            where += f" AND (tenant, id) > ({statement.put(after.tenant)}, {statement.put(after.id)})"
        text = f"SELECT DISTINCT tenant, id FROM files WHERE {where} ORDER BY tenant, id LIMIT {statement.put(limit)}"
        return [DocumentKey(owner, file_id) for owner, file_id in await self._database.rows(text, statement.values)]

    async def present(self, tenant: TenantId, documents: Collection[DocumentId]) -> set[DocumentId]:
        statement = Parameters()
        where = f"WHERE tenant = {statement.put(tenant)} AND id IN ({statement.put_ids(documents)})"
        rows = await self._database.rows(f"SELECT DISTINCT id FROM files {where}", statement.values)
        return {DocumentId(file_id) for (file_id,) in rows}

    async def cancel_batch(self, tenant: TenantId, store_id: StoreId, batch: str) -> int:
        check_text(store_id, batch)
        text = (
            f"UPDATE files SET status = 'cancelled' WHERE tenant = $1 AND store = ({_NUM}) AND batch = $3"
            " AND status = 'in_progress' RETURNING id"
        )
        return len(await self._database.run(lambda: one_query(text, (tenant, store_id, batch))))

    # -- reading documents in -----------------------------------------------------------------------------------------

    async def claim(self, now: UnixMs, until: UnixMs) -> StoreFile | None:
        def script() -> Script[list[Any]]:
            text = (
                "UPDATE files SET claimed = $2 WHERE (tenant, store, id) IN (SELECT tenant, store, id FROM files"
                " WHERE status = 'in_progress' AND claimed < $1 ORDER BY created_at LIMIT 1)"
                " AND claimed < $1 RETURNING tenant, store, id"
            )
            for tenant, num, file_id in (yield Query(text, (now, until))):
                yield from self._emptied(tenant, num, file_id)
                where = "WHERE f.tenant = $1 AND f.store = $2 AND f.id = $3"
                return (yield Query(f"SELECT {_FILE} {_OF} {where}", (tenant, num, file_id)))
            return []

        rows = await self._database.run(script)
        for file in await with_keys(self._codec, lambda: [self._file_of(row) for row in rows]):
            return msgspec.structs.replace(file, claimed_until=until)
        return None

    async def put_chunks(self, file: StoreFile, chunks: Sequence[NewChunk], *, last: bool, until: UnixMs) -> bool:
        row = await self._row(file.tenant, file.store)
        if row is None:
            return False
        bodies = [_encode(_ChunkBody(chunk.text, chunk.start, chunk.end)) for chunk in chunks]
        name = f"chunk {file.id}"
        sealed = [await self._seal(file.tenant, name, body) for body in bodies]
        words = [indexed_text(chunk.text, row.secret) for chunk in chunks]
        status = "completed" if last else "in_progress"
        bits = b"".join(signs(chunk.vector) for chunk in chunks)

        def script() -> Script[bool]:
            text = f"UPDATE files SET status = $5, claimed = $6 WHERE {_CLAIMED} RETURNING store"
            mine = file.tenant, file.store, file.id, file.claimed_until
            if not (yield Query(text, (*mine, status, until))):
                cancelled = f"SELECT id FROM files WHERE {_MINE} AND status = 'cancelled'"
                if (yield Query(cancelled, mine[:3])):  # nobody else reads it: what this reader has put is removed
                    yield from self._emptied(file.tenant, row.num, file.id)
                return False
            numbers = list[int]()
            for chunk, (key_id, body), said in zip(chunks, sealed, words, strict=True):
                values = [file.tenant, row.num, file.id, key_id, body, self._dialect.vector(chunk.vector)]
                if self._dialect.one_table:
                    values += [row.store.dimensions, said]
                ((num,),) = yield Query(self._dialect.put_chunk(), values)
                numbers.append(num)
                if not self._dialect.one_table:
                    yield Query(PUT_WORDS, (num, said))
            if numbers:
                yield Query(PUT_SIGNS, (file.tenant, row.num, file.id, numbers[0], packed(numbers), bits))
            text = "UPDATE stores SET chunks = chunks + $2, version = version + $3 WHERE num = $1 RETURNING chunks"
            for (count,) in (yield Query(text, (row.num, len(chunks), int(last)))):
                if count > STORE_CHUNKS_MAX:
                    raise Limited("quota_exceeded", f"This store has its {STORE_CHUNKS_MAX} chunks; take files out.")
            return True

        return await self._database.run(script)

    async def fail(self, file: StoreFile, error: str) -> bool:
        body = _encode(_FileBody(file.filename, error, file.chunking))
        sealed = await self._seal(file.tenant, f"file {file.id}", body)

        def script() -> Script[bool]:
            text = f"UPDATE files SET status = 'failed', key_id = $5, body = $6 WHERE {_CLAIMED} RETURNING store"
            failed = yield Query(text, (file.tenant, file.store, file.id, file.claimed_until, *sealed))
            for (num,) in failed:
                yield from self._emptied(file.tenant, num, file.id)
            return bool(failed)

        return await self._database.run(script)

    def _emptied(self, tenant: TenantId, num: int, file_id: DocumentId | None) -> Script[None]:
        count = "SELECT count(*) FROM chunks WHERE tenant = $1 AND store = $2"
        ((before,),) = yield Query(count, (tenant, num))
        if before:
            for each in self._dialect.take_away():
                yield Query(each, (tenant, num, file_id))
            ((left,),) = yield Query(count, (tenant, num))
            yield Query("UPDATE stores SET chunks = $2, version = version + 1 WHERE num = $1", (num, left))

    # -- searches -----------------------------------------------------------------------------------------------------

    async def nearest(
        self, tenant: TenantId, store_id: StoreId, vector: bytes, only: AttributeFilter | None, limit: int
    ) -> list[tuple[int, float]]:
        row = await self._row(tenant, store_id)
        if row is None or not row.chunks or len(vector) != 4 * row.store.dimensions:
            return []
        allowed_rows = None if only is None else set(await self._sign_rows(row, only))
        store_signs = await self._loaded_signs(row)
        numbers = await asyncio.to_thread(store_signs.nearest, vector, allowed_rows, max(OVERSAMPLED, limit))
        statement = Parameters()
        score = self._dialect.score(statement, vector)
        allowed = self._allowed(statement, row, None, self._dialect.numbered(statement, numbers))
        text = f"SELECT c.num, {score} AS score {allowed} ORDER BY score DESC, c.num LIMIT {statement.put(limit)}"
        return [(num, float(score)) for num, score in await self._database.rows(text, statement.values)]

    async def _loaded_signs(self, row: _StoreRow) -> StoreSigns:
        """Returns the signs of a store, of this version or a later one. If cancelled it keeps what it has read, for the
        next call. Stores of a tenant are loaded one after the other, and nobody waits for those of another tenant."""
        store_signs = self._signs.get(row.num)
        if store_signs.version >= row.version:
            return store_signs
        async with self._loading.setdefault(row.store.tenant, asyncio.Lock()):
            store_signs = self._signs.get(row.num)
            if store_signs.version >= row.version:
                return store_signs
            rows = await self._sign_rows(row, None)
            for at in range(0, len(rows), ROWS_AT_ONCE):
                missing = [each for each in rows[at : at + ROWS_AT_ONCE] if each not in store_signs.rows]
                statement = Parameters()
                some = self._dialect.numbered(statement, missing, "packed_signs")
                text = f"SELECT c.num, c.chunks, c.bits {self._allowed(statement, row, None, some)}"
                if missing and (stored := await self._database.rows(text, statement.values)):
                    store_signs = self._signs.put(row.num, await asyncio.to_thread(store_signs.joined, stored))
            return self._signs.put(row.num, await asyncio.to_thread(store_signs.of_rows, set(rows), row.version))

    async def _sign_rows(self, row: _StoreRow, only: AttributeFilter | None) -> list[int]:
        """Returns the rows of `packed_signs` of a store's completed files, of those only that pass `only` if it is
        given."""
        statement = Parameters()
        text = f"SELECT c.num {self._allowed(statement, row, only, 'FROM packed_signs c')}"
        return [num for (num,) in await self._database.rows(text, statement.values)]

    async def matching(
        self, tenant: TenantId, store_id: StoreId, words: Sequence[str], only: AttributeFilter | None, limit: int
    ) -> list[int]:
        row = await self._row(tenant, store_id)
        hashes = [] if row is None else query_words(" ".join(words), row.secret)
        if row is None or not hashes or not row.chunks:
            return []
        words_of = WordQuery.of(await self._counted(row, hashes))
        if not words_of.ranked_by:
            return []
        statement = Parameters()
        with_words = self._dialect.with_words(statement, words_of)
        allowed = self._allowed(statement, row, only, with_words)
        text = f"SELECT c.num {allowed} ORDER BY c.place, c.num LIMIT {statement.put(limit)}"
        return [num for (num,) in await self._database.rows(text, statement.values)]

    async def _counted(self, row: _StoreRow, hashes: Sequence[str]) -> list[tuple[int, str]]:
        """Returns hashes of words of a store, each with the number of its chunks that have it, as far as it matters:
        not above `COMMON_CHUNKS` + 1, and in a small store each counts as one."""
        if row.chunks <= COMMON_CHUNKS // len(hashes):
            return [(1, word) for word in hashes]
        store_signs, statement = self._signs.get(row.num), Parameters()
        common = store_signs.common_words if store_signs.version == row.version else set[str]()
        rest = [word for word in hashes if word not in common]
        counts = dict.fromkeys(hashes, COMMON_CHUNKS + 1)
        if rest:
            some = [f"(SELECT count(*) FROM ({self._dialect.with_word(statement, word)}) w)" for word in rest]
            ((*numbers,),) = await self._database.rows(f"SELECT {', '.join(some)}", statement.values)
            counts |= zip(rest, numbers, strict=True)
            common.update(word for word in rest if counts[word] > COMMON_CHUNKS)
        return [(count, word) for word, count in counts.items()]

    def _allowed(self, statement: Parameters, row: _StoreRow, only: AttributeFilter | None, chunks: str) -> str:
        """Returns the FROM and WHERE clauses for the chunks of a store's completed files, of those only that pass
        `only` if it is given. `chunks`: the FROM clause that chooses the chunks `c`, in a way that a database cannot
        turn round: without statistics, which a store that was just filled has not, it would read the whole store."""
        tenant, num = statement.put(row.store.tenant), statement.put(row.num)
        text = (
            f"{chunks} JOIN files f ON f.tenant = c.tenant AND f.store = c.store AND f.id = c.file"
            f" WHERE c.tenant = {tenant} AND c.store = {num} AND f.status = 'completed'"
        )
        return text if only is None else f"{text} AND {condition(self._dialect, statement, only)}"

    async def passages(self, tenant: TenantId, store_id: StoreId, numbers: Sequence[int]) -> list[Passage]:
        row = await self._row(tenant, store_id)
        if row is None or not numbers:
            return []
        statement = Parameters()
        columns = "c.num, c.file, c.key_id, c.body, f.key_id, f.body, f.attributes"
        some = self._dialect.numbered(statement, numbers)
        text = f"SELECT {columns} {self._allowed(statement, row, None, some)}"
        return await self._read(text, statement.values, partial(self._passage_of, tenant))

    # -- rows ---------------------------------------------------------------------------------------------------------

    async def _row(self, tenant: TenantId, store_id: StoreId) -> _StoreRow | None:
        check_text(store_id)
        text = f"SELECT {_STORE} FROM stores WHERE tenant = $1 AND id = $2"
        return next(iter(await self._read(text, (tenant, store_id), self._store_of)), None)

    async def _read(self, text: str, values: Sequence[Any], opened: Callable[[Any], T]) -> list[T]:
        """Returns what `opened` makes of each row of a query, with the keys of the rows loaded."""
        rows = await self._database.rows(text, values)
        return await with_keys(self._codec, lambda: [opened(row) for row in rows])

    def _store_of(self, row: Any) -> _StoreRow:
        num, tenant, store_id, user, model, dimensions, chunks, version, created_at, key_id, body = row
        data = _store_body(self._codec.decode(SessionKey(tenant, PASSAGES), f"store {store_id}", key_id, bytes(body)))
        store = VectorStore(
            id=store_id,
            tenant=tenant,
            user=user or None,
            model=model,
            dimensions=dimensions,
            created_at=created_at,
            name=data.name,
            metadata=data.metadata,
        )
        return _StoreRow(num, store, chunks, version, data.secret)

    def _file_of(self, row: Any) -> StoreFile:
        tenant, store_id, file_id, status, created_at, batch, size, attributes, key_id, body = row
        data = _file_body(self._codec.decode(SessionKey(tenant, PASSAGES), f"file {file_id}", key_id, bytes(body)))
        return StoreFile(
            id=file_id,
            store=store_id,
            tenant=tenant,
            filename=data.filename,
            created_at=created_at,
            status=status,
            error=data.error,
            attributes=json.loads(attributes),
            chunking=data.chunking,
            batch=batch,
            size=size,
        )

    def _passage_of(self, tenant: TenantId, row: Any) -> Passage:
        number, file_id, key_id, body, file_key, file_body, attributes = row
        key, decode = SessionKey(tenant, PASSAGES), self._codec.decode
        chunk = _chunk_body(decode(key, f"chunk {file_id}", key_id, bytes(body)))
        data = _file_body(decode(key, f"file {file_id}", file_key, bytes(file_body)))
        return Passage(
            number=number,
            file=file_id,
            filename=data.filename,
            attributes=json.loads(attributes),
            text=chunk.text,
            start=chunk.start,
            end=chunk.end,
        )

    async def _seal(self, tenant: TenantId, row: str, plain: bytes) -> tuple[str, bytes]:
        return await with_keys(self._codec, lambda: self._codec.encode(SessionKey(tenant, PASSAGES), row, plain))


def _cut(statement: Parameters, part: ListSlice, order: str, cursor: str) -> str:
    """Returns the end of a query that reads a part of a list in the order of the columns `order`. `cursor` selects
    these columns of the entries that `part.after` may name. Raises BadInput for an id that no store can hold."""
    check_text(part.after)
    text, sign, way = "", *(("<", " DESC") if part.newest_first else (">", ""))
    if part.after is not None:
        text = f" AND ({order}) {sign} ({cursor} AND id = {statement.put(part.after)})"
    text += " ORDER BY " + ", ".join(f"{column}{way}" for column in order.split(", "))
    return text if part.limit is None else f"{text} LIMIT {statement.put(part.limit)}"


def _texts_of(attributes: Mapping[str, Value]) -> list[str]:
    """Returns the names and the texts of a file's attributes."""
    return [*attributes, *(value for value in attributes.values() if isinstance(value, str))]
