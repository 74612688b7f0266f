"""Files' bytes as rows: written only for a blob that is there, dropped in steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.sql import file_chunks
from persistence.sql.file_chunks import SqlFileChunks
from persistence.sqlite.store import SqliteStore
from sessions.model.knowledge.files import BlobId
from tests.support.stores.journals import ACME, NOW, SqliteBed


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
