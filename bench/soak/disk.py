"""A disk that can be full: a small tmpfs whose size is taken away and given back, or a limit on how large files get.

Where nothing may be mounted, every process of the server gets a limit (RLIMIT_FSIZE) instead: what it writes beyond
that fails with "file too large" as it would with "no space left".
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOM_BYTES: Final = 2 << 30
LIMIT_BYTES: Final = 64 << 10


class FillableDisk:
    """`folder` lies on it; None: there is none, and files are limited."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def fill(self, pids: Iterable[int]) -> None:
        """From now on nothing more fits on it. `pids`: who writes there."""
        if self.folder is None:
            limit_files(pids, LIMIT_BYTES)
        else:
            used = shutil.disk_usage(self.folder).used
            self._resize(used + 4096)

    def free(self, pids: Iterable[int]) -> None:
        if self.folder is None:
            limit_files(pids, resource.RLIM_INFINITY)
        else:
            self._resize(ROOM_BYTES)

    def _resize(self, num_bytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={num_bytes}", str(self.folder)], check=True)


def limit_files(pids: Iterable[int], num_bytes: int) -> None:
    """How large files of these processes may get from now on."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


@contextlib.contextmanager
def fillable_disk() -> Iterator[FillableDisk]:
    """A tmpfs where this user may mount one."""
    folder = Path(tempfile.mkdtemp(prefix="sessile-soak-disk-"))
    options = ["-t", "tmpfs", "-o", f"size={ROOM_BYTES},mode=755", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(["mount", *options], capture_output=True).returncode == 0
    try:
        yield FillableDisk(folder if mounted else None)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
        with contextlib.suppress(OSError):
            folder.rmdir()
