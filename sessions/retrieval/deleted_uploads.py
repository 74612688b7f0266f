"""Removes documents from vector stores whose uploaded files are gone: deleted, expired, or erased with their user.

Who deletes a file by its id removes its document at once; files that go otherwise are removed here, by a sweep that may
fail and is repeated. Documents that came as a text belong to no file and stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Final

import structlog

from sessions.model.errors import SessileError
from sessions.model.knowledge.files import FILE_ID_PREFIX, FileId, FileStore
from sessions.model.types import TenantId, UnixMs
from sessions.retrieval.vector_stores import PassageIndex

log = structlog.get_logger(__name__)

PAGE: Final = 500
SWEEP_S: Final = 60.0
REST: Final = 20


async def remove_deleted_uploads(
    index: PassageIndex, files: FileStore, now_ms: Callable[[], UnixMs], tenant: TenantId | None = None
) -> int:
    """Removes the documents of one tenant, or (None) of all, whose uploaded files are gone; returns how many. Raises
    Unavailable."""
    removed, after = 0, None
    while page := await index.documents(tenant, FILE_ID_PREFIX, after, PAGE):
        after = page[-1]
        for owner, documents in groupby(page, key=attrgetter("tenant")):
            ids = [document.id for document in documents]
            existing = await files.existing(owner, [FileId(name) for name in ids], now_ms())
            for name in ids:
                if FileId(name) not in existing:
                    await index.remove_document(owner, name)
                    removed += 1
    return removed


async def sweep_deleted_uploads(
    index: PassageIndex, files: FileStore, now_ms: Callable[[], UnixMs], every_s: float = SWEEP_S
) -> None:
    """Removes the documents of uploaded files that are gone, again and again until it is cancelled. It reads the ids of
    all of them, and waits `REST` times as long as that took, at least `every_s`."""
    clock = asyncio.get_running_loop().time
    while True:
        begun_at = clock()
        try:
            await remove_deleted_uploads(index, files, now_ms)
        except SessileError as error:  # the index or the journal is away: the next sweep tries again
            log.warning("upload_sweep_failed", error=error.code)
        await asyncio.sleep(max(every_s, REST * (clock() - begun_at)))
