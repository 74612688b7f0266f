"""Makes the private in-memory folder where an engine may write KV in plain text.

It is memory-backed (/dev/shm) unless a folder is named; where the system has none, there is no spill. It belongs
to one process: a lock in it lasts as long as the process does, so that whoever starts next finds the folders of the
dead by their open locks and removes them. Nothing in it outlives its owner on purpose.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import structlog

from sessions.model.errors import BadInput

log = structlog.get_logger(__name__)

_PREFIX: Final = "sessile-kv-"
_LOCK: Final = "owner.lock"
_SHARE: Final = 0.8
MEMORY_BACKED: Final = Path("/dev/shm")


class StagingFolder:
    """Made at construction, removed by `close`. Blocking."""

    def __init__(self, parent: Path) -> None:
        """Raises OSError."""
        parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))  # mode 0700
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def bound_bytes(self, requested: int) -> int:
        """`requested`, or what may be put here without crowding out other programs: most of what is free now."""
        room = int(shutil.disk_usage(self.path).free * _SHARE)
        if room < requested:
            log.warning(
                "host_tier_reduced",
                folder=str(self.path.parent),
                room_mb=room // 1_000_000,
                requested_mb=requested // 1_000_000,
                advice="make it larger (docker: --shm-size), or request less with --kv-host-mb",
            )
        return min(room, requested)

    def close(self) -> None:
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def create_staging_folder(named: Path | None) -> StagingFolder | None:
    """In the folder that is named, else in memory. None, with a log line, where the system offers no memory.

    Blocking. Raises BadInput for a folder that is named and cannot be used."""
    try:
        if named is None and not MEMORY_BACKED.is_dir():
            raise FileNotFoundError(f"{MEMORY_BACKED} is missing")  # and is not ours to make
        return StagingFolder(named or MEMORY_BACKED)
    except OSError as exc:
        if named is not None:
            raise BadInput(
                "bad_kv_folder",
                f"The folder for KV in plain text, {named}, cannot be used ({exc}). Give --kv-staging another one, or"
                " leave it out.",
                param="kv_staging",
            ) from exc
        log.warning(
            "kv_spill_disabled",
            error=str(exc),
            advice=f"mount a folder in memory at {MEMORY_BACKED} (docker: --shm-size), or name one by --kv-staging,"
            " where KV will lie in plain text",
        )
        return None


def remove_abandoned(parent: Path) -> int:
    """Removes our folders below `parent` whose owner is dead; returns how many."""
    removed = 0
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or being made or removed right now
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed += 1
            finally:
                os.close(lock)
    return removed
