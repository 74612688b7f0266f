"""End users in PostgreSQL."""

from __future__ import annotations

from persistence.codec import with_keys
from persistence.postgres import statements as sql
from persistence.sql.end_users import SqlEndUsers
from persistence.validation import FIRST_KEY, check_text
from sessions.model.journal_types import Head
from sessions.model.types import SessionKey, TenantId


class PostgresEndUsers(SqlEndUsers):
    async def heads(self, tenant: TenantId, user: str, *, after: SessionKey | None, limit: int) -> list[Head]:
        check_text(tenant, user)
        session = (after or FIRST_KEY).session
        rows = await self._database.rows(sql.HEADS_OF_USER, (tenant, user, session, limit))
        codec = self._database.codec
        return await with_keys(codec, lambda: [sql.head_of(codec, row) for row in rows])
