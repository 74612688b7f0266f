"""The keys of tenants, which encrypt a tenant's bodies in the journal: several over time, of which one encrypts new
bodies.

A key is a row of the key store, wrapped. `seq` orders a tenant's keys, and the newest one encrypts new bodies. Old ones
stay, because rows and backups of the journal name them. Destroying a tenant's keys leaves their rows without a secret:
whatever was encrypted under them cannot be read any more, wherever a copy of it may be.

Several processes share the table. A process that meets an unknown key id reads the tenant's rows again. `refresh` does
so for every tenant in memory, so that a key made by another process is used here within `REFRESH_S`, and one destroyed
by another is forgotten.

Once all rows of a tenant are encrypted, its keys are wrapped again with a note that plain rows are refused
(`refuses_plain`), so that nobody who can write into the database can add text in the clear. Only who has the wrapping
key can undo that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from persistence.at_rest.wrapping import KeyWrapper, WrappedSecret
from persistence.codec import KeyDestroyed, unreadable
from persistence.key_database import KeyDatabase
from persistence.master_key import KEY_BYTES
from sessions.model.errors import SessileError
from sessions.model.types import TenantId, UnixMs

log = structlog.get_logger(__name__)

REFRESH_S: Final = 10.0
ID_BYTES: Final = 4  # short, since it stands beside every body

_COLUMNS: Final = "seq, id, wrapper, wrapped, created_at, destroyed_at"
_OF_TENANT: Final = f"SELECT {_COLUMNS} FROM {{tenant_keys}} WHERE tenant = $1 ORDER BY seq"
_INSERT: Final = (
    "INSERT INTO {tenant_keys} (tenant, seq, id, wrapper, wrapped, created_at) VALUES ($1, $2, $3, $4, $5, $6)"
    " ON CONFLICT DO NOTHING RETURNING seq"
)
_TENANTS: Final = "SELECT DISTINCT tenant FROM {tenant_keys} WHERE tenant > $1 ORDER BY tenant LIMIT $2"
_ONE_OF_EACH: Final = (
    "SELECT tenant, id, wrapper, wrapped FROM {tenant_keys} AS k WHERE destroyed_at IS NULL AND NOT EXISTS ("
    "SELECT 1 FROM {tenant_keys} AS o WHERE o.destroyed_at IS NULL AND o.wrapper = k.wrapper"
    " AND (o.tenant, o.seq) < (k.tenant, k.seq))"
)
_ANY: Final = "SELECT 1 FROM {tenant_keys} LIMIT 1"
_HAS: Final = "SELECT 1 FROM {tenant_keys} WHERE tenant = $1 AND id = $2"
_REWRAPPED: Final = (
    "UPDATE {tenant_keys} SET wrapper = $3, wrapped = $4 WHERE tenant = $1 AND seq = $2 AND destroyed_at IS NULL"
)
_DESTROY: Final = (
    "UPDATE {tenant_keys} SET wrapped = $2, destroyed_at = $3 WHERE tenant = $1 AND destroyed_at IS NULL RETURNING seq"
)
PAGE_ROWS: Final = 500


class TenantKey(msgspec.Struct, frozen=True):
    seq: int
    id: str
    secret: bytes
    created_at: UnixMs
    refuses_plain: bool = False

    def __repr__(self) -> str:
        return f"TenantKey({self.id!r})"


class KeyRing(msgspec.Struct, frozen=True):
    """A tenant's keys as they were read: the usable ones by id, and the one that encrypts new bodies (`writes`)."""

    by_id: dict[str, TenantKey]
    writes: TenantKey | None
    locked: int = 0
    """How many keys could not be unwrapped."""

    @property
    def refuses_plain(self) -> bool:
        """Whether plain rows of the tenant are refused, because at least one of its keys says so: then this server has
        written none."""
        return any(key.refuses_plain for key in self.by_id.values())


