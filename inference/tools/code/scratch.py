"""The folders that code works in, one for each sandbox, and the files in them.

Only plain files are read back: a link, a pipe, a device, a file with a second name, a name that is no text stays
behind, and no link is followed on the way. A folder lives as long as its sandbox.

Blocking, all but `new`. Nothing runs in a folder any more when it is read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from io import BufferedReader, BufferedWriter
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

DEPTH_MAX: Final = 8
NAME_MAX: Final = 200
_PREFIX: Final = "sessile-code-"


class ScratchFile(NamedTuple):
    """A plain file in a folder: its path within the folder, and its size in bytes."""

    path: str
    size: int


class ScratchFolders:
    """The scratch folders of a replica, below one folder that nobody else may enter."""

    def __init__(self, *, parent: str | None = None) -> None:
        parent = parent or tempfile.gettempdir()
        _remove_left(parent)
        self._root = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        self._next = 0

    def new(self) -> Path:
        """Makes an empty folder."""
        self._next += 1
        folder = self._root / f"{self._next}"
        folder.mkdir(mode=0o700)
        return folder

    def drop(self, folder: Path) -> None:
        """Deletes a folder with all that is in it."""
        if folder.exists():
            _make_removable(folder)
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self.drop(self._root)


def _remove_left(parent: str) -> None:
    """Removes the leftovers of killed processes."""
    with contextlib.suppress(OSError):
        for name in os.listdir(parent):
            pid = name.removeprefix(_PREFIX).partition("-")[0] if name.startswith(_PREFIX) else ""
            path = Path(parent) / name
            with contextlib.suppress(OSError):
                if pid.isdigit() and not Path(f"/proc/{pid}").exists() and path.lstat().st_uid == os.getuid():
                    _make_removable(path)
                    shutil.rmtree(path, ignore_errors=True)


def _make_removable(folder: Path) -> None:
    """Restores our access to folders whose rights a run has removed, so that they can be deleted. Follows no link."""
    for at, folders, _, _ in os.fwalk(folder, follow_symlinks=False):
        for name in folders:
            with contextlib.suppress(OSError):
                path = Path(at) / name
                if not path.is_symlink():
                    path.chmod(0o700)


def plain_files(folder: Path, count_max: int) -> list[ScratchFile]:
    """Returns the plain files below a folder in order of their names. Looks at `count_max` entries at most; links,
    pipes, devices, hard links, names that are no text, and what is below `DEPTH_MAX` folders are left out."""
    files: list[ScratchFile] = []
    waiting = [("", 0)]
    while waiting and count_max > 0:
        below, depth = waiting.pop()
        try:
            with _folder_below(folder, below) as fd, os.scandir(fd) as listing:
                entries = sorted(islice(listing, count_max), key=lambda entry: entry.name)
                count_max -= len(entries)
                for entry in entries:
                    path = f"{below}/{entry.name}" if below else entry.name
                    if not _is_text(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False) and depth < DEPTH_MAX:
                        waiting.append((path, depth + 1))
                    elif entry.is_file(follow_symlinks=False):
                        files.append(ScratchFile(path, entry.stat(follow_symlinks=False).st_size))
        except OSError:
            continue
    return sorted(files)


def open_plain_file(folder: Path, path: str) -> BufferedReader | None:
    """Opens a plain file below a folder; follows no link, neither at the file nor on the way to it. Returns None if it
    is none, or has another name elsewhere."""
    if not is_path(path):
        return None
    below, _, name = path.rpartition("/")
    try:
        with _folder_below(folder, below) as at:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except OSError:
        return None
    seen = os.fstat(fd)
    if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
        return open(fd, "rb")
    os.close(fd)
    return None


def new_file(folder: Path, path: str) -> BufferedWriter:
    """Makes a file below a folder in which nothing runs yet. Raises OSError if its path is taken."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    return (folder / path).open("xb")


def is_path(path: str) -> bool:
    """Returns whether a text is the path of a file below a folder, as `plain_files` returns them."""
    parts = path.split("/")
    return len(parts) <= DEPTH_MAX + 1 and all(part not in ("", ".", "..") and _is_text(part) for part in parts)


@contextlib.contextmanager
def _folder_below(folder: Path, path: str) -> Iterator[int]:
    """Opens a folder below another one, through plain folders only. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(folder, flags)
    try:
        for part in path.split("/") if path else ():
            inner = os.open(part, flags, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def _is_text(name: str) -> bool:
    return len(name) <= NAME_MAX and name.isprintable() and name.encode(errors="replace").decode() == name
