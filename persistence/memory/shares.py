"""Shares in memory. The port is `sessions.model.shares.ShareStore`."""

from __future__ import annotations

from persistence.memory.database import MemoryDatabase
from sessions.model.audit import Audited
from sessions.model.authorization import not_found
from sessions.model.shares import SHARES_MAX, ShareId, ShareLink, too_many_shares
from sessions.model.types import SessionKey


class MemoryShares:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def add(self, share: ShareLink, audit: Audited) -> None:
        head = self._database.head(share.key)
        if head is None or head.deleted_at is not None:
            raise not_found(share.key)
        if len(await self.of_session(share.key)) >= SHARES_MAX:
            raise too_many_shares()
        self._database.shares[share.token_hash] = share
        self._chain(share.key, audit)

    async def of_session(self, key: SessionKey) -> list[ShareLink]:
        shares = [share for share in self._database.shares.values() if share.key == key]
        return sorted(shares, key=lambda share: (share.created_at, share.id), reverse=True)

    async def find(self, token_hash: bytes) -> ShareLink | None:
        return self._database.shares.get(token_hash)

    async def remove(self, key: SessionKey, share_id: ShareId, audit: Audited) -> bool:
        for share in await self.of_session(key):
            if share.id == share_id:
                del self._database.shares[share.token_hash]
                self._chain(key, audit)
                return True
        return False

    def _chain(self, key: SessionKey, audit: Audited) -> None:
        self._database.chain([self._database.sealer.entry(key.tenant, audit)])
