"""The journal in PostgreSQL: its grants and purges; `SqlJournal` has the rest. Connections and commits are in
`database.py`."""

from __future__ import annotations

from collections.abc import Sequence

from persistence.codec import HEAD_ROW, HeadBody, encode_head_body
from persistence.postgres import statements as sql
from persistence.postgres.connection import terminate
from persistence.postgres.database import PostgresDatabase
from persistence.postgres.error_mapping import FAILURES, NO_ANSWER, translate
from persistence.postgres.purge import purge_commands, purge_session
from persistence.sql.journal import SqlJournal
from persistence.validation import check_key, check_text, fenced
from sessions.model.journal_types import Due, Head
from sessions.model.types import Epoch, SessionKey, UnixMs


class PostgresJournal(SqlJournal):
    """The Journal port on PostgreSQL; the port describes the contract."""

    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__(database, sql)
        self.database = database
        self._connection = database.connection

    async def grant(
        self, key: SessionKey, *, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs
    ) -> Head:
        check_key(key)
        check_text(owner, new_epoch)
        if expected_fence is None:
            empty = encode_head_body(HeadBody())
            key_id, about = await self._with_keys(lambda: self._codec.encode(key, HEAD_ROW, empty))
        async with self._connection() as connection:
            try:
                if expected_fence is None:
                    row = await connection.fetchrow(sql.GRANT_NEW, *key, new_epoch, owner, key_id, about, now_ms)
                else:
                    row = await connection.fetchrow(sql.GRANT_NEXT, *key, expected_fence, new_epoch, owner, now_ms)
            except FAILURES as exc:
                if isinstance(exc, NO_ANSWER):
                    terminate(connection)
                raise translate(exc) from exc
        if row is None:
            raise fenced()
        return await self._head_of(row)

    async def purge(
        self, keys: Sequence[SessionKey], due: Due, *, commands_before: UnixMs, at: UnixMs
    ) -> list[SessionKey]:
        purged = []
        for key in keys:
            async with self._connection() as connection:
                try:
                    if await purge_session(connection, key, due, self.database.sealer, at):
                        purged.append(key)
                except FAILURES as exc:
                    raise translate(exc) from exc
        async with self._connection() as connection:
            try:
                await purge_commands(connection, commands_before)
            except FAILURES as exc:
                raise translate(exc) from exc
        return purged
