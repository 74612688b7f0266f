"""The port for the storage of files' bytes, and the driver that keeps them as rows of the journal's database. Those are
backed up with the database and need nothing beside it. The other driver is `folder_file_chunks`."""

from __future__ import annotations

from typing import Any, Final, Protocol

from persistence.sql.script import Query, Script, SqlDatabase, one_query
from sessions.model.knowledge.files import BlobId
from sessions.model.types import TenantId

DROP_ROWS: Final = 64  # rows deleted in one transaction: about 16 MiB

_LIVES: Final = "SELECT 1 FROM file_blobs WHERE tenant = $1 AND id = $2"
_PUT: Final = (
    "INSERT INTO file_chunks (tenant, blob, place, end_user, body) VALUES ($1, $2, $3, $4, $5)"
    " ON CONFLICT (tenant, blob, place) DO NOTHING"
)
_GET: Final = "SELECT body FROM file_chunks WHERE tenant = $1 AND blob = $2 AND place = $3"
_LAST: Final = "SELECT max(place) FROM file_chunks WHERE tenant = $1 AND blob = $2"
_DROP: Final = "DELETE FROM file_chunks WHERE tenant = $1 AND blob = $2 AND place >= $3"


class FileChunks(Protocol):
    """A store of encrypted chunks by blob and index. Its methods raise Unavailable; `put` and `drop` also
    OutcomeUnknown. A chunk that is put again must have the same bytes."""

    async def put(self, tenant: TenantId, user: str, blob: BlobId, index: int, sealed: bytes) -> None: ...

    async def get(self, tenant: TenantId, blob: BlobId, index: int) -> bytes | None: ...

    async def drop(self, tenant: TenantId, blob: BlobId) -> None:
        """Deletes all chunks of a blob, the last one first, so that a repeated call finishes an interrupted one."""
        ...


class SqlFileChunks:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def put(self, tenant: TenantId, user: str, blob: BlobId, index: int, sealed: bytes) -> None:
        def script() -> Script[None]:
            if (yield Query(_LIVES, (tenant, blob))):  # else it was collected: its upload took too long
                yield Query(_PUT, (tenant, blob, index, user, sealed))

        await self._database.run(script)

    async def get(self, tenant: TenantId, blob: BlobId, index: int) -> bytes | None:
        for (body,) in await self._database.rows(_GET, (tenant, blob, index)):
            return bytes(body)
        return None

    async def drop(self, tenant: TenantId, blob: BlobId) -> None:
        while True:
            ((last,),) = await self._database.rows(_LAST, (tenant, blob))
            if last is None:
                return
            values: tuple[Any, ...] = (tenant, blob, max(0, last - DROP_ROWS + 1))
            await self._database.run(lambda values=values: one_query(_DROP, values))  # type: ignore[misc]
