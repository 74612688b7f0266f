"""API keys in SQLite and PostgreSQL. The port is `sessions.model.api_keys.ApiKeyStore`.

Versions count changes to the one table. A change locks the table against other changes (not against reads) until it
commits, so that versions become visible in their order. Keys change seldom.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from persistence.sql.script import Lock, Query, Script, SqlDatabase, chained
from sessions.model.api_keys import KEPT_MS, KEYS_MAX, ApiKey, key_id_conflict, too_many_keys
from sessions.model.audit import Audited
from sessions.model.types import UnixMs

_ALL: Final = (
    "version, id, digest, tenant, role, end_user, scopes, name, created_at, created_by, expires_at, revoked_at"
)
COLUMNS: Final = _ALL.split(", ")
_NEXT: Final = "(SELECT coalesce(max(version), 0) + 1 FROM api_keys)"
# What has ended long ago, but never the newest row: versions go on from it.
_FORGET: Final = (
    "DELETE FROM api_keys WHERE coalesce(revoked_at, expires_at) < $1 AND version < (SELECT max(version) FROM api_keys)"
)
_COUNT: Final = "SELECT count(*), count(*) FILTER (WHERE id = $1) FROM api_keys"
_INSERT: Final = (
    f"INSERT INTO api_keys ({_ALL}) VALUES ({_NEXT}, {', '.join(f'${n}' for n in range(1, len(COLUMNS)))})"
    f" RETURNING {_ALL}"
)
_REVOKE: Final = (
    f"UPDATE api_keys SET version = {_NEXT}, revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL RETURNING {_ALL}"
)
_FIND: Final = f"SELECT {_ALL} FROM api_keys WHERE id = $1"
_CHANGES: Final = f"SELECT {_ALL} FROM api_keys WHERE version > $1 ORDER BY version LIMIT $2"


class SqlApiKeys:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def add(self, key: ApiKey, *, audit: Audited | None = None) -> ApiKey:
        return await self._database.run(lambda: self._add(key, audit))

    async def revoke(self, key_id: str, *, at: UnixMs, audit: Audited | None = None) -> ApiKey | None:
        return await self._database.run(lambda: self._revoke(key_id, at, audit))

    async def changes(self, *, after: int, limit: int) -> list[ApiKey]:
        return [_key(row) for row in await self._database.rows(_CHANGES, (after, limit))]

    def _add(self, key: ApiKey, audit: Audited | None) -> Script[ApiKey]:
        yield Lock("api_keys")
        yield Query(_FORGET, (key.created_at - KEPT_MS,))
        ((count, same),) = yield Query(_COUNT, (key.id,))
        if same:
            raise key_id_conflict()
        if count >= KEYS_MAX:
            raise too_many_keys()
        (row,) = yield Query(_INSERT, _row(key))
        yield from chained(self._database, key.tenant, audit)
        return _key(row)

    def _revoke(self, key_id: str, at: UnixMs, audit: Audited | None) -> Script[ApiKey | None]:
        yield Lock("api_keys")
        for row in (yield Query(_REVOKE, (at, key_id))):
            key = _key(row)
            yield from chained(self._database, key.tenant, audit)
            return key
        for row in (yield Query(_FIND, (key_id,))):
            return _key(row)
        return None


def _row(key: ApiKey) -> tuple[Any, ...]:
    """Returns the values of all columns except the version."""
    scopes = " ".join(key.scopes)
    ends = (key.expires_at, key.revoked_at)
    return (key.id, key.digest, key.tenant, key.role, key.user, scopes, key.name, key.created_at, key.created_by, *ends)


def _key(row: Any) -> ApiKey:
    values = dict(zip(COLUMNS, tuple(row), strict=True))
    values["user"] = values.pop("end_user")
    values["scopes"] = values["scopes"].split()
    values["digest"] = bytes(values["digest"])
    return msgspec.convert(values, ApiKey)
