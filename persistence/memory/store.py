"""A store in memory: gone with the process, for tests, for trying things out and for the simulator."""

from __future__ import annotations

from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import Medium, MemoryJournal, apply_at_once
from persistence.sql.audit import SqlAudit
from persistence.sql.views import SqlViews
from persistence.sqlite import statements


class MemoryStore(SqlViews):
    """The port `Store` in memory. Several may share one `database`, as processes would. `journal`, if given, is used in
    place of a new one."""

    def __init__(
        self,
        database: MemoryDatabase | None = None,
        *,
        medium: Medium = apply_at_once,
        journal: MemoryJournal | None = None,
    ) -> None:
        self.journal = journal or MemoryJournal(database, medium=medium)
        self.database = self.journal.database
        self.tallies = self.journal
        super().__init__(self.database, statements, SqlAudit(self.database))

    async def open(self) -> None:
        await self.journal.open()

    async def close(self) -> None:
        await self.journal.close()
