"""The views of a store beside its journal, on one SQL database."""

from __future__ import annotations

from persistence.sql.added_tools import SqlAddedTools
from persistence.sql.api_keys import SqlApiKeys
from persistence.sql.audit import SqlAudit
from persistence.sql.end_users import SqlEndUsers
from persistence.sql.file_chunks import FileChunks
from persistence.sql.files import SqlFiles
from persistence.sql.journal import JournalStatements
from persistence.sql.push import SqlPush
from persistence.sql.reviews import SqlReviews
from persistence.sql.revocations import SqlRevocations
from persistence.sql.script import SqlDatabase
from persistence.sql.shares import SqlShares
from persistence.sql.tool_records import SqlToolRecords
from persistence.sql.usage import SqlUsage


class SqlViews:
    """All of the Store port but its journal, which a driver adds, and its life."""

    def __init__(
        self, database: SqlDatabase, statements: JournalStatements, audit: SqlAudit, chunks: FileChunks | None = None
    ) -> None:
        self.usage = SqlUsage(database)
        self.reviews = SqlReviews(database)
        self.shares = SqlShares(database)
        self.push = SqlPush(database)
        self.files = SqlFiles(database, chunks)
        self.audit = audit
        self.api_keys = SqlApiKeys(database)
        self.revocations = SqlRevocations(database)
        self.tool_records = SqlToolRecords(database)
        self.added_tools = SqlAddedTools(database)
        self.end_users = SqlEndUsers(database, statements)
