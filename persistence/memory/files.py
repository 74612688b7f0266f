"""Files in memory. The port is `sessions.model.knowledge.files.FileStore`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection

import msgspec

from persistence.memory.database import MemoryDatabase
from sessions.model.errors import Unavailable
from sessions.model.knowledge.files import (
    UPLOAD_MS,
    BlobId,
    FileId,
    FileQuery,
    FileQuotas,
    FileTotals,
    StoredFile,
    file_not_found,
)
from sessions.model.types import TenantId, UnixMs


class MemoryBlob(msgspec.Struct):
    user: str | None
    chunks: list[bytes]
    created_at: UnixMs
    due_at: UnixMs | None
    sha256: str = ""


class MemoryFiles:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def begin(self, tenant: TenantId, user: str | None, at: UnixMs) -> BlobId:
        blob = BlobId(os.urandom(16).hex())
        self._database.file_blobs[tenant, blob] = MemoryBlob(user, [], at, UnixMs(at + UPLOAD_MS))
        return blob

    async def put_chunk(self, tenant: TenantId, blob: BlobId, index: int, data: bytes) -> None:
        found = self._database.file_blobs.get((tenant, blob))
        if found is not None:
            del found.chunks[index:]
            found.chunks.append(bytes(data))

    async def finish(self, file: StoredFile, quotas: FileQuotas) -> StoredFile:
        present = self._database.files.get((file.tenant, file.id))
        if present is not None:
            if file.blob != present.blob and (file.tenant, file.blob) in self._database.file_blobs:
                self._database.file_blobs[file.tenant, file.blob].due_at = file.created_at
            return present
        scopes = [("Your organisation", quotas.tenant, await self.totals(file.tenant, None, anybody=True))]
        if file.user is not None:
            scopes.insert(0, ("You", quotas.user, await self.totals(file.tenant, file.user)))
        for whose, quota, have in scopes:
            if (refusal := quota.refusal(have, file.size, whose)) is not None:
                raise refusal
        blobs = self._database.file_blobs
        fresh = blobs.get((file.tenant, file.blob))
        if fresh is None:
            raise Unavailable("journal_unavailable", "This upload took too long.", retry_after_ms=1_000)
        for (tenant, name), blob in blobs.items():
            if (tenant, blob.user, blob.sha256, blob.due_at) == (file.tenant, file.user, file.sha256, None):
                file = msgspec.structs.replace(file, blob=name)
                fresh.due_at = file.created_at
                break
        else:
            fresh.sha256, fresh.created_at, fresh.due_at = file.sha256, file.created_at, None
        self._database.files[file.tenant, file.id] = file
        return file

    async def abandon(self, tenant: TenantId, blob: BlobId) -> None:
        found = self._database.file_blobs.get((tenant, blob))
        if found is not None and found.due_at is not None:
            del self._database.file_blobs[tenant, blob]

    async def find(self, tenant: TenantId, file_id: FileId, now: UnixMs) -> StoredFile | None:
        file = self._database.files.get((tenant, file_id))
        return file if file is not None and _lives(file, now) else None

    async def existing(self, tenant: TenantId, file_ids: Collection[FileId], now: UnixMs) -> set[FileId]:
        return {file_id for file_id in file_ids if await self.find(tenant, file_id, now) is not None}

    async def files(self, query: FileQuery, now: UnixMs) -> list[StoredFile]:
        found = [
            file
            for file in self._database.files.values()
            if file.tenant == query.tenant and (query.anybody or file.user == query.user) and _lives(file, now)
        ]
        found.sort(key=lambda file: (file.created_at, file.id), reverse=query.newest_first)
        if query.after is not None:
            places = [place for place, file in enumerate(found) if file.id == query.after]
            if not places:
                raise file_not_found(query.after, "after")
            found = found[places[0] + 1 :]
        return [file for file in found if query.purpose in (None, file.purpose)][: query.limit]

    async def remove(self, tenant: TenantId, file_id: FileId, now: UnixMs) -> bool:
        file = await self.find(tenant, file_id, now)
        if file is None:
            return False
        self._take_away(file, now)
        return True

    def _take_away(self, file: StoredFile, now: UnixMs) -> None:
        del self._database.files[file.tenant, file.id]
        if not any((other.tenant, other.blob) == (file.tenant, file.blob) for other in self._database.files.values()):
            self._database.file_blobs[file.tenant, file.blob].due_at = now

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        if (file.tenant, file.id) not in self._database.files:
            raise file_not_found(file.id)
        for chunk in list(self._database.file_blobs[file.tenant, file.blob].chunks):
            yield chunk

    async def totals(self, tenant: TenantId, user: str | None, *, anybody: bool = False) -> FileTotals:
        sizes = [
            file.size
            for file in self._database.files.values()
            if file.tenant == tenant and (anybody or file.user == user)
        ]
        return FileTotals(len(sizes), sum(sizes))

    async def collect(self, now: UnixMs, *, limit: int) -> int:
        expired = [file for file in self._database.files.values() if not _lives(file, now)][:limit]
        for file in expired:
            self._take_away(file, now)
        blobs = self._database.file_blobs
        due = [name for name, blob in blobs.items() if blob.due_at is not None and blob.due_at <= now][:limit]
        for name in due:
            del blobs[name]
        return len(expired) + len(due)

    def forget(self, tenant: TenantId, user: str, asked_at: UnixMs) -> None:
        """Deletes the files that a user had at `asked_at`, when their erasure was requested."""
        for file in list(self._database.files.values()):
            if (file.tenant, file.user) == (tenant, user) and file.created_at <= asked_at:
                self._take_away(file, asked_at)
        for (owner, _), blob in self._database.file_blobs.items():
            if (owner, blob.user) == (tenant, user) and blob.created_at <= asked_at:
                blob.due_at = asked_at


def _lives(file: StoredFile, now: UnixMs) -> bool:
    return file.expires_at is None or file.expires_at > now
