"""Files' bytes in a folder: by names that say nothing, gone as a whole, and where the setting names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.sql.folder_file_chunks import FolderFileChunks
from sessions.model.errors import BadInput, Unavailable
from sessions.model.knowledge.files import BlobId
from tests.support.stores.journals import ACME

BLOB = BlobId("4f31")


async def test_chunks_are_put_read_and_dropped(tmp_path: Path) -> None:
    chunks = FolderFileChunks.of(tmp_path.as_uri())
    for index in range(3):
        await chunks.put(ACME, "ü", BLOB, index, b"%d" % index)
    await chunks.put(ACME, "ü", BLOB, 1, b"1")
    await chunks.put(ACME, "ü", BlobId("4f32"), 0, b"other")
    assert [await chunks.get(ACME, BLOB, index) for index in range(4)] == [b"0", b"1", b"2", None]
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert names == [*(f"files/4f/4f31/00000{index}" for index in range(3)), "files/4f/4f32/000000"]
    await chunks.drop(ACME, BLOB)
    await chunks.drop(ACME, BLOB)
    assert await chunks.get(ACME, BLOB, 0) is None and await chunks.get(ACME, BlobId("4f32"), 0) == b"other"


async def test_a_folder_that_cannot_be_used_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "files").write_bytes(b"no folder")
    chunks = FolderFileChunks.of(str(tmp_path))
    with pytest.raises(Unavailable) as caught:
        await chunks.put(ACME, "ü", BLOB, 0, b"x")
    assert caught.value.code == "file_folder_unavailable"


@pytest.mark.parametrize("address", ["s3://bucket/prefix", "http://host/x", "file://host/x"])
def test_a_bucket_is_refused_with_what_to_do(address: str) -> None:
    with pytest.raises(BadInput, match="aws s3 sync"):
        FolderFileChunks.of(address)
