"""Addresses of replicas."""

from __future__ import annotations

from pathlib import Path

from persistence.sqlite.replication import replica_of


def test_a_folder_is_the_one_that_its_url_spells() -> None:
    folder = Path("/srv/copies of ü")
    assert replica_of(folder.as_uri(), "replicate") == {"type": "file", "path": str(folder)}
