"""Records of tools in SQLite and PostgreSQL. The port is `sessions.tool_records.ToolRecordStore`.

A change locks the table against other changes until it commits, so that two changes cannot exceed the bound together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from persistence.sql.script import Lock, Query, Script, SqlDatabase, chained
from persistence.validation import check_text
from sessions.model.audit import Audited
from sessions.model.types import TenantId, UnixMs
from sessions.tool_records import RECORDS_MAX, ToolRecord, ToolRecordKind, too_many_records

_ALL: Final = "tenant, kind, name, body, put_at, put_by"
_KIND: Final = f"SELECT {_ALL} FROM tool_records WHERE kind = $1 ORDER BY tenant, name"
_OF_TENANT: Final = f"SELECT {_ALL} FROM tool_records WHERE kind = $1 AND tenant = $2 ORDER BY name"
_OTHERS: Final = "SELECT count(*) FROM tool_records WHERE tenant = $1 AND kind = $2 AND name <> $3"
_PUT: Final = (
    f"INSERT INTO tool_records ({_ALL}) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, kind, name)"
    " DO UPDATE SET body = excluded.body, put_at = excluded.put_at, put_by = excluded.put_by"
)
_REMOVE: Final = "DELETE FROM tool_records WHERE tenant = $1 AND kind = $2 AND name = $3 RETURNING name"


class SqlToolRecords:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def records(self, kind: ToolRecordKind, tenant: TenantId | None = None) -> Sequence[ToolRecord]:
        if tenant is None:
            return [_record(row) for row in await self._database.rows(_KIND, (kind,))]
        return [_record(row) for row in await self._database.rows(_OF_TENANT, (kind, tenant))]

    async def put(self, record: ToolRecord, audit: Audited | None = None) -> None:
        check_text(record.tenant, record.name, record.body, record.by)
        await self._database.run(lambda: self._put(record, audit))

    async def remove(self, record: ToolRecord, audit: Audited | None = None) -> bool:
        check_text(record.tenant, record.name)
        return await self._database.run(lambda: self._remove(record, audit))

    def _put(self, record: ToolRecord, audit: Audited | None) -> Script[None]:
        yield Lock("tool_records")
        ((others,),) = yield Query(_OTHERS, (record.tenant, record.kind, record.name))
        if others >= RECORDS_MAX:
            raise too_many_records(record.kind)
        yield Query(_PUT, (record.tenant, record.kind, record.name, record.body, record.at, record.by))
        yield from chained(self._database, record.tenant, audit)

    def _remove(self, record: ToolRecord, audit: Audited | None) -> Script[bool]:
        removed = yield Query(_REMOVE, (record.tenant, record.kind, record.name))
        if removed:
            yield from chained(self._database, record.tenant, audit)
        return bool(removed)


def _record(row: Any) -> ToolRecord:
    tenant, kind, name, body, at, by = tuple(row)
    return ToolRecord(tenant=TenantId(tenant), kind=kind, name=name, body=body, at=UnixMs(at), by=by)
