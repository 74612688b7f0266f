"""A store in memory: gone with the process, for tests, for trying things out and for the simulator."""

from __future__ import annotations

from persistence.memory.added_tools import MemoryAddedTools
from persistence.memory.api_keys import MemoryApiKeys
from persistence.memory.audit import MemoryAudit
from persistence.memory.database import MemoryDatabase
from persistence.memory.end_users import MemoryEndUsers
from persistence.memory.files import MemoryFiles
from persistence.memory.journal import Medium, MemoryJournal, apply_at_once
from persistence.memory.push import MemoryPush
from persistence.memory.reviews import MemoryReviews
from persistence.memory.revocations import MemoryRevocations
from persistence.memory.shares import MemoryShares
from persistence.memory.tool_records import MemoryToolRecords
from persistence.memory.usage import MemoryUsage


class MemoryStore:
    """The port `Store` in memory. Several may share one `database`, as processes would. `journal`, if given, is used in
    place of a new one."""

    def __init__(
        self,
        database: MemoryDatabase | None = None,
        *,
        medium: Medium = apply_at_once,
        journal: MemoryJournal | None = None,
    ) -> None:
        self.journal = journal or MemoryJournal(database or MemoryDatabase(), medium=medium)
        self.database = self.journal.database
        self.tallies = self.journal
        self.usage = MemoryUsage(self.database)
        self.reviews = MemoryReviews(self.database)
        self.shares = MemoryShares(self.database)
        self.push = MemoryPush(self.database)
        self.files = MemoryFiles(self.database)
        self.audit = MemoryAudit(self.database)
        self.api_keys = MemoryApiKeys(self.database)
        self.revocations = MemoryRevocations(self.database)
        self.tool_records = MemoryToolRecords(self.database)
        self.added_tools = MemoryAddedTools(self.database)
        self.end_users = MemoryEndUsers(self.database)

    async def open(self) -> None:
        await self.journal.open()

    async def close(self) -> None:
        await self.journal.close()
