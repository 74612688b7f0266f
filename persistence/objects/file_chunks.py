"""Files' bytes in an object store: a folder beside SQLite, or a bucket. The port is `sql.file_chunks.FileChunks`.

    files/4f/4f31…/000007    chunk 7 of blob 4f31…, sealed

Names say nothing of whose they are. A bucket that keeps versions keeps what is deleted here; without the key in the
file's row nobody can read it.
"""

from __future__ import annotations

from typing import Final

from persistence.objects.object_store import ObjectStore
from sessions.model.knowledge.files import BlobId
from sessions.model.types import TenantId

DROP_NAMES: Final = 500


class ObjectFileChunks:
    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def put(self, tenant: TenantId, user: str, blob: BlobId, index: int, sealed: bytes) -> None:
        await self._objects.put(_name(blob, index), sealed)

    async def get(self, tenant: TenantId, blob: BlobId, index: int) -> bytes | None:
        return await self._objects.get(_name(blob, index))

    async def drop(self, tenant: TenantId, blob: BlobId) -> None:
        names = [name async for name in self._objects.names(_folder(blob))]
        for end in range(len(names), 0, -DROP_NAMES):
            await self._objects.delete(names[max(0, end - DROP_NAMES) : end])


def _folder(blob: BlobId) -> str:
    return f"files/{blob[:2]}/{blob}"


def _name(blob: BlobId, index: int) -> str:
    return f"{_folder(blob)}/{index:06}"
