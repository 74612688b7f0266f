"""A store in one SQLite file: `folder/journal.db`, of one process at a time."""

from __future__ import annotations

from persistence.sql.audit import SqlAudit
from persistence.sql.file_chunks import FileChunks
from persistence.sql.views import SqlViews
from persistence.sqlite import statements
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.journal import SqliteJournal


class SqliteStore(SqlViews):
    """The Store port on SQLite."""

    def __init__(self, database: SqliteDatabase, chunks: FileChunks | None = None) -> None:
        super().__init__(database, statements, SqlAudit(database), chunks)
        self.database = database
        self.journal = SqliteJournal(database)
        self.tallies = self.journal

    async def open(self) -> None:
        await self.database.open()

    async def close(self) -> None:
        await self.database.close()
