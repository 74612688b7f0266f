"""API keys in memory. The port is `sessions.model.api_keys.ApiKeyStore`."""

from __future__ import annotations

import msgspec

from persistence.memory.database import MemoryDatabase
from sessions.model.api_keys import KEPT_MS, KEYS_MAX, ApiKey, key_id_conflict, too_many_keys
from sessions.model.audit import Audited
from sessions.model.types import TenantId, UnixMs


class MemoryApiKeys:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def add(self, key: ApiKey, *, audit: Audited | None = None) -> ApiKey:
        keys = self._database.api_keys
        if key.id in keys:
            raise key_id_conflict()
        newest = self._newest()
        for old in list(keys.values()):
            ended = old.expires_at if old.revoked_at is None else old.revoked_at
            if ended is not None and ended < key.created_at - KEPT_MS and old.version < newest:
                del keys[old.id]
        if len(keys) >= KEYS_MAX:
            raise too_many_keys()
        keys[key.id] = stored = msgspec.structs.replace(key, version=newest + 1)
        self._chain(key.tenant, audit)
        return stored

    async def revoke(self, key_id: str, *, at: UnixMs, audit: Audited | None = None) -> ApiKey | None:
        key = self._database.api_keys.get(key_id)
        if key is not None and key.revoked_at is None:
            key = msgspec.structs.replace(key, revoked_at=at, version=self._newest() + 1)
            self._database.api_keys[key_id] = key
            self._chain(key.tenant, audit)
        return key

    async def changes(self, *, after: int, limit: int) -> list[ApiKey]:
        behind = [key for key in self._database.api_keys.values() if key.version > after]
        return sorted(behind, key=lambda key: key.version)[:limit]

    def _newest(self) -> int:
        return max((key.version for key in self._database.api_keys.values()), default=0)

    def _chain(self, tenant: TenantId, audit: Audited | None) -> None:
        if audit is not None:
            self._database.chain([self._database.sealer.entry(tenant, audit)])
