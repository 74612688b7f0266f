"""What is an address of an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.objects.addresses import open_objects
from persistence.objects.folder import FolderObjects
from sessions.model.errors import BadInput


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
