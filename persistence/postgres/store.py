"""A store in a schema of a PostgreSQL database, which any number of processes share."""

from __future__ import annotations

import asyncio
from typing import Final

from persistence.postgres import statements
from persistence.postgres.audit import PostgresAudit
from persistence.postgres.database import PostgresDatabase
from persistence.postgres.journal import PostgresJournal
from persistence.sql.file_chunks import FileChunks
from persistence.sql.views import SqlViews
from sessions.model.types import OPENINGS, SessionKey, TenantId

WARM_CONNECTIONS: Final = 4
_NO_SESSION: Final = SessionKey(TenantId("local"), OPENINGS)


class PostgresStore(SqlViews):
    """The Store port on PostgreSQL."""

    def __init__(self, database: PostgresDatabase, chunks: FileChunks | None = None) -> None:
        super().__init__(database, statements, PostgresAudit(database), chunks)
        self.database = database
        self.journal = PostgresJournal(database)
        self.tallies = self.journal

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
