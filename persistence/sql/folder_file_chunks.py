"""Files' bytes as files in a folder beside the journal's database. The port is `file_chunks.FileChunks`.

    files/4f/4f31…/000007    chunk 7 of blob 4f31…, sealed

Each file appears whole or not at all. Its name does not say to whom it belongs; without the key in the uploaded file's
row nobody can read a chunk, wherever a copy of the folder may be.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

from sessions.model.errors import BadInput, Unavailable
from sessions.model.knowledge.files import BlobId
from sessions.model.types import TenantId

PART: Final = ".part-"

T = TypeVar("T")


class FolderFileChunks:
    """Chunks of uploaded files below one folder, which all gateways of a cluster must see."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "files"

    @classmethod
    def of(cls, address: str) -> FolderFileChunks:
        """Opens the folder that the setting `files` names. Raises BadInput for a value that names no folder."""
        parts = urlsplit(address)
        if not parts.scheme or (parts.scheme == "file" and parts.netloc in ("", "localhost")):
            folder = Path(unquote(parts.path) if parts.scheme else address)
            if folder.exists() and not folder.is_dir():
                raise BadInput("invalid_setting", f"files = {address!r}: this is no folder.", param="files")
            return cls(folder)
        raise BadInput(
            "invalid_setting",
            f"files = {parts.scheme}://...: name a folder. Since 0.3.0 files do not lie in buckets: copy what is below"
            " the prefix into a folder (aws s3 sync), names and all, and name that one.",
            param="files",
        )

    async def put(self, tenant: TenantId, user: str, blob: BlobId, index: int, sealed: bytes) -> None:
        await self._run(lambda: _put(self._path(blob, index), sealed))

    async def get(self, tenant: TenantId, blob: BlobId, index: int) -> bytes | None:
        return await self._run(lambda: _read(self._path(blob, index)))

    async def drop(self, tenant: TenantId, blob: BlobId) -> None:
        await self._run(lambda: _drop(self._path(blob, 0).parent))

    def _path(self, blob: BlobId, index: int) -> Path:
        return self._folder / blob[:2] / blob / f"{index:06}"

    @staticmethod
    async def _run(work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except OSError as exc:
            message = f"The folder of files cannot be used ({exc.strerror})."
            raise Unavailable("file_folder_unavailable", message) from exc


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _put(path: Path, sealed: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{PART}{os.urandom(8).hex()}")
    fd = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(sealed)
            file.flush()
            os.fsync(fd)
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


def _drop(folder: Path) -> None:
    """Deletes a blob's chunks from the last one on."""
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(folder.iterdir(), reverse=True):
            path.unlink(missing_ok=True)
