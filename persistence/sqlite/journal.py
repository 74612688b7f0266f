"""The journal in one SQLite file: its grants and purges; `SqlJournal` has the rest. Connections and commits are in
`database.py`."""

from __future__ import annotations

from collections.abc import Sequence

from persistence.sql.journal import JournalDatabase, SqlJournal
from persistence.sqlite import statements as sql
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.transaction import STORE_KEY, purge_commands_step, purge_step
from persistence.write_batch import GrantWrite, JobWrite
from sessions.model.journal_types import Due, Head
from sessions.model.types import Epoch, SessionKey, UnixMs


class SqliteCalls(SqlJournal):
    """The Journal port in SQLite's statements, on a file or in memory; the port describes the contract."""

    def __init__(self, database: JournalDatabase) -> None:
        super().__init__(database, sql)

    async def grant(
        self, key: SessionKey, *, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs
    ) -> Head:
        write = await self._with_keys(lambda: GrantWrite(self._codec, key, expected_fence, owner, new_epoch, now_ms))
        row = await self._submit(write)
        return await self._head_of(row)

    async def purge(
        self, keys: Sequence[SessionKey], due: Due, *, commands_before: UnixMs, at: UnixMs
    ) -> list[SessionKey]:
        """Purges those of `keys` that are due, in transactions of a few thousand rows, so that appends come in between;
        returns those purged."""
        purged = []
        for key in keys:
            step = purge_step(key, due, self._database.sealer, at)
            while (done := await self._submit(JobWrite(key, step))) is None:
                pass
            if done:
                purged.append(key)
        while await self._submit(JobWrite(STORE_KEY, purge_commands_step(commands_before))):
            pass
        return purged


class SqliteJournal(SqliteCalls):
    """The Journal port on an SQLite file."""

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        self.database = database
