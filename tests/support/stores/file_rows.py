"""Files for tests of stores."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

from sessions.model.knowledge.files import CHUNK_BYTES, BlobId, FileId, FileQuotas, FileStore, StoredFile
from sessions.model.types import UnixMs
from tests.support.stores.journals import ACME, NOW

_numbers = itertools.count(1)


def a_file(content: bytes, *, blob: str, user: str | None = "ü", at: int = NOW, **more: Any) -> StoredFile:
    given = {"filename": "Bericht ü.txt", "purpose": "user_data", "media_type": "text/plain", **more}
    return StoredFile(
        id=FileId(f"file-{next(_numbers):04}"),
        tenant=given.pop("tenant", ACME),
        user=user,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        blob=BlobId(blob),
        created_at=UnixMs(at),
        **given,
    )


async def uploaded(
    files: FileStore,
    content: bytes,
    *,
    user: str | None = "ü",
    at: int = NOW,
    name: str = "Bericht ü.txt",
    quotas: FileQuotas | None = None,
    **more: Any,
) -> StoredFile:
    tenant = more.get("tenant", ACME)
    blob = await files.begin(tenant, user, UnixMs(at))
    try:
        for index in range(-(-len(content) // CHUNK_BYTES)):
            await files.put_chunk(tenant, blob, index, content[index * CHUNK_BYTES :][:CHUNK_BYTES])
        file = a_file(content, blob=blob, user=user, at=at, filename=name, **more)
        return await files.finish(file, quotas or FileQuotas())
    except BaseException:
        await files.abandon(tenant, blob)
        raise


async def content_of(files: FileStore, file: StoredFile) -> bytes:
    return b"".join([chunk async for chunk in files.read(file)])
