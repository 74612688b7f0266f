"""Watches a configuration file: reads it again when it changes, refuses a bad one, and keeps what was in force.

    watched = FileWatcher(path, read, take, what="limits", refused=(BadSetting,))
    value = watched.first()       raises what `read` raises; nothing is in force yet
    await watched.run()           checks the file every `look_s` seconds until it is cancelled

    async with watched_file("limits", path, read, take) as value:      the same, for as long as the block lasts

`read` is plain and may block: it runs in a thread, with whatever is heavy in it (parsing, compiling), so that reading
does not hold up the event loop. `take` puts what was read in force, on the loop. One reading at a time; a file that
changes while it is read is read again at the next check. A missing file is reported once, and changes nothing.

Does not know what the file contains.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

from sessions.model.errors import BadInput
from sessions.setting_files import reason

LOOK_S: Final = 1.0

T = TypeVar("T")
Mark = tuple[int, int, int]

log = structlog.get_logger(__name__)


class FileWatcher(Generic[T]):
    def __init__(
        self,
        path: str | Path,
        read: Callable[[Path], T],
        take: Callable[[T], Awaitable[None]],
        *,
        what: str,
        refused: tuple[type[Exception], ...],
        look_s: float = LOOK_S,
        on_read: Callable[[str | None], Awaitable[None]] | None = None,
        beside: Sequence[str | Path] = (),
    ) -> None:
        """`beside` are files that belong to this one: a change of one of them counts as a change of the file. `what`
        names the file in logs. `refused` are the errors of `read` and `take` for a file that cannot be read or used.
        `on_read` is called after each reading with the reason for refusing the file, or None."""
        self._path = Path(path)
        self._beside = tuple(map(Path, beside))
        self._read = read
        self._take = take
        self._what = what
        self._refused: tuple[type[Exception], ...] = (*refused, OSError)
        self._look_s = look_s
        self._seen: tuple[Mark | None, ...] = ()  # mark of the file that was read last
        self._reading = asyncio.Lock()
        self._on_read = on_read

    def first(self) -> T:
        """Reads the file for the first time, in this thread. Raises what `read` raises. The caller puts the result in
        force."""
        self._seen = self._mark()
        return self._read(self._path)

    async def look(self) -> bool:
        """Reads the file if it has changed. Returns whether new content was put in force."""
        mark = await asyncio.to_thread(self._mark)
        if mark == self._seen:
            return False
        return await self.again()

    async def again(self) -> bool:
        """Reads the file whether or not it has changed. Returns whether its content was put in force."""
        async with self._reading:
            self._seen = await asyncio.to_thread(self._mark)
            try:
                await self._take(await asyncio.to_thread(self._read, self._path))
            except self._refused as error:
                log.error(f"{self._what}_refused", file=str(self._path), error=str(error), in_force="what was before")
                if self._on_read is not None:
                    await self._on_read(str(error))
                return False
        log.info(f"{self._what}_changed", file=str(self._path))
        if self._on_read is not None:
            await self._on_read(None)
        return True

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            await self.look()

    def _mark(self) -> tuple[Mark | None, ...]:
        """Returns marks of the file and of those beside it, which differ if one of them has changed."""
        return tuple(_mark_of(path) for path in (self._path, *self._beside))


@contextlib.contextmanager
def refused_as(setting: str, path: str) -> Iterator[None]:
    """Raises BadInput, in the words of a setting, if the block cannot read the file that this names."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise BadInput("invalid_setting", f"{setting} = {path!r}: {reason(error)}", param=setting) from error


@contextlib.asynccontextmanager
async def watched_file(
    setting: str, path: str, read: Callable[[Path], T], take: Callable[[T], None], *, what: str = ""
) -> AsyncIterator[T]:
    """Reads the file that a setting names, yields what it says, and passes each later version to `take` until the
    context ends. Raises BadInput for a file that is wrong at the start; a later wrong version changes nothing."""

    async def put(value: T) -> None:
        take(value)

    watcher = FileWatcher(path, read, put, what=what or setting, refused=(ValueError,))
    with refused_as(setting, path):
        first = await asyncio.to_thread(watcher.first)
    watching = asyncio.create_task(watcher.run())
    try:
        yield first
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _mark_of(path: Path) -> Mark | None:
    """Returns modification time, size and inode of a file; None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