@dataclass(slots=True)
class _Reads:
    """Counts a tenant's reads of the key table, so that callers who wait for the same read share one."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    begun: int = 0
    last: int = 0
    """The number of the read whose result is in memory."""


class TenantKeys:
    """The keys of all tenants, cached in memory; usable while the key database is open. Its coroutines raise
    Unavailable."""

    def __init__(self, database: KeyDatabase, wrapper: KeyWrapper, *, now_ms: Callable[[], UnixMs]) -> None:
        self._database = database
        self._wrapper = wrapper
        self._now_ms = now_ms
        self._rings: dict[TenantId, KeyRing] = {}
        self._wrapped: dict[TenantId, dict[str, bytes]] = {}  # the wrapped keys of `_rings`
        self._reads: dict[TenantId, _Reads] = {}
        self._changing = asyncio.Lock()  # a key that is made meanwhile is wrapped anew too
        self._listeners: list[Callable[[TenantId], None]] = []

    def ring(self, tenant: TenantId) -> KeyRing | None:
        """Returns the tenant's keys; None if they are not in memory."""
        return self._rings.get(tenant)

    def listen(self, changed: Callable[[TenantId], None]) -> None:
        """Registers a function to call with a tenant whenever its keys in memory change."""
        self._listeners.append(changed)

    async def writing(self, tenant: TenantId) -> TenantKey:
        """Returns the key that encrypts new bodies, and makes one if there is none."""
        ring = self._rings.get(tenant)
        if ring is None or ring.writes is None:
            ring = await self._read(tenant)
        if ring.writes is not None:
            return ring.writes
        if ring.locked:
            raise unreadable("key of this tenant")
        async with self._changing:  # of many that find none, one makes it
            ring = await self._read(tenant)
            return ring.writes or await self._make(tenant)

    async def load(self, tenant: TenantId, key_id: str) -> None:
        """Reads a key into memory; "" means the key that encrypts new bodies. Raises KeyDestroyed, and Internal
        (`body_unreadable`) for a key that is unknown, or wrapped by another wrapping key."""
        if not key_id:
            await self.writing(tenant)
        elif key_id not in (await self._read(tenant)).by_id:
            if any(row[1] == key_id and row[5] is not None for row in await self._database.rows(_OF_TENANT, tenant)):
                raise KeyDestroyed
            raise unreadable("body, whose key is not this server's,")

    async def rotate(self, tenant: TenantId) -> TenantKey:
        """Makes a new key, which encrypts new bodies from now on, and returns it; or returns the one that another
        process has just made."""
        async with self._changing:
            return await self._make(tenant)

    async def _make(self, tenant: TenantId) -> TenantKey:
        refuses_plain = (await self._read(tenant)).refuses_plain
        last = await self._database.rows(_OF_TENANT, tenant)
        seq = last[-1][0] + 1 if last else 1
        key_id, secret, now = os.urandom(ID_BYTES).hex(), os.urandom(KEY_BYTES), self._now_ms()
        wrapped = await self._wrapper.wrap(secret, _about(tenant, key_id, refuses_plain))
        made = await self._database.rows(_INSERT, tenant, seq, key_id, wrapped.wrapper, wrapped.data, now)
        ring = await self._read(tenant)
        if ring.writes is None:
            raise unreadable("key of a tenant, just made,")
        if made:
            log.info("tenant_key_made", tenant=tenant, key=key_id, seq=seq)
        return ring.writes

    async def rewrap(self) -> tuple[int, int]:
        """Wraps every key under the newest wrapping key. Returns how many were wrapped, and how many could not be
        unwrapped. It may be interrupted and run again: each key is readable at every moment."""
        async with self._changing:
            return await self._rewrap()

    async def _rewrap(self) -> tuple[int, int]:
        current = await self._wrapper.current()
        done = failed = 0
        for tenant in await self.tenants():
            for seq, key_id, wrapper, wrapped, _, destroyed_at in await self._database.rows(_OF_TENANT, tenant):
                if wrapper == current or destroyed_at is not None:
                    continue
                last = WrappedSecret(wrapper, bytes(wrapped))
                again = await self._wrapper.rewrap(last, _about(tenant, key_id, True))
                again = again or await self._wrapper.rewrap(last, _about(tenant, key_id, False))
                if again is None:
                    failed += 1
                    log.error("tenant_key_unwrap_failed", tenant=tenant, key=key_id, wrapper=wrapper)
                else:
                    await self._database.rows(_REWRAPPED, tenant, seq, *again)
                    done += 1
        return done, failed

    async def refuse_plain(self, tenant: TenantId) -> None:
        """Has plain rows of the tenant refused from now on. The caller has made sure that all its rows are
        encrypted."""
        if await self._wrap_for(tenant, True):
            log.info("plain_rows_refused", tenant=tenant)

    async def accept_plain(self) -> None:
        """Has plain rows of every tenant accepted again, for an installation that is to write plain rows."""
        for tenant in await self.tenants():
            if await self._wrap_for(tenant, False):
                log.warning("plain_rows_accepted", tenant=tenant)

    async def _wrap_for(self, tenant: TenantId, refuses_plain: bool) -> int:
        """Wraps again those of the tenant's keys that have another value of `refuses_plain`; returns how many."""
        async with self._changing:
            keys = [key for key in (await self._read(tenant)).by_id.values() if key.refuses_plain != refuses_plain]
            for key in keys:
                wrapped = await self._wrapper.wrap(key.secret, _about(tenant, key.id, refuses_plain))
                await self._database.rows(_REWRAPPED, tenant, key.seq, *wrapped)
        await self._read(tenant)
        return len(keys)

    async def destroy(self, tenant: TenantId) -> int:
        """Destroys every key of a tenant; returns how many. What was encrypted with them is lost, in every copy."""
        rows = await self._database.rows(_DESTROY, tenant, b"", self._now_ms())
        await self._database.wipe("tenant_keys")
        await self._read(tenant)
        log.warning("tenant_keys_destroyed", tenant=tenant, keys=len(rows))
        return len(rows)

    async def tenants(self) -> list[TenantId]:
        """Returns the tenants that have, or had, a key."""
        found: list[TenantId] = []
        while rows := await self._database.rows(_TENANTS, found[-1] if found else "", PAGE_ROWS):
            found += [TenantId(tenant) for (tenant,) in rows]
        return found

    async def counts(self, tenant: TenantId) -> tuple[int, int]:
        """Returns how many usable and how many destroyed keys a tenant has."""
        rows = await self._database.rows(_OF_TENANT, tenant)
        destroyed = sum(row[5] is not None for row in rows)
        return len(rows) - destroyed, destroyed

    async def readable(self) -> bool:
        """Returns whether this process can unwrap keys of every wrapper in the table; it tries one key of each."""
        for tenant, key_id, wrapper, wrapped in await self._database.rows(_ONE_OF_EACH):
            if await self._unwrap(tenant, key_id, WrappedSecret(wrapper, bytes(wrapped))) is None:
                return False
        return True

    async def refresh(self) -> None:
        """Reads again the keys of every tenant in memory."""
        for tenant in list(self._rings):
            await self._read(tenant)

    async def run(self) -> None:
        """Reads the keys in memory again every `REFRESH_S`, until it is cancelled."""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.refresh()
            except SessileError as error:  # what is in memory stays good
                log.warning("tenant_keys_refresh_failed", error=str(error))

    async def _read(self, tenant: TenantId) -> KeyRing:
        """Returns a tenant's keys, as the table has them at the time of the call or later. Callers that wait while one
        reads share the next read."""
        reads = self._reads.setdefault(tenant, _Reads())
        seen = reads.begun
        async with reads.lock:
            if reads.last > seen:
                return self._rings[tenant]
            reads.begun += 1
            number = reads.begun
            ring = await self._read_again(tenant)
            reads.last = number
            return ring

    async def _read_again(self, tenant: TenantId) -> KeyRing:
        last, last_wrapped = self._rings.get(tenant), self._wrapped.get(tenant, {})
        wrapped_by_id: dict[str, bytes] = {}
        by_id: dict[str, TenantKey] = {}
        writes: TenantKey | None = None
        locked = 0
        for seq, key_id, wrapper, wrapped, created_at, destroyed_at in await self._database.rows(_OF_TENANT, tenant):
            if destroyed_at is not None:
                continue
            key = last.by_id.get(key_id) if last is not None else None
            if key is None or last_wrapped[key_id] != wrapped:
                unwrapped = await self._unwrap(tenant, key_id, WrappedSecret(wrapper, bytes(wrapped)))
                if unwrapped is None:
                    log.error("tenant_key_unwrap_failed", tenant=tenant, key=key_id, wrapper=wrapper)
                    locked += 1
                    continue
                key = TenantKey(seq, key_id, unwrapped[0], created_at, unwrapped[1])
            by_id[key_id] = writes = key
            wrapped_by_id[key_id] = bytes(wrapped)
        self._wrapped[tenant] = wrapped_by_id
        ring = KeyRing(by_id, writes, locked)
        self._rings[tenant] = ring
        if ring != last:
            for changed in self._listeners:
                changed(tenant)
        return ring

    async def _unwrap(self, tenant: TenantId, key_id: str, wrapped: WrappedSecret) -> tuple[bytes, bool] | None:
        """Returns a key's secret, and whether plain rows are refused with it; None if the key cannot be unwrapped."""
        for refuses_plain in (True, False):
            secret = await self._wrapper.unwrap(wrapped, _about(tenant, key_id, refuses_plain))
            if secret is not None:
                return secret, refuses_plain
        return None


async def any_tenant_key(database: KeyDatabase) -> bool:
    """Returns whether a tenant ever had a key, so that bodies may be encrypted."""
    return bool(await database.rows(_ANY))


async def has_tenant_key(database: KeyDatabase, tenant: str, key_id: str) -> bool:
    """Returns whether the database has this key of a tenant, or had it until it was destroyed."""
    return bool(await database.rows(_HAS, tenant, key_id))


def _about(tenant: TenantId, key_id: str, refuses_plain: bool) -> bytes:
    return msgspec.msgpack.encode(("sealed journal" if refuses_plain else "journal", tenant, key_id))
