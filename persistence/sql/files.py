"""Files in SQLite and PostgreSQL. The port is `knowledge.files.FileStore`; their bytes are behind `FileChunks`.

    files         a row a file; its body (name, type, hash, data key) is encrypted with the key of the tenant
    file_blobs    a row a content; `due_at` is set while no file has it: then it is collected
    file_chunks   the content, each chunk sealed under the data key, its nonce the chunk's number

A blob's chunks are stored before the row of its file, and deleted after it. A data key is made for one blob, and each
of its chunks is sealed once, so no nonce is used twice. How many chunks a file has follows from its size, which is
sealed with the key: bytes that are cut off, put elsewhere or changed do not open.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Collection
from functools import partial
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from persistence.codec import Codec, KeyDestroyed, file_row, unreadable, with_keys
from persistence.sql.file_chunks import FileChunks, SqlFileChunks
from persistence.sql.script import Lock, Parameters, Query, Script, SqlDatabase, one_query
from persistence.validation import check_text
from sessions.model.errors import Internal, Unavailable
from sessions.model.knowledge.files import (
    CHUNK_BYTES,
    UPLOAD_MS,
    BlobId,
    FileId,
    FilePurpose,
    FileQuery,
    FileQuota,
    FileQuotas,
    FileTotals,
    StoredFile,
    file_not_found,
)
from sessions.model.types import FILES, SessionKey, TenantId, UnixMs

KEY_BYTES: Final = 32
UPLOADS_MAX: Final = 10_000  # uploads in progress in one process

_ALL: Final = "tenant, id, end_user, purpose, size, blob, key_id, body, created_at, expires_at"
_LIVES: Final = "(expires_at IS NULL OR expires_at > {now})"
_FIND: Final = f"SELECT {_ALL} FROM files WHERE tenant = $1 AND id = $2 AND {_LIVES.format(now='$3')}"
_OF_BLOB: Final = f"SELECT {_ALL} FROM files WHERE tenant = $1 AND blob = $2 LIMIT 1"
_INSERT: Final = f"INSERT INTO files ({_ALL}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
_REMOVE: Final = (
    f"DELETE FROM files WHERE tenant = $1 AND id = $2 AND {_LIVES.format(now='$3')} RETURNING blob, end_user"
)
_REMOVE_EXPIRED: Final = (
    "DELETE FROM files WHERE tenant = $1 AND id = $2 AND expires_at IS NOT NULL AND expires_at <= $3"
    " RETURNING blob, end_user"
)
_EXPIRED: Final = (
    "SELECT tenant, id FROM files WHERE expires_at IS NOT NULL AND expires_at <= $1 ORDER BY expires_at LIMIT $2"
)
_BEGIN: Final = (
    "INSERT INTO file_blobs (tenant, id, end_user, address, chunks, created_at, due_at)"
    " VALUES ($1, $2, $3, '', 0, $4, $5)"
)
_ADDRESSED: Final = "SELECT id FROM file_blobs WHERE tenant = $1 AND end_user = $2 AND address = $3"
_WAITS: Final = "SELECT 1 FROM file_blobs WHERE tenant = $1 AND id = $2 AND due_at IS NOT NULL AND chunks >= 0"
_KEEP: Final = (
    "UPDATE file_blobs SET address = $3, chunks = $4, created_at = $5, due_at = NULL WHERE tenant = $1 AND id = $2"
)
_BLOB_OF: Final = "SELECT blob FROM files WHERE tenant = $1 AND id = $2"
_HAS_FILE: Final = "SELECT 1 FROM files WHERE tenant = $1 AND blob = $2 LIMIT 1"
_LET_GO: Final = "UPDATE file_blobs SET address = '', due_at = $3 WHERE tenant = $1 AND id = $2"
_DUE: Final = "SELECT tenant, id FROM file_blobs WHERE due_at IS NOT NULL AND due_at <= $1 ORDER BY due_at LIMIT $2"
# From then on nobody makes a file of it.
_CLAIM: Final = (
    "UPDATE file_blobs SET chunks = -1 WHERE tenant = $1 AND id = $2 AND due_at IS NOT NULL AND due_at <= $3"
    " RETURNING id"
)
_FORGET_BLOB: Final = "DELETE FROM file_blobs WHERE tenant = $1 AND id = $2 AND due_at IS NOT NULL"
_TOTALS: Final = "SELECT count(*), coalesce(sum(size), 0) FROM files WHERE tenant = $1"

FORGET_FILES: Final = (
    "DELETE FROM files WHERE tenant = $1 AND end_user = $2 AND created_at <= $3",
    "UPDATE file_blobs SET address = '', due_at = $3 WHERE tenant = $1 AND end_user = $2 AND created_at <= $3",
)
"""The statements of an erasure for a user's files; parameters: (tenant, user, time of the erasure's request)."""


class FileBody(msgspec.Struct, frozen=True):
    """The part of a file's row that is stored encrypted."""

    filename: str
    media_type: str
    sha256: str
    size: int
    data_key: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(FileBody).decode


