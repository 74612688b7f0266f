"""Records of tools in memory. The port is `sessions.tool_records.ToolRecordStore`."""

from __future__ import annotations

from collections.abc import Sequence

from persistence.memory.database import MemoryDatabase
from sessions.model.audit import Audited
from sessions.model.types import TenantId
from sessions.tool_records import RECORDS_MAX, ToolRecord, ToolRecordKind, too_many_records


class MemoryToolRecords:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def records(self, kind: ToolRecordKind, tenant: TenantId | None = None) -> Sequence[ToolRecord]:
        kept = self._database.tool_records.values()
        found = [record for record in kept if record.kind == kind and tenant in (None, record.tenant)]
        return sorted(found, key=lambda each: (each.tenant, each.name))

    async def put(self, record: ToolRecord, audit: Audited | None = None) -> None:
        place = record.tenant, record.kind, record.name
        kept = self._database.tool_records
        if place not in kept and len(await self.records(record.kind, record.tenant)) >= RECORDS_MAX:
            raise too_many_records(record.kind)
        kept[place] = record
        self._chain(record, audit)

    async def remove(self, record: ToolRecord, audit: Audited | None = None) -> bool:
        there = self._database.tool_records.pop((record.tenant, record.kind, record.name), None) is not None
        if there:
            self._chain(record, audit)
        return there

    def _chain(self, record: ToolRecord, audit: Audited | None) -> None:
        if audit is not None:
            self._database.chain([self._database.sealer.entry(record.tenant, audit)])
