"""A private folder in memory, where an engine may write KV in plain text.

It is memory-backed where the system has such a file system (/dev/shm), and belongs to one process: a lock in it
lasts as long as the process does, so that whoever starts next finds the folders of the dead by their open locks and
removes them. Nothing in it outlives its owner on purpose.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "sessile-kv-"
_LOCK: Final = "owner.lock"
_SHARE: Final = 0.8
MEMORY_BACKED: Final = Path("/dev/shm")


class StagingFolder:
    """Made at construction, removed by `close`. Blocking."""

    def __init__(self, parent: Path | None = None) -> None:
        """`parent` None: memory where there is some, else the system's temporary folder. Raises OSError."""
        if parent is None:
            usable = MEMORY_BACKED.is_dir() and os.access(MEMORY_BACKED, os.W_OK)
            parent = MEMORY_BACKED if usable else Path(tempfile.gettempdir())
        parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))  # mode 0700
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def room_bytes(self) -> int:
        """How much may be put here without crowding out others: most of what is free now."""
        return int(shutil.disk_usage(self.path).free * _SHARE)

    def close(self) -> None:
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def remove_abandoned(parent: Path) -> int:
    """Removes our folders below `parent` whose owner is dead; returns how many."""
    removed = 0
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else's, or being made or removed right now
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed += 1
            finally:
                os.close(lock)
    return removed
