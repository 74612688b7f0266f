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

import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec

from sessions.file_watcher import FileWatcher
from sessions.limits import Limits
from transport.cli.settings import BadSetting


def read_limits(path: Path) -> Limits:
    """Raises BadSetting, which says what is wrong and where."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Limits)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadSetting(f"limits = {str(path)!r}: {error}") from error


class LimitsFile:
    """What the file said when it was last whole. `file.run` belongs to a task."""

    def __init__(self, path: Path, *, changed: Callable[[Limits], None] = lambda limits: None) -> None:
        """Raises BadSetting for a file that is wrong from the start."""
        self._changed = changed
        self.file = FileWatcher(path, read_limits, self._take, what="limits", refused=(BadSetting,))
        self._limits = self.file.first()

    def now(self) -> Limits:
        return self._limits

    async def _take(self, limits: Limits) -> None:
        self._limits = limits
        self._changed(limits)
