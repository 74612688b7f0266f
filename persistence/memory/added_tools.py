"""Added tools in memory. The port is `sessions.added_tools.AddedToolStore`."""

from __future__ import annotations

import msgspec

from persistence.memory.database import MemoryDatabase
from sessions.added_tools import AddedTools, encode_tools, tools_conflict
from sessions.model.audit import Audited
from sessions.model.types import TenantId


class MemoryAddedTools:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def tools_of(self, tenant: TenantId) -> AddedTools:
        return self._database.added_tools.get(tenant, AddedTools(tenant=tenant))

    async def replace(self, tools: AddedTools, audit: Audited | None = None) -> AddedTools:
        encode_tools(tools)
        kept = self._database.added_tools
        if (await self.tools_of(tools.tenant)).version != tools.version:
            raise tools_conflict()
        newest = max((each.version for each in kept.values()), default=0)
        kept[tools.tenant] = stored = msgspec.structs.replace(tools, version=newest + 1)
        if audit is not None:
            self._database.chain([self._database.sealer.entry(tools.tenant, audit)])
        return stored

    async def forget(self, tenant: TenantId) -> None:
        if tenant in self._database.added_tools:
            await self.replace(msgspec.structs.replace(await self.tools_of(tenant), tools=()))

    async def changes(self, *, after: int, limit: int) -> list[AddedTools]:
        behind = [each for each in self._database.added_tools.values() if each.version > after]
        return sorted(behind, key=lambda each: each.version)[:limit]
