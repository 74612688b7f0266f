"""A store in one SQLite file: `folder/journal.db`, of one process at a time."""

from __future__ import annotations

from persistence.sql.added_tools import SqlAddedTools
from persistence.sql.api_keys import SqlApiKeys
from persistence.sql.audit import SqlAudit
from persistence.sql.end_users import SqlEndUsers
from persistence.sql.file_chunks import FileChunks, SqlFileChunks
from persistence.sql.files import SqlFiles
from persistence.sql.push import SqlPush
from persistence.sql.reviews import SqlReviews
from persistence.sql.revocations import SqlRevocations
from persistence.sql.shares import SqlShares
from persistence.sql.tool_records import SqlToolRecords
from persistence.sql.usage import SqlUsage
from persistence.sqlite import statements
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.journal import SqliteJournal


class SqliteStore:
    """The Store port on SQLite."""

    def __init__(self, database: SqliteDatabase, chunks: FileChunks | None = None) -> None:
        """`chunks` is where the bytes of files are stored; None: in the database."""
        self.database = database
        self.journal = SqliteJournal(database)
        self.tallies = self.journal
        self.usage = SqlUsage(database)
        self.reviews = SqlReviews(database)
        self.shares = SqlShares(database)
        self.push = SqlPush(database)
        self.files = SqlFiles(database, chunks or SqlFileChunks(database))
        self.audit = SqlAudit(database)
        self.api_keys = SqlApiKeys(database)
        self.revocations = SqlRevocations(database)
        self.tool_records = SqlToolRecords(database)
        self.added_tools = SqlAddedTools(database)
        self.end_users = SqlEndUsers(database, statements)

    async def open(self) -> None:
        await self.database.open()

    async def close(self) -> None:
        await self.database.close()
