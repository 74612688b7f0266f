"""The marker that a store keeps beside its data, to notice when the data went back. The lock is in `folder_lock`.

A small file that holds the store's incarnation and a position that only grows: the number of commits that this process
has made. It is written after each commit and before the commit is acknowledged. At the next start:

    what the store says                     meaning                                      incarnation
    same incarnation, position >= marker    the process stopped, maybe between the two   stays
    position < marker                       something acknowledged is gone: restored     new
    another incarnation                     not the store that the marker was with       new
    no marker, or unreadable                unknown                                      new
    marker touched after its last write     copied or restored together with the store   new

A new incarnation that was not needed costs clients a reset; a missing one would be a silent divergence. So in every
doubt a new one is made. The last row works because a file's change time cannot be set: the change time of a copied
marker is later than the time written in it. The marker does not show that a whole disk or machine was put back from an
image: then delete it.

The marker is synced about once a second, not with each commit (that would double the cost of a commit): after a power
cut it may be a second old, which is harmless unless a backup from that very second is restored as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

MARKER_BYTES: Final = 256  # one sector at most: written in place, so that a full disk does not stop it
TOUCHED_AFTER_S: Final = 1.0


class MarkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a marker file."""

    incarnation: str
    position: int
    written_at: float  # unix seconds by this machine's clock, the one that stamps files too
    writer: str = ""  # the id of the process that counts the positions, where several write to one store


class Marker:
    """The marker file, open from `open` to `close`."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self._fd: int | None = None
        self._last: tuple[str, int, str] | None = None
        self.synced_at: float = 0.0

    def open(self) -> MarkerRecord | None:
        """Opens the file, or makes it. Returns its content; None if there was none or it cannot be trusted. Raises
        OSError."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            mark = msgspec.json.decode(os.pread(self._fd, MARKER_BYTES, 0), type=MarkerRecord)
        except msgspec.DecodeError:
            return None
        touched = os.fstat(self._fd).st_ctime > mark.written_at + TOUCHED_AFTER_S
        return None if touched else mark

    def write(self, incarnation: str, position: int, writer: str = "") -> None:
        """Writes the store's position to the file, without waiting for the disk. Raises OSError."""
        assert self._fd is not None
        mark = MarkerRecord(incarnation=incarnation, position=position, written_at=self._now(), writer=writer)
        os.pwrite(self._fd, msgspec.json.encode(mark).ljust(MARKER_BYTES), 0)
        self._last = (incarnation, position, writer)

    def sync(self) -> None:
        """Waits until the file is on the disk. Blocks; raises OSError."""
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
