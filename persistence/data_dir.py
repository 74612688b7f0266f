"""What a store keeps beside its data: the folder's lock, and a marker that notices when the data went back.

**Lock.** One process per data folder. `flock` is dropped by the kernel when the process dies, however it dies, so
there is never a stale lock to clear.

**Marker.** A small file that holds the store's incarnation and a position that only grows: the number
of commits that this process has made. It is written after each commit and before the commit is acknowledged. At the
next start:

    what the store says                     meaning                                      incarnation
    same incarnation, position >= marker    the process stopped, maybe between the two   stays
    position < marker                       something acknowledged is gone: restored     new
    another incarnation                     not the store that the marker was with       new
    no marker, or unreadable                unknown                                      new
    marker touched after its last write     copied or restored together with the store   new

A new incarnation that was not needed costs clients a reset; one that is missed would be a silent divergence. So every
doubt is decided for the new one. The last row works because a file's change time cannot be set: a copied marker is
younger than the time that stands in it. What it cannot see is a whole disk or machine put back from an image: then
delete the marker.

The marker is synced about once a second, not with each commit (that would double the cost of a commit): after
a power cut it may be a second old, which is harmless unless a backup from that very second is restored as well.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from sessions.model.errors import Unavailable

MARKER_BYTES: Final = 256  # one sector at most: written in place, so that a full disk does not stop it
TOUCHED_AFTER_S: Final = 1.0


def unusable_data_dir(folder: Path, exc: OSError) -> Unavailable:
    return Unavailable(
        "journal_folder_unusable",
        f"The data folder {folder} cannot be written ({exc.strerror or exc}). Make it a folder that this "
        f"user may write to, on a disk that is mounted for writing, or choose another one.",
        retryable=False,
    )


class FolderLock:
    """Holds a folder for this process from `take` to `release`."""

    def __init__(self, folder: Path, name: str = "journal.lock") -> None:
        self._folder = folder
        self._path = folder / name
        self._fd: int | None = None

    def take(self) -> None:
        """Makes the folder if need be. Raises Unavailable naming the folder."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise unusable_data_dir(self._folder, exc) from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        except BlockingIOError as exc:
            holder = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise Unavailable(
                "journal_folder_locked",
                f"The data folder {self._folder} is in use by another process"
                f"{f' (pid {holder})' if holder else ''}. Stop it, or choose another folder.",
                retryable=False,
            ) from exc
        except OSError as exc:
            os.close(fd)
            raise unusable_data_dir(self._folder, exc) from exc
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class MarkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in a marker file."""

    incarnation: str
    position: int
    written_at: float  # unix seconds by this machine's clock, the one that stamps files too
    writer: str = ""  # who counts the positions, where several write to one store


class Marker:
    """The marker file, open from `open` to `close`."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self._fd: int | None = None
        self._last: tuple[str, int, str] | None = None
        self.synced_at: float = 0.0

    def open(self) -> MarkerRecord | None:
        """What the marker says, if it can be trusted. Raises OSError where the file cannot be made or written."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            mark = msgspec.json.decode(os.pread(self._fd, MARKER_BYTES, 0), type=MarkerRecord)
        except msgspec.DecodeError:
            return None
        touched = os.fstat(self._fd).st_ctime > mark.written_at + TOUCHED_AFTER_S
        return None if touched else mark

    def write(self, incarnation: str, position: int, writer: str = "") -> None:
        """Puts the position down, without waiting for the disk. Raises OSError."""
        assert self._fd is not None
        mark = MarkerRecord(incarnation=incarnation, position=position, written_at=self._now(), writer=writer)
        os.pwrite(self._fd, msgspec.json.encode(mark).ljust(MARKER_BYTES), 0)
        self._last = (incarnation, position, writer)

    def sync(self) -> None:
        """Waits for the disk. Blocks; raises OSError."""
        assert self._fd is not None
        os.fsync(self._fd)
        self.synced_at = self._now()

    def close(self) -> None:
        if self._fd is not None:
            if self._last is not None:
                self.write(*self._last)
                self.sync()
            os.close(self._fd)
            self._fd = None
