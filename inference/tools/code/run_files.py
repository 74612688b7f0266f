"""Brings a session's files into the folder of a run, and stores the files that the run leaves as files of its user.

A stored file's id is made of the call and of its number among the files of the call. So a call that is made again, by
whichever replica, stores nothing a second time: it finds the files of the attempt before, takes them as its own, and
adds those that are missing. Files of the folder that the run has not changed are not stored.

Bounded both ways in number and bytes; a file that does not fit is named, with the reason. Knows no sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mimetypes
from collections.abc import Callable, Collection, Sequence
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from msgspec import UNSET

from inference.tools.code.scratch import NAME_MAX, ScratchFile, is_path, new_file, open_plain_file, plain_files
from sessions.model.errors import Limited, OutcomeUnknown, SessileError, Unavailable
from sessions.model.knowledge.files import (
    CHUNK_BYTES,
    FILE_ID_PREFIX,
    UNKNOWN_TYPE,
    FileId,
    FileQuotas,
    FileStore,
    StoredFile,
    safe_filename,
    safe_media_type,
    visible_file,
)
from sessions.model.types import Principal, RunFile, TenantId, UnixMs
from sessions.server_tools import CallFile, ToolRequest

KEEP_S: Final = 60.0  # for storing the files of a run
_NO_ROOM: Final = "they have no room there, or cannot be read"


class FolderBounds(NamedTuple):
    """How many files, and how many bytes of them together, go into a folder or come out of it. What goes in counts with
    the folders that it needs."""

    files: int
    size: int


class FilledFolder(NamedTuple):
    """The files of the session that stand in a folder, by path, and the names of those that do not, with the reason."""

    files: dict[str, StoredFile]
    missing: tuple[str, ...] = ()
    reason: str = _NO_ROOM


class KeptFiles(NamedTuple):
    """The stored files of a run, and the paths of those that were not stored, with the reason."""

    files: tuple[RunFile, ...] = ()
    missing: tuple[str, ...] = ()
    reason: str = ""


class RunFiles:
    """The files of runs. `quotas` returns those of a tenant; a single file has at most `bytes_max` bytes."""

    def __init__(
        self,
        store: FileStore,
        quotas: Callable[[TenantId], FileQuotas],
        now_ms: Callable[[], UnixMs],
        *,
        bytes_max: int,
    ) -> None:
        self._store = store
        self._quotas = quotas
        self._now_ms = now_ms
        self._bytes_max = bytes_max

    async def check(self, principal: Principal, file_id: str) -> None:
        """Raises Forbidden, and NotFound if there is no such file that the principal may see."""
        await visible_file(self._store, principal, file_id, self._now_ms())

    # -- in -----------------------------------------------------------------------------------------------------------

    async def fill(self, folder: Path, request: ToolRequest, bounds: FolderBounds) -> FilledFolder:
        """Writes a call's files into its folder: where not all have room, those that its client gave the tool, then the
        newest. Files that are deleted, or that the call's user may not see, are left out. Raises Unavailable."""
        found: list[tuple[CallFile, StoredFile]] = []
        for given in request.files:
            stored = await self._find(request, given.file_id)
            if stored is not None:
                found.append((given, stored))
        files: dict[str, StoredFile] = {}
        folders = set[str]()
        missing, size = list[str](), 0
        for path, stored in _planned(found).items():
            parents = {str(parent) for parent in PurePosixPath(path).parents} - {"."}
            entries = len(files) + 1 + len(folders | parents)
            fits = entries <= bounds.files and size + stored.size <= bounds.size
            if fits:
                folders |= parents
            if fits and await self._put(folder, path, stored):
                files[path] = stored
                size += stored.size
            else:
                missing.append(path)
        return FilledFolder(files, tuple(sorted(missing)))

    async def _find(self, request: ToolRequest, file_id: str) -> StoredFile | None:
        """Returns a file that the call's user may read; None if there is none. Raises Unavailable."""
        try:
            stored = await self._store.find(request.key.tenant, FileId(file_id), self._now_ms())
        except Unavailable:
            raise
        except SessileError:
            return None
        return stored if stored is not None and _is_readable(stored, request.user) else None

    async def _put(self, folder: Path, path: str, stored: StoredFile) -> bool:
        """Writes a file. Returns False if it cannot be read any more, or its path is a folder's. Raises Unavailable."""
        try:
            with await asyncio.to_thread(new_file, folder, path) as file:
                async for chunk in self._store.read(stored):
                    await asyncio.to_thread(file.write, chunk)
        except Unavailable:
            raise
        except (OSError, SessileError):
            with contextlib.suppress(OSError):
                (folder / path).unlink()
            return False
        return True

    # -- out ----------------------------------------------------------------------------------------------------------

    async def keep(
        self, folder: Path, request: ToolRequest, filled: FilledFolder, count_max: int, bounds: FolderBounds
    ) -> KeptFiles:
        """Stores the files that a run has made or changed: of `count_max` in its folder, those within `bounds`."""
        changed = await asyncio.to_thread(changed_files, folder, filled, count_max)
        stored: list[RunFile] = []
        reason = ""
        try:
            async with asyncio.timeout(KEEP_S):
                reason = await self._keep(folder, request, filled, changed, bounds, stored)
        except TimeoutError:
            reason = "storing them took too long"
        except Limited as error:
            reason = error.public_message
        except SessileError:
            reason = "they could not be stored"
        done = {file.path for file in stored}
        return KeptFiles(tuple(stored), tuple(file.path for file in changed if file.path not in done), reason)

    async def _keep(
        self,
        folder: Path,
        request: ToolRequest,
        filled: FilledFolder,
        changed: list[ScratchFile],
        bounds: FolderBounds,
        stored: list[RunFile],
    ) -> str:
        """Appends each file that it stores to `stored`. Returns why others are not among them. Raises SessileError."""
        size, reason, taken = 0, "", {file.path for file in changed}
        for path, bytes_of_it in changed:
            if len(stored) >= bounds.files or size + bytes_of_it > bounds.size or bytes_of_it > self._bytes_max:
                reason = f"a run keeps {bounds.files} files and {bounds.size >> 20} MB at most"
                continue
            file = await asyncio.to_thread(open_plain_file, folder, path)
            if file is None:
                reason = reason or "they cannot be read"
                continue
            with file:
                kept = await self._stored(request, len(stored), path, bytes_of_it, file)
            if kept.filename != safe_filename(path):  # an earlier attempt's
                path = _free_path(kept.filename, taken | {file.path for file in stored})
            before = filled.files.get(path)
            source = UNSET if before is None else before.id
            size += bytes_of_it
            stored.append(RunFile(file_id=kept.id, path=path, size=kept.size, source=source))
        await self._take_others(request, bounds.files, stored)
        return reason

    async def _stored(
        self, request: ToolRequest, number: int, path: str, size: int, file: BufferedReader
    ) -> StoredFile:
        """Stores a file as the call's `number`th, unless an earlier attempt of the call has stored one as that. Returns
        the one that is stored."""
        tenant, now, left = request.key.tenant, self._now_ms(), size
        blob = await self._store.begin(tenant, request.user, now)
        content = hashlib.sha256()
        try:
            index = 0
            while left > 0 and (chunk := await asyncio.to_thread(file.read, min(left, CHUNK_BYTES))):
                content.update(chunk)
                await self._store.put_chunk(tenant, blob, index, chunk)
                index, left = index + 1, left - len(chunk)
            mine = StoredFile(
                id=file_id_of(request.execution_id, number),
                tenant=tenant,
                user=request.user,
                filename=safe_filename(path),
                purpose="assistants_output",
                media_type=safe_media_type(mimetypes.guess_type(path)[0] or UNKNOWN_TYPE),
                size=size - left,
                sha256=content.hexdigest(),
                blob=blob,
                created_at=now,
            )
            try:
                stored = await self._store.finish(mine, self._quotas(tenant))
            except OutcomeUnknown:  # its id makes it safe to ask again
                stored = await self._store.finish(mine, self._quotas(tenant))
        except BaseException:
            await self._store.abandon(tenant, blob)
            raise
        return stored

    async def _take_others(self, request: ToolRequest, files_max: int, stored: list[RunFile]) -> None:
        """Appends what an earlier attempt of the call has stored beyond the files of this one."""
        ids = [file_id_of(request.execution_id, number) for number in range(len(stored), files_max)]
        others = await self._store.existing(request.key.tenant, ids, self._now_ms()) if ids else ()
        for file_id in sorted(others, key=ids.index):
            other = await self._store.find(request.key.tenant, file_id, self._now_ms())
            if other is not None:
                path = _free_path(other.filename, {file.path for file in stored})
                stored.append(RunFile(file_id=other.id, path=path, size=other.size))


