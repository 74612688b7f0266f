"""Opens the index that belongs to a store: a file in the data folder, a schema of the same PostgreSQL, or memory.

If the database cannot be opened, or PostgreSQL lacks pgvector, there are no vector stores, and the log says why once.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from persistence.codec import Codec, PlainCodec
from persistence.passages.databases import PassageDatabase, SqlitePassages
from persistence.passages.index import SqlPassageIndex
from sessions.model.errors import Unavailable
from sessions.retrieval.vector_stores import PassageIndex

log = structlog.get_logger(__name__)

FILE = "passages.db"


@contextlib.asynccontextmanager
async def open_passages(url: str, folder: Path | None, codec: Codec | None) -> AsyncIterator[PassageIndex | None]:
    """Opens the index until the context ends. `url` is the journal's, or `off`. Yields None if there are to be no
    vector stores, or can be none."""
    database: PassageDatabase
    if url == "off":
        yield None
        return
    if url.startswith(("postgresql://", "postgres://")):
        from persistence.passages.postgres import PostgresPassages  # its driver is loaded only where it is needed

        database = PostgresPassages(url)
    else:
        database = SqlitePassages(folder / FILE if url == "sqlite" and folder is not None else None)
    try:
        await database.open()
    except Unavailable as error:
        log.warning("vector_stores_disabled", reason=str(error.__cause__ or error))
        yield None
        return
    try:
        yield SqlPassageIndex(database, codec or PlainCodec())
    finally:
        await database.close()