class SqlFiles:
    def __init__(self, database: SqlDatabase, chunks: FileChunks | None = None) -> None:
        """`chunks` is where the bytes of files are stored; None: in the database."""
        self._database = database
        self._chunks = chunks or SqlFileChunks(database)
        self._uploads: dict[BlobId, tuple[str, bytes]] = {}  # the end user and the data key of each upload in progress

    async def begin(self, tenant: TenantId, user: str | None, at: UnixMs) -> BlobId:
        check_text(tenant, user)
        if len(self._uploads) >= UPLOADS_MAX:
            raise Unavailable("journal_unavailable", "Too many uploads are under way.", retry_after_ms=1_000)
        blob = BlobId(os.urandom(16).hex())
        values = (tenant, blob, user or "", at, at + UPLOAD_MS)
        await self._database.run(lambda: one_query(_BEGIN, values))
        self._uploads[blob] = (user or "", os.urandom(KEY_BYTES))
        return blob

    async def put_chunk(self, tenant: TenantId, blob: BlobId, index: int, data: bytes) -> None:
        user, key = self._uploads[blob]
        assert 0 < len(data) <= CHUNK_BYTES
        await self._chunks.put(tenant, user, blob, index, AESGCM(key).encrypt(_nonce(index), data, None))

    async def finish(self, file: StoredFile, quotas: FileQuotas) -> StoredFile:
        check_text(file.filename, file.media_type, file.id)
        owner, fresh_key = self._uploads[file.blob]
        assert owner == (file.user or "")
        address = self._address(file)
        while True:
            shared = await self._shared(file, address)
            blob, key = (file.blob, fresh_key) if shared is None else shared
            made = msgspec.structs.replace(file, blob=blob)
            key_id, body = await self._sealed(made, key)
            done = await self._database.run(partial(self._finish, made, file.blob, address, (key_id, body), quotas))
            if done is False:
                continue
            present = made if done else await self.find(file.tenant, file.id, UnixMs(0))
            if present is None:
                raise Unavailable("journal_unavailable", "This file was just deleted.", retry_after_ms=1_000)
            self._uploads.pop(file.blob, None)
            return present

    def _finish(
        self, made: StoredFile, fresh: BlobId, address: str, sealed: tuple[str, bytes], quotas: FileQuotas
    ) -> Script[bool | None]:
        """Writes the row of a file whose bytes are stored, as the new blob `fresh` or as an existing blob with the same
        content. Returns False if another upload or deletion has meanwhile changed which blob has that content, None if
        there is a file with this id already. Raises Limited."""
        tenant, user = made.tenant, made.user or ""
        yield Lock("files")
        for (blob,) in (yield Query(_BLOB_OF, (tenant, made.id))):
            if blob != fresh:  # else this very file was made, and its maker did not learn of it
                yield Query(_LET_GO, (tenant, fresh, made.created_at))
            return None
        found = yield Query(_ADDRESSED, (tenant, user, address))
        if [each for (each,) in found] != ([] if made.blob == fresh else [made.blob]):
            return False
        scopes: list[tuple[str, FileQuota, str | None]] = [("Your organisation", quotas.tenant, None)]
        if user:
            scopes.insert(0, ("You", quotas.user, user))
        for whose, quota, of in scopes:
            if quota.files is not None or quota.size is not None:
                text, values = _totals(tenant, of)
                ((files, size),) = yield Query(text, values)
                refusal = quota.refusal(FileTotals(int(files), int(size)), made.size, whose)
                if refusal is not None:
                    raise refusal
        if made.blob == fresh and not (yield Query(_WAITS, (tenant, fresh))):
            raise Unavailable("journal_unavailable", "This upload took too long.", retry_after_ms=1_000)
        row = (tenant, made.id, user, made.purpose, made.size, made.blob, *sealed, made.created_at, made.expires_at)
        yield Query(_INSERT, row)
        if made.blob == fresh:
            yield Query(_KEEP, (tenant, fresh, address, _chunks_of(made.size), made.created_at))
        else:
            yield Query(_LET_GO, (tenant, fresh, made.created_at))
        return True

    async def abandon(self, tenant: TenantId, blob: BlobId) -> None:
        if self._uploads.pop(blob, None) is None:
            return
        await self._chunks.drop(tenant, blob)
        await self._database.run(lambda: one_query(_FORGET_BLOB, (tenant, blob)))

    async def find(self, tenant: TenantId, file_id: FileId, now: UnixMs) -> StoredFile | None:
        file_and_key = await self._found(tenant, file_id, now)
        return None if file_and_key is None else file_and_key[0]

    async def existing(self, tenant: TenantId, file_ids: Collection[FileId], now: UnixMs) -> set[FileId]:
        check_text(tenant)
        statement = Parameters()
        text = f"SELECT id FROM files WHERE tenant = {statement.put(tenant)}"
        text += f" AND {_LIVES.format(now=statement.put(now))}"
        ids = [statement.put(file_id) for file_id in file_ids if _sound(file_id)]
        if not ids:
            return set()
        rows = await self._database.rows(f"{text} AND id IN ({', '.join(ids)})", statement.values)
        return {FileId(file_id) for (file_id,) in rows}

    async def files(self, query: FileQuery, now: UnixMs) -> list[StoredFile]:
        check_text(query.tenant, query.user)
        place: StoredFile | None = None
        if query.after is not None:
            place = await self.find(query.tenant, query.after, now)
            if place is None or not (query.anybody or (place.user or "") == (query.user or "")):
                raise file_not_found(query.after, "after")
        rows = await self._database.rows(*_list_statement(query, place, now))
        return [file_and_key[0] for row in rows if (file_and_key := await self._opened(row)) is not None]

    async def remove(self, tenant: TenantId, file_id: FileId, now: UnixMs) -> bool:
        if not _sound(file_id):
            return False
        return await self._database.run(partial(self._remove, _REMOVE, tenant, file_id, now))

    def _remove(self, statement: str, tenant: TenantId, file_id: FileId, now: UnixMs) -> Script[bool]:
        yield Lock("files")
        for blob, _ in (yield Query(statement, (tenant, file_id, now))):
            if not (yield Query(_HAS_FILE, (tenant, blob))):
                yield Query(_LET_GO, (tenant, blob, now))
            return True
        return False

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        file_and_key = await self._found(file.tenant, file.id, UnixMs(0))
        if file_and_key is None:
            raise file_not_found(file.id)
        stored, key = file_and_key
        cipher, left = AESGCM(key), stored.size
        for index in range(_chunks_of(stored.size)):
            sealed = await self._chunks.get(stored.tenant, stored.blob, index)
            if sealed is None:
                if await self._found(file.tenant, file.id, UnixMs(0)) is None:
                    raise file_not_found(file.id)
                raise unreadable("file")
            try:
                data = cipher.decrypt(_nonce(index), sealed, None)
            except InvalidTag as exc:
                raise unreadable("file", exc) from exc
            if len(data) != min(CHUNK_BYTES, left):
                raise unreadable("file")
            left -= len(data)
            yield data

    async def totals(self, tenant: TenantId, user: str | None, *, anybody: bool = False) -> FileTotals:
        ((files, size),) = await self._database.rows(*_totals(tenant, None if anybody else user or ""))
        return FileTotals(int(files), int(size))

    async def collect(self, now: UnixMs, *, limit: int) -> int:
        done = 0
        for tenant, file_id in await self._database.rows(_EXPIRED, (now, limit)):
            script = partial(self._remove, _REMOVE_EXPIRED, TenantId(tenant), FileId(file_id), now)
            done += await self._database.run(script)
        for tenant, blob in await self._database.rows(_DUE, (now, limit)):
            if await self._database.rows(_HAS_FILE, (tenant, blob)):
                continue  # of a journal that was put back
            if not await self._database.run(partial(one_query, _CLAIM, (tenant, blob, now))):
                continue
            await self._chunks.drop(TenantId(tenant), BlobId(blob))
            values = (tenant, blob)
            await self._database.run(partial(one_query, _FORGET_BLOB, values))
            done += 1
        return done

    # -- rows ---------------------------------------------------------------------------------------------------------

    async def _found(self, tenant: TenantId, file_id: FileId, now: UnixMs) -> tuple[StoredFile, bytes] | None:
        """Returns the file with its data key; None if there is no such file."""
        if not _sound(file_id):
            return None
        check_text(tenant)
        for row in await self._database.rows(_FIND, (tenant, file_id, now)):
            return await self._opened(row)
        return None

    async def _shared(self, file: StoredFile, address: str) -> tuple[BlobId, bytes] | None:
        """Returns blob and data key of a file of the same owner with the same content; None if there is none."""
        for (blob,) in await self._database.rows(_ADDRESSED, (file.tenant, file.user or "", address)):
            for row in await self._database.rows(_OF_BLOB, (file.tenant, blob)):
                opened = await self._opened(row)
                if opened is not None and (opened[0].sha256, opened[0].size) == (file.sha256, file.size):
                    return BlobId(blob), opened[1]
            raise unreadable("file")
        return None

    async def _sealed(self, file: StoredFile, key: bytes) -> tuple[str, bytes]:
        codec = self._database.codec
        body = _encode(FileBody(file.filename, file.media_type, file.sha256, file.size, key))
        place, row = SessionKey(file.tenant, FILES), file_row(file.user or "", file.id)
        return await with_keys(codec, lambda: codec.encode(place, row, body))

    async def _opened(self, row: Any) -> tuple[StoredFile, bytes] | None:
        codec = self._database.codec
        try:
            return await with_keys(codec, partial(_opened, codec, tuple(row)))
        except KeyDestroyed:  # lost on purpose
            return None

    def _address(self, file: StoredFile) -> str:
        """Returns a keyed hash of the file's content and owner. Without the key, who has stolen the database cannot
        check a guess of the content."""
        content = hashlib.sha256(f"{file.user or ''}\0{file.sha256}\0{file.size}".encode()).hexdigest()
        return self._database.sealer.text_hash(file.tenant, content)