def changed_files(folder: Path, filled: FilledFolder, count_max: int) -> list[ScratchFile]:
    """Returns the files in a folder that it did not hold when it was filled, or that differ from then. Blocking."""
    return [file for file in plain_files(folder, count_max) if not _is_same(folder, file, filled.files.get(file.path))]


def _is_same(folder: Path, file: ScratchFile, stored: StoredFile | None) -> bool:
    if stored is None or stored.size != file.size:
        return False
    content = open_plain_file(folder, file.path)
    if content is None:
        return True
    with content:
        return hashlib.file_digest(content, "sha256").hexdigest() == stored.sha256


def file_id_of(execution_id: str, number: int) -> FileId:
    """Returns the id of the file that a call stores as its `number`th, the same for each attempt."""
    return FileId(FILE_ID_PREFIX + hashlib.sha256(f"{execution_id}\0{number}".encode()).hexdigest()[:32])


def _is_readable(file: StoredFile, user: str | None) -> bool:
    """Returns whether a file may stand in a run for a session's user: it is that user's, or the tenant's. A session
    without a user is a service's, which sees all files of its tenant; it named only such."""
    return user is None or file.user is None or file.user == user


def _planned(files: Sequence[tuple[CallFile, StoredFile]]) -> dict[str, StoredFile]:
    """Returns a call's files by path, in the order in which they get room: what the client gave the tool, then the
    newest. A run's file takes the place of the one that it was made from, and of no other: of several files of one
    name the tool's have it first, then those of runs, then those of messages."""
    runs = [each for each in reversed(files) if each[0].origin == "run"]
    made = {each[0].file_id: each for each in runs} | {each[0].replaces: each for each in reversed(runs)}
    tools = [made.get(each[0].file_id, each) for each in files if each[0].origin == "tool"]
    messages = [each for each in files if each[0].origin == "message" and each[0].file_id not in made]
    by_path: dict[str, StoredFile] = {}
    paths: dict[str, str] = {}  # by file
    moved: list[tuple[CallFile, StoredFile]] = []

    def place(given: CallFile, stored: StoredFile) -> None:
        if given.file_id not in paths:
            path = paths[given.file_id] = _free_path(_path_of(given, stored), by_path)
            by_path[path] = stored

    for each in tools:
        place(*each)
    for each in runs:
        if _path_of(*each) in by_path:
            moved.append(each)
        else:
            place(*each)
    for each in (*moved, *messages):
        place(*each)
    by_need = dict.fromkeys(given.file_id for given, _ in (*reversed(tools), *reversed(files)))
    return {paths[file_id]: by_path[paths[file_id]] for file_id in by_need if file_id in paths}


def _path_of(given: CallFile, stored: StoredFile) -> str:
    """Returns the path that a file would have alone: where a run wrote it, else its name."""
    if given.origin == "run" and is_path(given.name):
        return given.name
    return _short(safe_filename(given.name or stored.filename))


def _free_path(path: str, taken: Collection[str]) -> str:
    """Returns a path, with a number if it is taken."""
    plain, free, number = PurePosixPath(path), path, 2
    if path in taken:
        plain = plain.with_name(_short(plain.name))
    while free in taken:
        free = str(plain.with_name(f"{plain.stem}-{number}{plain.suffix}"))
        number += 1
    return free


def _short(name: str) -> str:
    """Returns a name that a folder takes: cut to its length in bytes, with its ending."""
    ending = PurePosixPath(name).suffix if len(PurePosixPath(name).suffix.encode()) <= 16 else ""
    stem = name[: len(name) - len(ending)].encode()[: NAME_MAX - 24].decode(errors="ignore")
    return f"{stem}{ending}"
