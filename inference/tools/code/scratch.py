"""The folders that code works in: one for each sandbox, and what a session's last run left, which its next finds.

A run works on a copy. What it wrote becomes the session's only when it has ended by itself within its bounds, as a
whole, so a run that was stopped, or is made again, finds what the one before left. Only plain files and folders are
taken back: a link, a pipe, a device, a name that is no text stays behind. Folders live as long as the process, and not
longer than `IDLE_S` after their last use.

Blocking, all but `new`. Nothing runs in a folder any more when it is read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sessions.model.types import SessionKey

IDLE_S: Final = 1_200.0
TOTAL_BYTES: Final = 2**30  # of the folders of all sessions of a replica
SESSIONS_MAX: Final = 4_096
DEPTH_MAX: Final = 8
NAME_MAX: Final = 200
_PREFIX: Final = "sessile-code-"
_PART: Final = 2**20


class ScratchFile(NamedTuple):
    """A file that a run has written: its path within the folder, and its size in bytes."""

    path: str
    size: int


class _Kept(NamedTuple):
    folder: Path
    size: int
    used_at: float


class ScratchFolders:
    """The scratch folders of a replica, below one folder that nobody else may enter."""

    def __init__(self, *, clock: Callable[[], float], parent: str | None = None) -> None:
        parent = parent or tempfile.gettempdir()
        _remove_left(parent)
        self._root = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        self._clock = clock
        self._kept: OrderedDict[SessionKey, _Kept] = OrderedDict()
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

    def fill(self, folder: Path, key: SessionKey) -> None:
        """Copies the session's files into a new folder."""
        kept = self._kept.get(key)
        if kept is not None:
            for path, size in _plain_files(kept.folder):
                _copy(kept.folder, folder, path, size)

    def keep(self, folder: Path, key: SessionKey) -> list[ScratchFile]:
        """Stores the files that a run has left in its folder as those of its session. Returns the files that are new or
        changed."""
        self.expire()
        before = self._kept.pop(key, None)
        known = {path: before.folder / path for path, _ in _plain_files(before.folder)} if before is not None else {}
        mine = self.new()
        written, total = [], 0
        for path, size in _plain_files(folder):
            _copy(folder, mine, path, size)
            total += size
            if path not in known or not _same(known[path], mine / path):
                written.append(ScratchFile(path, size))
        if before is not None:
            self.drop(before.folder)
        if total or any(mine.iterdir()):
            self._kept[key] = _Kept(mine, total, self._clock())
        else:
            self.drop(mine)
        self._make_room()
        return written

    def expire(self) -> None:
        """Deletes folders that have not been used for a while."""
        old = self._clock() - IDLE_S
        for key in [key for key, kept in self._kept.items() if kept.used_at < old]:
            self.drop(self._kept.pop(key).folder)

    def _make_room(self) -> None:
        while self._kept and (
            len(self._kept) > SESSIONS_MAX or sum(kept.size for kept in self._kept.values()) > TOTAL_BYTES
        ):
            self.drop(self._kept.popitem(last=False)[1].folder)

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


def _plain_files(folder: Path) -> Iterator[tuple[str, int]]:
    """Yields the plain files below a folder with their sizes, in order of their names."""
    waiting = [("", 0)]
    while waiting:
        below, depth = waiting.pop()
        try:
            with os.scandir(folder / below) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            if not _is_text(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False) and depth < DEPTH_MAX:
                waiting.append((path, depth + 1))
            elif entry.is_file(follow_symlinks=False):
                yield path, entry.stat(follow_symlinks=False).st_size


def _is_text(name: str) -> bool:
    return len(name) <= NAME_MAX and name.isprintable() and name.encode(errors="replace").decode() == name


def _copy(source: Path, target: Path, path: str, size: int) -> None:
    """Copies a plain file; a file that has become another kind meanwhile is left out."""
    try:
        fd = os.open(source / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with open(fd, "rb") as given:
        if not stat.S_ISREG(os.fstat(given.fileno()).st_mode):
            return
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        with (target / path).open("xb") as made:
            while size > 0 and (part := given.read(min(size, _PART))):
                made.write(part)
                size -= len(part)


def _same(first: Path, second: Path) -> bool:
    if first.stat().st_size != second.stat().st_size:
        return False
    with first.open("rb") as left, second.open("rb") as right:
        while part := left.read(_PART):
            if part != right.read(_PART):
                return False
    return True
