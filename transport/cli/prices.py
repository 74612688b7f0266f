"""The price list's file: read at the start, and again whenever it has changed. A malformed one is refused with what is
wrong in it; at the start that ends the process, later the list that is in force stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sessions.billing.prices import BadPrices, PriceBook, PriceList, read_prices
from sessions.file_watcher import FileWatcher
from transport.cli.settings import BadSetting

LOOK_S: Final = 2.0
BYTES_MAX: Final = 4 << 20


class PriceFile:
    """`book` is what is in force. `path` "" has no prices."""

    def __init__(self, path: str) -> None:
        """Raises BadSetting for a file that cannot be read or used."""
        self.book = PriceBook()
        self.watched = FileWatcher(
            path, _read, self._take, what="prices", refused=(ValueError, BadPrices), look_s=LOOK_S
        )
        self._watches = bool(path)
        if path:
            try:
                self.book.current = self.watched.first()
            except (OSError, ValueError, BadPrices) as error:
                raise BadSetting(f"prices = {path!r}: {error}") from error

    async def _take(self, prices: PriceList) -> None:
        self.book.current = prices

    async def run(self) -> None:
        """Looks every few seconds. Returns at once where there is no file; ends otherwise only by cancellation."""
        if self._watches:
            await self.watched.run()


def _read(path: Path) -> PriceList:
    size = path.stat().st_size
    if size > BYTES_MAX:
        raise BadPrices(f"{size} bytes: at most {BYTES_MAX}")
    return read_prices(path.read_text())
