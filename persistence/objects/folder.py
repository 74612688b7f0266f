"""Objects as files below a folder: each appears whole or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from persistence.objects.object_store import objects_unavailable

_PART: Final = ".part-"


class FolderObjects:
    """The ObjectStore port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, name: str, data: bytes) -> bool:
        try:
            await asyncio.to_thread(self._put, self._folder / name, data)
        except OSError as exc:
            raise objects_unavailable(exc) from exc
        return False

    async def get(self, name: str) -> bytes | None:
        return await self.get_start(name, -1)

    async def get_start(self, name: str, size: int) -> bytes | None:
        try:
            return await asyncio.to_thread(_read, self._folder / name, size)
        except OSError as exc:
            raise objects_unavailable(exc) from exc

    async def names(self, folder: str, *, after: str = "") -> AsyncIterator[str]:
        for name in await asyncio.to_thread(self._names, folder):
            if name > after:
                yield name

    async def delete(self, names: Sequence[str]) -> None:
        def remove() -> None:
            for name in names:
                (self._folder / name).unlink(missing_ok=True)

        try:
            await asyncio.to_thread(remove)
        except OSError as exc:
            raise objects_unavailable(exc) from exc

    # -- in a thread --------------------------------------------------------------------------------------------------

    @staticmethod
    def _put(path: Path, data: bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f"{_PART}{os.urandom(8).hex()}")
        fd = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _names(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._folder / folder) as entries:
                names = [entry.name for entry in entries if entry.is_file() and not entry.name.startswith(_PART)]
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise objects_unavailable(exc) from exc
        return sorted(f"{folder}/{name}" for name in names)


def _read(path: Path, size: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except FileNotFoundError:
        return None
