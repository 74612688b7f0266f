"""The lock of a data folder: one process per folder. The kernel releases a `flock` when its process dies, however it
dies, so there is never a stale lock to clear.

The file contains the holder's process id and, in a second line, the URL where it listens if it is a server, so that
commands on the folder can ask it. A new holder overwrites the file, so both lines are its own.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from sessions.model.errors import Unavailable

LOCK: Final = "journal.lock"
WRITTEN_BYTES_MAX: Final = 512


def unusable_data_dir(folder: Path, exc: OSError) -> Unavailable:
    return Unavailable(
        "journal_folder_unusable",
        f"The data folder {folder} cannot be written ({exc.strerror or exc}). Make it a folder that this "
        f"user may write to, on a disk that is mounted for writing, or choose another one.",
        retryable=False,
    )


class FolderLock:
    """Holds a folder for this process from `take` to `release`."""

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        self._folder = folder
        self._path = folder / name
        self._fd: int | None = None

    def take(self) -> None:
        """Locks the folder, and makes it if it does not exist. Raises Unavailable naming the folder if another process
        has it, or it cannot be used."""
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
            holder, url = _written_in(fd)
            os.close(fd)
            who = f" (pid {holder}{f', a server at {url}' if url else ''})" if holder else ""
            raise Unavailable(
                "journal_folder_locked",
                f"The data folder {self._folder} is in use by another process{who}. Stop it, or choose another folder.",
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


def announce_server(folder: Path, url: str) -> None:
    """Writes the URL of the server that holds a folder into its lock file. Raises OSError."""
    with open(folder / LOCK, "a", encoding="utf-8") as file:
        file.write(f"{url}\n")


def address_of_server(folder: Path) -> str:
    """Returns the URL of the server that has a folder open; "" if no server has, or it has not written its URL yet."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return ""  # nobody holds it; closing gives it back
    except BlockingIOError:
        return _written_in(fd)[1]
    finally:
        os.close(fd)


def _written_in(fd: int) -> tuple[str, str]:
    """Returns the process id and the URL in a lock file, each "" if it is missing."""
    lines = os.pread(fd, WRITTEN_BYTES_MAX, 0).decode(errors="replace").split("\n")
    return lines[0], lines[1] if len(lines) > 2 else ""
