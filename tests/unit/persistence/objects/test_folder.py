"""Objects in a folder: whole, in order, for nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.objects.folder import FolderObjects
from sessions.model.errors import Unavailable
from tests.support.stores.objects import check_objects


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
