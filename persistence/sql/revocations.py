"""Revocations in SQLite and PostgreSQL. The port is `sessions.model.revocations.RevocationStore`.

Versions are made as in `api_keys`: a change locks the table against other changes until it commits.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from persistence.sql.script import Lock, Query, Script, SqlDatabase, chained
from sessions.model.audit import Audited
from sessions.model.revocations import REVOCATIONS_MAX, Revocation, merged, too_many_revocations
from sessions.model.types import TenantId

_ALL: Final = "version, issuer, kind, name, revoked_at, expires_at, revoked_by"
_NEXT: Final = "(SELECT coalesce(max(version), 0) + 1 FROM revocations)"
# What has expired, but never the newest row: versions go on from it.
_FORGET: Final = (
    "DELETE FROM revocations WHERE expires_at < $1 AND version < (SELECT max(version) FROM revocations)"
    " AND NOT (issuer = $2 AND kind = $3 AND name = $4)"
)
_FIND: Final = f"SELECT {_ALL} FROM revocations WHERE issuer = $1 AND kind = $2 AND name = $3"
_COUNT: Final = "SELECT count(*) FROM revocations"
_PUT: Final = (
    f"INSERT INTO revocations ({_ALL}) VALUES ({_NEXT}, $1, $2, $3, $4, $5, $6)"
    " ON CONFLICT (issuer, kind, name) DO UPDATE SET version = excluded.version, revoked_at = excluded.revoked_at,"
    f" expires_at = excluded.expires_at, revoked_by = excluded.revoked_by RETURNING {_ALL}"
)
_CHANGES: Final = f"SELECT {_ALL} FROM revocations WHERE version > $1 ORDER BY version LIMIT $2"


class SqlRevocations:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def add(
        self, revocation: Revocation, *, audit: Audited | None = None, tenant: TenantId | None = None
    ) -> Revocation:
        return await self._database.run(lambda: self._add(revocation, audit, tenant))

    async def changes(self, *, after: int, limit: int) -> list[Revocation]:
        return [_revocation(row) for row in await self._database.rows(_CHANGES, (after, limit))]

    def _add(self, revocation: Revocation, audit: Audited | None, tenant: TenantId | None) -> Script[Revocation]:
        yield Lock("revocations")
        yield Query(_FORGET, (revocation.at, *revocation.place))
        known: Revocation | None = None
        for row in (yield Query(_FIND, revocation.place)):
            known = _revocation(row)
        ((count,),) = yield Query(_COUNT)
        if known is None and count >= REVOCATIONS_MAX:
            raise too_many_revocations()
        new = merged(known, revocation)
        (row,) = yield Query(_PUT, (*new.place, new.at, new.expires_at, new.by))
        if tenant is not None:
            yield from chained(self._database, tenant, audit)
        return _revocation(row)


def _revocation(row: Any) -> Revocation:
    version, issuer, kind, name, at, expires_at, by = tuple(row)
    values = {"version": version, "issuer": issuer, "kind": kind, "name": name, "at": at, "by": by}
    return msgspec.convert({**values, "expires_at": expires_at}, Revocation)
