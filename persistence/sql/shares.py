"""Shares in SQLite and PostgreSQL. The port is `sessions.model.shares.ShareStore`. Shares are deleted with their
session when it is purged.

A change locks the table against other changes until it commits, so that two changes cannot exceed the bound together.
"""

from __future__ import annotations

from typing import Any, Final

from persistence.sql.script import Lock, Query, Script, SqlDatabase, chained
from persistence.validation import check_key, check_text
from sessions.model.audit import Audited
from sessions.model.authorization import not_found
from sessions.model.shares import SHARES_MAX, ShareId, ShareLink, too_many_shares
from sessions.model.types import ItemId, SessionId, SessionKey, TenantId, UnixMs

_ALL: Final = "tenant, session, id, token_hash, item, log_offset, created_at, created_by"
_COUNT: Final = "SELECT count(*) FROM shares WHERE tenant = $1 AND session = $2"
_HEAD: Final = "SELECT count(*) FROM heads WHERE tenant = $1 AND session = $2 AND deleted_at IS NULL"
_ADD: Final = f"INSERT INTO shares ({_ALL}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
_OF_SESSION: Final = f"SELECT {_ALL} FROM shares WHERE tenant = $1 AND session = $2 ORDER BY created_at DESC, id DESC"
_FIND: Final = f"SELECT {_ALL} FROM shares WHERE token_hash = $1"
_REMOVE: Final = "DELETE FROM shares WHERE tenant = $1 AND session = $2 AND id = $3 RETURNING id"


class SqlShares:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def add(self, share: ShareLink, audit: Audited) -> None:
        check_key(share.key)
        check_text(share.created_by)
        await self._database.run(lambda: self._add(share, audit))

    async def of_session(self, key: SessionKey) -> list[ShareLink]:
        check_key(key)
        return [_share(row) for row in await self._database.rows(_OF_SESSION, key)]

    async def find(self, token_hash: bytes) -> ShareLink | None:
        for row in await self._database.rows(_FIND, (token_hash,)):
            return _share(row)
        return None

    async def remove(self, key: SessionKey, share_id: ShareId, audit: Audited) -> bool:
        check_key(key)
        check_text(share_id)
        return await self._database.run(lambda: self._remove(key, share_id, audit))

    def _add(self, share: ShareLink, audit: Audited) -> Script[None]:
        yield Lock("shares")
        ((heads,),) = yield Query(_HEAD, share.key)
        if not heads:
            raise not_found(share.key)
        ((count,),) = yield Query(_COUNT, share.key)
        if count >= SHARES_MAX:
            raise too_many_shares()
        about = (share.item_id, share.offset, share.created_at, share.created_by)
        yield Query(_ADD, (*share.key, share.id, share.token_hash, *about))
        yield from chained(self._database, share.key.tenant, audit)

    def _remove(self, key: SessionKey, share_id: ShareId, audit: Audited) -> Script[bool]:
        removed = yield Query(_REMOVE, (*key, share_id))
        if removed:
            yield from chained(self._database, key.tenant, audit)
        return bool(removed)


def _share(row: Any) -> ShareLink:
    tenant, session, share_id, token_hash, item, offset, created_at, created_by = tuple(row)
    return ShareLink(
        id=ShareId(share_id),
        key=SessionKey(TenantId(tenant), SessionId(session)),
        token_hash=bytes(token_hash),
        item_id=ItemId(item),
        offset=offset,
        created_at=UnixMs(created_at),
        created_by=created_by,
    )
