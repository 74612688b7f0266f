"""Erases everything of one end user, step by step, on whatever replicas there are.

    delete    each session, by its owner; one without an owner is activated for it
    release   its KV on every tier of this replica, and the openings and the cached answers of its tenant, which may
              hold text of the users they were made for; the erasure remembers which replicas have
    when every live replica has: destroy the keys, purge the logs, take the name out of usage and keys, and say so

Each replica does its part at every sweep until the erasure is done. All steps can be repeated, and what remains to be
done is in the journal: sessions until they are purged, and the erasure until its end. So a crash at any place costs one
sweep. Keys are destroyed before the rows that name their sessions go, or a crash in between would leave keys behind
that nothing refers to. A session that cannot be deleted delays the end of its own erasure only, and no other session's
deletion.

A replica that died is not waited for: what it had on its disk is under keys that are destroyed. Does not know who may
request an erasure.
"""

from __future__ import annotations

import structlog

from actors.hosting.error_isolation import isolate_errors
from actors.hosting.ownership import Moved
from actors.hosting.runtime import Runtime
from actors.hosting.services import Stores
from sessions.clock import Clock
from sessions.governance.end_user_data import Erasure, heads_of
from sessions.model.audit import Audited
from sessions.model.commands import SessionDelete
from sessions.model.errors import Gone
from sessions.model.journal_types import Due, Head
from sessions.model.request import request_of
from sessions.model.types import (
    INTEGER_MAX,
    NEVER,
    OPENINGS,
    SCOPES,
    CommandId,
    Principal,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
)
from sessions.ports import Engine

log = structlog.get_logger(__name__)

Name = tuple[str, str, UnixMs]  # names an erasure: (tenant, user, requested at)

AT_ONCE = 100
PURGED_AT_ONCE = 200


class Eraser:
    """Carries out one replica's part in the erasures of end users."""

    def __init__(self, runtime: Runtime, stores: Stores, engine: Engine, clock: Clock) -> None:
        self._runtime = runtime
        self._stores = stores
        self._end_users = stores.store.end_users
        self._engine = engine
        self._clock = clock
        self._kv_released: dict[Name, set[SessionKey]] = {}  # sessions whose KV the engine has released, by erasure

    async def sweep(self) -> int:
        """Continues every erasure as far as it goes; returns how many were completed here. Raises Unavailable."""
        done = 0
        pending = await self._end_users.pending(limit=AT_ONCE)
        known = {_name(erasure) for erasure in pending}
        self._kv_released = {name: keys for name, keys in self._kv_released.items() if name in known}
        for erasure in pending:
            done += await self._advance(erasure)
        return done

    async def _advance(self, erasure: Erasure) -> bool:
        heads = [head async for head in heads_of(self._end_users, erasure.tenant, erasure.user)]
        heads = [head for head in heads if head.created_at <= erasure.asked_at or head.deleted_at is not None]
        if not all([await self._delete(head, erasure) for head in heads]):
            return False
        keys = [*(head.key for head in heads), SessionKey(erasure.tenant, OPENINGS)]
        released = self._kv_released.setdefault(_name(erasure), set())
        if not all([await self._release_kv(key, released) for key in keys]):
            return False
        me = str(self._runtime.identity.replica)
        if me not in erasure.released:
            if not await self._forget_results(erasure.tenant):
                return False
            erasure = await self._end_users.released(erasure, me)
        there = {str(member.replica) for member in (await self._stores.directory.view()).members}
        if not there <= {*erasure.released, me}:
            return False
        if not all([await self._destroy_key(key) for key in keys]):
            return False
        now, purged, journal = self._clock.now_ms(), 0, self._stores.store.journal
        due = Due(deleted_before=UnixMs(INTEGER_MAX), tenant=erasure.tenant, user=erasure.user)
        while left := await journal.purgeable(due, limit=PURGED_AT_ONCE):
            late = [key for key in left if key not in keys]  # deleted meanwhile
            if not all([await self._release_kv(key, released) and await self._destroy_key(key) for key in late]):
                return False
            purged += len(await journal.purge(left, due, commands_before=NEVER, at=now))
        detail = {"sessions": purged, "asked_at": erasure.asked_at}
        row = Audited(action="user.erased", at=now, user=erasure.user, detail=detail)
        await self._end_users.finish(erasure, row)
        log.info("user_erased", tenant=erasure.tenant, sessions=purged)
        return True

    async def _release_kv(self, key: SessionKey, released: set[SessionKey]) -> bool:
        with isolate_errors("kv_release_failed", key):
            if key not in released:  # while others are waited for, this comes by at every sweep
                await self._engine.release(key)
                released.add(key)
            return True
        return False

    async def _forget_results(self, tenant: TenantId) -> bool:
        """Forgets all cached answers of a tenant, because it is not known which user each came from. Returns whether
        that succeeded."""
        with isolate_errors("results_drop_failed", SessionKey(tenant, SessionId(""))):
            await self._runtime.forget_results(tenant)
            return True
        return False

    async def _destroy_key(self, key: SessionKey) -> bool:
        with isolate_errors("key_destruction_failed", key):
            if self._stores.keys is not None:
                await self._stores.keys.destroy(key)
            return True
        return False

    async def _delete(self, head: Head, erasure: Erasure) -> bool:
        """Deletes a session if it is ours or has no owner; returns whether it is deleted. If not, the next sweep, here
        or at its owner, tries again."""
        if head.deleted_at is not None or head.top == 0:
            return True
        by = Principal(tenant=erasure.tenant, key_id=erasure.asked_by, role="service", scopes=SCOPES)
        command = SessionDelete(id=CommandId(f"erasure-{erasure.asked_at}"), session=head.key.session)
        with isolate_errors("deletion_failed", head.key):
            try:
                await self._runtime.execute(request_of(by, command))
            except Gone:
                pass
            except Moved:
                return False  # its owner sweeps too
            return True
        return False


def _name(erasure: Erasure) -> Name:
    return erasure.tenant, erasure.user, erasure.asked_at
