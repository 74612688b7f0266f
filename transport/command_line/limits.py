"""The limits file: read strictly, and read again whenever it changes.

    output_tokens = 1024             # reserved where a request names no max_output_tokens

    [default]                        # each tenant that has no table of its own
    tokens_per_minute = 200_000
    user.requests_per_minute = 60    # each of its users

    [tenants.acme]
    requests_per_minute = 6_000

A file that cannot be read, or says something that is not allowed, is refused with what is wrong in it, and what was in
force stays in force. Every name is in `sessions.limits`.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from sessions.limits import Limits
from transport.command_line.settings import BadSetting

LOOK_S: Final = 1.0

log = structlog.get_logger(__name__)


def read_limits(path: Path) -> Limits:
    """Raises BadSetting, which says what is wrong and where."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Limits)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadSetting(f"limits = {str(path)!r}: {error}") from error


class LimitsFile:
    """What the file said when it was last whole. `watch` belongs to a task."""

    def __init__(self, path: Path, *, changed: Callable[[Limits], None] = lambda limits: None) -> None:
        """Raises BadSetting for a file that is wrong from the start."""
        self._path = path
        self._changed = changed
        self._seen = self._mark()
        self._limits = read_limits(path)

    def now(self) -> Limits:
        return self._limits

    def look(self) -> None:
        """Reads the file again if it is another one than before."""
        mark = self._mark()
        if mark == self._seen:
            return
        self._seen = mark
        try:
            limits = read_limits(self._path)
        except BadSetting as error:
            log.error("limits_refused", error=str(error), in_force="the ones before")
            return
        self._limits = limits
        log.info("limits_changed", tenants=len(limits.tenants))
        self._changed(limits)

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.look)
