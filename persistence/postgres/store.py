"""A store in a schema of a PostgreSQL database, which any number of processes share."""

from __future__ import annotations

import asyncio
from typing import Final

from persistence.postgres import statements
from persistence.postgres.audit import PostgresAudit
from persistence.postgres.database import PostgresDatabase
from persistence.postgres.journal import PostgresJournal
from persistence.sql.added_tools import SqlAddedTools
from persistence.sql.api_keys import SqlApiKeys
from persistence.sql.end_users import SqlEndUsers
from persistence.sql.file_chunks import FileChunks, SqlFileChunks
from persistence.sql.files import SqlFiles
from persistence.sql.push import SqlPush
from persistence.sql.reviews import SqlReviews
from persistence.sql.revocations import SqlRevocations
from persistence.sql.shares import SqlShares
from persistence.sql.tool_records import SqlToolRecords
from persistence.sql.usage import SqlUsage
from sessions.model.types import OPENINGS, SessionKey, TenantId

WARM_CONNECTIONS: Final = 4
_NO_SESSION: Final = SessionKey(TenantId("local"), OPENINGS)


class PostgresStore:
    """The Store port on PostgreSQL."""

    def __init__(self, database: PostgresDatabase, chunks: FileChunks | None = None) -> None:
        """`chunks` is where the bytes of files are stored; None: in the database."""
        self.database = database
        self.journal = PostgresJournal(database)
        self.tallies = self.journal
        self.usage = SqlUsage(database)
        self.reviews = SqlReviews(database)
        self.shares = SqlShares(database)
        self.push = SqlPush(database)
        self.files = SqlFiles(database, chunks or SqlFileChunks(database))
        self.audit = PostgresAudit(database)
        self.api_keys = SqlApiKeys(database)
        self.revocations = SqlRevocations(database)
        self.tool_records = SqlToolRecords(database)
        self.added_tools = SqlAddedTools(database)
        self.end_users = SqlEndUsers(database, statements)

    async def open(self) -> None:
        """Opens the database and some connections in advance: when a gateway is replaced, all its readers come at once,
        and a connection takes tens of milliseconds until its first rows."""
        await self.database.open()
        try:
            reads = (self.journal.read(_NO_SESSION, after=0, limit=1, bytes_max=1) for _ in range(WARM_CONNECTIONS))
            await asyncio.gather(*reads)
        except BaseException:
            await self.database.close()
            raise

    async def close(self) -> None:
        await self.database.close()
