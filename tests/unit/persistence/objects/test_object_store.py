"""The object store's port on a folder: whole objects, in order; and what is an address."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.objects.folder import FolderObjects
from persistence.objects.object_store import ObjectStore, open_objects
from sessions.model.errors import BadInput, Unavailable


async def check_objects(objects: ObjectStore) -> None:
    """What every object store does; `tests/integration/backup` runs it on one behind the S3 API."""
    assert await objects.get("a/1") is None and await objects.get_start("a/1", 3) is None
    assert [name async for name in objects.names("a")] == []
    for number in (3, 1, 2):
        assert not await objects.put(f"a/{number:03d}", b"x" * number)
    await objects.put("b/001", b"")
    await objects.put("a/001", b"again")
    assert await objects.get("a/001") == b"again" and await objects.get_start("a/001", 2) == b"ag"
    assert await objects.get_start("a/001", 99) == b"again" and await objects.get("b/001") == b""
    assert [name async for name in objects.names("a")] == ["a/001", "a/002", "a/003"]
    assert [name async for name in objects.names("a", after="a/001")] == ["a/002", "a/003"]
    await objects.delete(["a/001", "a/002", "a/none"])
    await objects.delete([])
    assert [name async for name in objects.names("a")] == ["a/003"]


async def test_objects_in_a_folder(tmp_path: Path) -> None:
    await check_objects(FolderObjects(tmp_path / "objects"))
    assert (tmp_path / "objects" / "a" / "003").stat().st_mode & 0o077 == 0


async def test_a_folder_that_cannot_be_written_is_away(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    objects = FolderObjects(tmp_path / "file")
    with pytest.raises(Unavailable):
        await objects.put("a/1", b"x")
    with pytest.raises(Unavailable):
        await objects.get("a/1")


@pytest.mark.parametrize(
    "address", ["http://host/x", "s3://", "s3://key:secret@bucket/x", "s3://bucket/x?secret=1", "file://host/x"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(BadInput) as error:
        open_objects(address, "backup")
    assert "backup is the path of a folder" in error.value.public_message


def test_addresses_of_folders(tmp_path: Path) -> None:
    for address in (str(tmp_path), f"file://{tmp_path}"):
        assert isinstance(open_objects(address, "backup"), FolderObjects)
