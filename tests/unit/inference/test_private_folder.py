"""Folders that nobody else can enter: their mode, whose they are, and how long a path a socket in one has."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from inference.private_folder import SOCKET_PATH_MAX, PrivateFolder, create_socket_folder, remove_abandoned
from sessions.model.errors import Unavailable


def test_a_folder_is_its_owners_alone_and_goes_with_it(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path, "mine-")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert remove_abandoned(tmp_path, "mine-") == 0 and folder.path.exists()
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "mine-left"
    left.mkdir()
    (left / "owner.lock").touch()
    (tmp_path / "theirs-left").mkdir()
    PrivateFolder(tmp_path, "mine-").close()
    assert [each.name for each in tmp_path.iterdir()] == ["theirs-left"]


def test_a_temporary_folder_with_a_long_path_is_passed_over(tmp_path: Path) -> None:
    long = tmp_path / ("x" * SOCKET_PATH_MAX)
    long.mkdir()
    folder = create_socket_folder(10, (long, Path("/tmp")))
    try:
        assert folder.path.parent == Path("/tmp") and len(str(folder.path / ("n" * 10))) <= SOCKET_PATH_MAX
    finally:
        folder.close()


def test_without_any_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="TMPDIR"):
        create_socket_folder(10, (tmp_path / ("x" * SOCKET_PATH_MAX),))
    with pytest.raises(Unavailable, match="missing"):
        create_socket_folder(10, (Path("/tmp/missing"),))
