"""Files' bytes in an object store: by names that say nothing, and gone as a whole."""

from __future__ import annotations

from pathlib import Path

from persistence.objects.file_chunks import ObjectFileChunks
from persistence.objects.folder import FolderObjects
from sessions.model.knowledge.files import BlobId
from tests.support.stores.journals import ACME

BLOB = BlobId("4f31")


async def test_chunks_are_put_read_and_dropped(tmp_path: Path) -> None:
    chunks = ObjectFileChunks(FolderObjects(tmp_path))
    for index in range(3):
        await chunks.put(ACME, "ü", BLOB, index, b"%d" % index)
    await chunks.put(ACME, "ü", BlobId("4f32"), 0, b"other")
    assert [await chunks.get(ACME, BLOB, index) for index in range(4)] == [b"0", b"1", b"2", None]
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert names[0] == "files/4f/4f31/000000" and not any("acme" in name or "ü" in name for name in names)
    await chunks.drop(ACME, BLOB)
    await chunks.drop(ACME, BLOB)
    assert await chunks.get(ACME, BLOB, 0) is None and await chunks.get(ACME, BlobId("4f32"), 0) == b"other"
