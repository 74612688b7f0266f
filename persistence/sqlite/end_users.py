"""End users in SQLite: their sessions' heads come as JSON, like every head."""

from __future__ import annotations

from persistence.codec import with_keys
from persistence.sql.end_users import SqlEndUsers
from persistence.sqlite import statements as sql
from persistence.validation import FIRST_KEY, check_text
from sessions.model.journal_types import Head
from sessions.model.types import SessionKey, TenantId


class SqliteEndUsers(SqlEndUsers):
    async def heads(self, tenant: TenantId, user: str, *, after: SessionKey | None, limit: int) -> list[Head]:
        check_text(tenant, user)
        session = (after or FIRST_KEY).session
        ((text,),) = await self._database.rows(sql.HEADS_OF_USER, (tenant, user, session, limit))
        codec = self._database.codec
        return await with_keys(codec, lambda: sql.heads_of(codec, text))
