"""What a billing system makes of a usage stream: every row once, however often it comes, and what is wrong with it."""

from __future__ import annotations

import asyncio
import collections
from typing import Any

Name = tuple[str, str, str]


class UsageRows:
    """`take` each row as it comes. A row that came before is passed over; one that came with other content is a
    fault."""

    def __init__(self) -> None:
        self.rows: dict[Name, dict[str, Any]] = {}
        self.seen: collections.Counter[Name] = collections.Counter()
        self.faults: list[str] = []
        self._more = asyncio.Event()
        self._stopped = False

    def take(self, row: dict[str, Any]) -> None:
        name = (row["tenant"], row["session"], row["response_id"])
        self.seen[name] += 1
        if self.rows.setdefault(name, row) != row:
            self.faults.append(f"{name} was relayed with another content")
        self._more.set()

    async def has(self, count: int) -> None:
        """Returns when it has that many rows."""
        while len(self.rows) < count:
            await self._more.wait()
            self._more.clear()

    def stop(self) -> None:
        """The reader that fills it ends by itself, at its next look."""
        self._stopped = True
