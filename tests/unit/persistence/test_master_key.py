"""The file of the master key: made once, private, and refused with advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.master_key import (
    add_master_key,
    drop_older_master_keys,
    read_master_keys,
    read_secret,
)
from sessions.model.errors import BadInput


def test_the_master_key_is_made_once_private_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "data" / "master.key"
    made = read_master_keys(path, make=True)
    assert path.stat().st_mode & 0o777 == 0o600 and list(path.parent.iterdir()) == [path]
    assert read_master_keys(path, make=True).newest.id == made.newest.id == read_master_keys(path).newest.id
    key = made.newest
    assert key.unwrap(key.wrap(b"secret", b"a"), b"a") == b"secret"
    assert key.unwrap(key.wrap(b"secret", b"a"), b"b") is None and key.unwrap(b"", b"a") is None


@pytest.mark.parametrize("kind", ["missing", "readable", "short", "text", "folder"])
def test_a_master_key_that_cannot_be_used_is_refused_with_advice(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "master.key"
    match kind:
        case "readable":
            path.write_text("ab" * 32)
            path.chmod(0o644)
        case "short":
            path.write_text("ab" * 31)
        case "text":
            path.write_text("a pass phrase")
        case "folder":
            path.mkdir()
    if kind not in ("missing", "readable", "folder"):
        path.chmod(0o600)
    with pytest.raises(BadInput) as refused:
        read_master_keys(path)
    assert refused.value.code == "bad_master_key" and str(path) in refused.value.public_message


def test_a_secret_names_the_setting_that_it_is_for(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        read_secret(tmp_path / "missing", "audit_key")
    assert refused.value.param == "audit_key" and "audit key file" in refused.value.public_message


def test_a_new_master_key_goes_in_front_and_the_older_ones_are_dropped_later(tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    ring = read_master_keys(path, make=True)
    first = ring.newest
    added = add_master_key(path)
    assert ring.newest is first
    ring.reload()
    assert [each.id for each in ring] == [added.id, first.id] and [each.id for each in ring.older] == [first.id]
    assert ring.find(first.id) is not None and ring.find("none") is None
    assert path.stat().st_mode & 0o777 == 0o600 and list(tmp_path.iterdir()) == [path]
    with pytest.raises(BadInput):
        read_secret(path, "audit_key")  # that one is never two
    assert drop_older_master_keys(path) == 1 and drop_older_master_keys(path) == 0
    ring.reload()
    assert [each.id for each in ring] == [added.id]
    path.write_text("no key")
    with pytest.raises(BadInput):
        ring.reload()
    assert ring.newest.id == added.id
