"""Makes folders that only this process's user can enter, and that go with the process: for plain-text KV, for sockets.

Mode 0700. A lock in the folder lasts as long as the process does, so that whoever starts next finds the folders of the
dead by their open locks and removes them. Nothing in one outlives its owner on purpose. Blocking.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sessions.model.errors import Unavailable

_LOCK: Final = "owner.lock"
SOCKET_PATH_MAX: Final = 100  # bytes; Linux takes 107, other systems 103
SOCKET_PREFIX: Final = "sessile-run-"
_SUFFIX_CHARS: Final = 8  # how many characters mkdtemp adds


class PrivateFolder:
    """A folder that only this process uses: made at construction, removed by `close`."""

    def __init__(self, parent: Path, prefix: str) -> None:
        """Removes abandoned folders of the same prefix, then makes a new one and locks it. Raises OSError."""
        remove_abandoned(parent, prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))  # mode 0700
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self.path / _LOCK).exists():
                return
            os.close(self._lock)  # another start took it for a dead one's, before it was locked

    def close(self) -> None:
        """Removes the folder. Idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def remove_abandoned(parent: Path, prefix: str) -> int:
    """Removes this program's folders below `parent` whose process is dead; returns how many."""
    removed = 0
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another user's, or being made or removed right now
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed += 1
            finally:
                os.close(lock)
    return removed


def create_socket_folder(name_bytes: int, parents: Iterable[Path] | None = None) -> PrivateFolder:
    """Makes a folder for unix sockets whose names have `name_bytes` at most. A socket's whole path has a small bound: a
    temporary folder whose own path is too long for it is passed over. Raises Unavailable."""
    why = ""
    for parent in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")) if parents is None else parents:
        if len(os.fsencode(parent / SOCKET_PREFIX)) + _SUFFIX_CHARS + 1 + name_bytes > SOCKET_PATH_MAX:
            why = f"{parent} is too long a path"
            continue
        try:
            return PrivateFolder(parent, SOCKET_PREFIX)
        except OSError as error:
            why = str(error)
    raise Unavailable(
        "engine_unavailable",
        f"There is no temporary folder for the engine's socket ({why}). Set TMPDIR to a short path that this user may"
        " write to.",
    )
