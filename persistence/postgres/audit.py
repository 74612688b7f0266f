"""The audit log in PostgreSQL, where several processes write to one chain.

A process makes a row, because it alone has the key, for the chain's head that it knows. The statement that inserts the
row moves the head only if it is still that one; if another process was first, the head is read again and the row made
anew. So no process waits for a lock that another one holds while it is away.
"""

from __future__ import annotations

from collections.abc import Sequence

from persistence.postgres.audit_rows import TRIES, heads_of, move_chain, too_much_contention
from persistence.postgres.database import PostgresDatabase
from persistence.sql.audit import SqlAudit
from sessions.model.audit import Audited
from sessions.model.types import TenantId


class PostgresAudit(SqlAudit):
    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__(database)
        self._transaction = database.transaction

    async def record(self, tenant: TenantId, audited: Sequence[Audited]) -> None:
        entries = [self.sealer.entry(tenant, row) for row in audited]
        if not entries:
            return
        for _ in range(TRIES):
            async with self._transaction() as connection:
                head = (await heads_of(connection, [tenant]))[tenant]
                if await move_chain(connection, self.sealer, head, entries):
                    return
        raise too_much_contention()
