"""Added tools in SQLite and PostgreSQL. The port is `sessions.added_tools.AddedToolStore`.

A tenant has one row, whose body is encrypted with its key; it is empty after `forget`. Versions count changes to the
table. A change locks the table against other changes until it commits, so that versions become visible in their order.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec
import structlog

from persistence.codec import ADDED_TOOLS_ROW, Codec, KeyDestroyed, unreadable, with_keys
from persistence.sql.script import Lock, Query, Script, SqlDatabase, chained
from persistence.validation import check_text
from sessions.added_tools import AddedTools, decode_tools, encode_tools, tools_conflict
from sessions.model.audit import Audited
from sessions.model.errors import Internal
from sessions.model.types import TOOLS, SessionKey, TenantId

log = structlog.get_logger(__name__)

_ALL: Final = "tenant, version, key_id, body"
_ONE: Final = f"SELECT {_ALL} FROM added_tools WHERE tenant = $1"
_CHANGES: Final = f"SELECT {_ALL} FROM added_tools WHERE version > $1 ORDER BY version LIMIT $2"
_VERSION: Final = "SELECT version FROM added_tools WHERE tenant = $1"
_PUT: Final = (
    f"INSERT INTO added_tools ({_ALL}) VALUES ($1, (SELECT coalesce(max(version), 0) + 1 FROM added_tools), $2, $3)"
    " ON CONFLICT (tenant) DO UPDATE SET version = excluded.version, key_id = excluded.key_id, body = excluded.body"
    " RETURNING version"
)
_FORGET: Final = (
    "UPDATE added_tools SET version = (SELECT max(version) + 1 FROM added_tools), key_id = '', body = $2"
    " WHERE tenant = $1"
)


class SqlAddedTools:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def tools_of(self, tenant: TenantId) -> AddedTools:
        check_text(tenant)
        for row in await self._database.rows(_ONE, (tenant,)):
            return await self._read(row)
        return AddedTools(tenant=tenant)

    async def replace(self, tools: AddedTools, audit: Audited | None = None) -> AddedTools:
        tenant, body, codec = tools.tenant, encode_tools(tools), self._database.codec
        check_text(tenant)
        sealed = await with_keys(codec, lambda: codec.encode(SessionKey(tenant, TOOLS), ADDED_TOOLS_ROW, body))

        def script() -> Script[int]:
            yield Lock("added_tools")
            rows = yield Query(_VERSION, (tenant,))
            if (rows[0][0] if rows else 0) != tools.version:
                raise tools_conflict()
            ((version,),) = yield Query(_PUT, (tenant, *sealed))
            yield from chained(self._database, tenant, audit)
            return int(version)

        return msgspec.structs.replace(tools, version=await self._database.run(script))

    async def changes(self, *, after: int, limit: int) -> list[AddedTools]:
        return [await self._read(row) for row in await self._database.rows(_CHANGES, (after, limit))]

    async def forget(self, tenant: TenantId) -> None:
        check_text(tenant)

        def script() -> Script[None]:
            yield Lock("added_tools")
            yield Query(_FORGET, (tenant, b""))

        await self._database.run(script)

    async def _read(self, row: Any) -> AddedTools:
        codec = self._database.codec
        tenant, version, _, body = tuple(row)
        nothing = AddedTools(tenant=tenant, version=version)
        if not body:
            return nothing
        try:
            return await with_keys(codec, partial(_opened, codec, row))
        except KeyDestroyed:  # erased on purpose
            return nothing
        except Internal as error:
            log.error("added_tools_unreadable", tenant=tenant, error=str(error))
            return msgspec.structs.replace(nothing, readable=False)


def _opened(codec: Codec, row: Any) -> AddedTools:
    tenant, version, key_id, body = tuple(row)
    plain = codec.decode(SessionKey(tenant, TOOLS), ADDED_TOOLS_ROW, key_id, bytes(body))
    try:
        return decode_tools(tenant, version, plain)
    except msgspec.MsgspecError as error:
        raise unreadable("set of tools") from error