def _opened(codec: Codec, row: tuple[Any, ...]) -> tuple[StoredFile, bytes]:
    tenant, file_id, user, purpose, size, blob, key_id, sealed, created_at, expires_at = row
    plain = codec.decode(SessionKey(TenantId(tenant), FILES), file_row(user, file_id), key_id, bytes(sealed))
    try:
        body = _decode(plain)
    except msgspec.DecodeError as exc:
        raise unreadable("file", exc) from exc
    if body.size != size:
        raise Internal("body_unreadable", "A stored file is not as long as it was.")
    about = {"created_at": created_at, "expires_at": expires_at}
    kind: FilePurpose = purpose
    file = StoredFile(
        id=FileId(file_id),
        tenant=TenantId(tenant),
        user=user or None,
        filename=body.filename,
        purpose=kind,
        media_type=body.media_type,
        size=size,
        sha256=body.sha256,
        blob=BlobId(blob),
        **about,
    )
    return file, body.data_key


def _list_statement(query: FileQuery, place: StoredFile | None, now: UnixMs) -> tuple[str, list[Any]]:
    parameters = Parameters()
    where = [f"tenant = {parameters.put(query.tenant)}", _LIVES.format(now=parameters.put(now))]
    if not query.anybody:
        where.append(f"end_user = {parameters.put(query.user or '')}")
    if query.purpose is not None:
        where.append(f"purpose = {parameters.put(query.purpose)}")
    direction, behind = ("DESC", "<") if query.newest_first else ("ASC", ">")
    if place is not None:
        where.append(f"(created_at, id) {behind} ({parameters.put(place.created_at)}, {parameters.put(place.id)})")
    order = f"ORDER BY created_at {direction}, id {direction} LIMIT {parameters.put(query.limit)}"
    return f"SELECT {_ALL} FROM files WHERE {' AND '.join(where)} {order}", parameters.values


def _totals(tenant: TenantId, user: str | None) -> tuple[str, tuple[Any, ...]]:
    """Returns the query, with its values, for how many files and bytes a user has, or the whole tenant if `user` is
    None."""
    return (_TOTALS, (tenant,)) if user is None else (f"{_TOTALS} AND end_user = $2", (tenant, user))


def _chunks_of(size: int) -> int:
    return -(-size // CHUNK_BYTES)


def _nonce(index: int) -> bytes:
    return index.to_bytes(12, "big")


def _sound(file_id: str) -> bool:
    """Returns whether a text has the form of a file's id; other texts are not looked up."""
    return file_id.isascii() and file_id.isprintable() and len(file_id) <= 64
