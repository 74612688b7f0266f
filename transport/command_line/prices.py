"""The price list's file: read at the start, and again whenever it has changed. A malformed one is refused with what is
wrong in it; at the start that ends the process, later the list that is in force stays.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog

from sessions.prices import BadPrices, PriceBook
from transport.command_line.settings import BadSetting

LOOK_S: Final = 2.0
BYTES_MAX: Final = 4 << 20

log = structlog.get_logger(__name__)


class PriceFile:
    """`book` is what is in force. `path` "" has no prices."""

    def __init__(self, path: str) -> None:
        """Raises BadSetting for a file that cannot be read or used."""
        self.book = PriceBook()
        self._path = Path(path)
        self._watches = bool(path)
        self._seen = self._mark()
        if path:
            try:
                self._take()
            except (OSError, ValueError, BadPrices) as error:
                raise BadSetting(f"prices = {path!r}: {error}") from error

    def _take(self) -> bool:
        size = self._path.stat().st_size
        if size > BYTES_MAX:
            raise BadPrices(f"{size} bytes: at most {BYTES_MAX}")
        return self.book.replace(self._path.read_text())

    def _mark(self) -> tuple[int, int, int] | None:
        """What another file would differ in; None where there is none, which is said once."""
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def look(self) -> bool:
        """Takes the file again if it has changed since. True when another list is in force now."""
        try:
            mark = self._mark()
            if mark == self._seen:
                return False
            self._seen = mark
            if not self._take():
                return False
        except (OSError, ValueError, BadPrices) as error:
            current = self.book.current
            log.error("prices_refused", file=str(self._path), error=str(error), kept=current and current.version)
            return False
        assert self.book.current is not None
        log.info("prices_changed", file=str(self._path), version=self.book.current.version)
        return True

    async def run(self) -> None:
        """Looks every few seconds. Returns at once where there is no file; ends otherwise only by cancellation."""
        while self._watches:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.look)
