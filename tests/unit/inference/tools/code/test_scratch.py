"""Folders of code: which files in them are read back, and when they go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inference.tools.code.scratch import (
    DEPTH_MAX,
    ScratchFile,
    ScratchFolders,
    is_path,
    new_file,
    open_plain_file,
    plain_files,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


def test_links_pipes_and_odd_names_stay_behind(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    (tmp_path / "other").write_text("hidden")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    os.link(tmp_path / "secret", folder / "hard")
    (folder / "new\nline").write_text("x")
    (Path(os.fsdecode(bytes(folder) + b"/\xff"))).write_text("x")
    (folder / "a").mkdir()
    (folder / "a" / "plain").write_text("x")
    assert plain_files(folder, 100) == [ScratchFile("a/plain", 1), ScratchFile("hard", 6)]
    for path in ("link", "folder/secret", "pipe", "hard", "a", "../other", "a/../../other", "none"):
        assert open_plain_file(folder, path) is None, path
    plain = open_plain_file(folder, "a/plain")
    assert plain is not None
    with plain:
        assert plain.read() == b"x"


def test_no_more_entries_are_looked_at_than_permitted(folder: Path) -> None:
    for name in range(50):
        (folder / f"{name:02}").write_text("x")
    assert len(plain_files(folder, 20)) == 20
    deep = folder / "/".join("d" * (DEPTH_MAX + 3))
    deep.mkdir(parents=True)
    (deep / "x").write_text("x")
    assert len(plain_files(folder, 100)) == 50


def test_paths_that_leave_the_folder_are_none(folder: Path) -> None:
    assert is_path("a.txt") and is_path("a/b/.hidden")
    for path in ("", "/etc/passwd", "a/../b", "..", "a//b", "./a", "a/", "x\0y", "n" * 300, "/".join("d" * 30)):
        assert not is_path(path), path
    with new_file(folder, "a/b.txt") as file:
        file.write(b"x")
    for path in ("a/b.txt", "a", "a/b.txt/c"):
        with pytest.raises((FileExistsError, IsADirectoryError, NotADirectoryError)):
            new_file(folder, path)


def test_a_folder_without_rights_is_removed(tmp_path: Path) -> None:
    made = ScratchFolders(parent=str(tmp_path))
    work = made.new()
    (work / "a").mkdir()
    (work / "a" / "b").write_text("x")
    (work / "a").chmod(0)
    made.drop(work)
    assert not work.exists()
    made.close()
    assert not any(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "sessile-code-4194305-x"
    left.mkdir()
    (left / "a").write_text("x")
    made = ScratchFolders(parent=str(tmp_path))
    assert not left.exists()
    made.close()
