"""Ships what changes in an SQLite journal to an object store, beside the server, a segment every `interval_s`.

A round: read what changed (`change_capture`), destroy the keys of what was purged, store the pages of keys that are
another, store the segment, and remember that in the journal. In this order: a segment that is there can be opened, and
one that is not is made again. While the object store is away nothing is lost and nobody waits: the next segment has it
all; `backup_lag_seconds` says how far behind it is.

The chain is begun anew where the journal is not the one that wrote it (another incarnation), and goes on otherwise,
whatever ended the process. A whole copy (the base) is made at its beginning and every `base_s`, beside the changes,
so that a restore need not go back further; what is older than `keep_s`, and no restore needs, is deleted.

In an idle minute an empty segment says that there was nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, TypeVar, cast
from uuid import uuid4

import msgspec
import structlog

from persistence.at_rest.tenant_keys import TenantKeys
from persistence.backup.chain_reader import CHAIN_MAGIC, CHAINS_FOLDER, ChainReader
from persistence.backup.change_capture import (
    BASE_BEGIN,
    NONE_DELETED,
    BackupState,
    ChangeCapture,
    Taken,
    disable_capture,
    enable_capture,
    write_state,
)
from persistence.backup.scope_keys import TENANTS_OBJECT, KeyScope, ScopeKey, ScopeKeys, page_name
from persistence.backup.segments import (
    DamagedBackup,
    SealedPart,
    SegmentHeader,
    encode_object,
    encode_segment,
    first_hash,
    folder_of,
    hash_of,
    number_of,
    segment_name,
)
from persistence.key_database import KeyDatabase
from persistence.objects.object_store import ObjectStore
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.library import sqlite3
from persistence.sqlite.transaction import STORE_KEY
from persistence.write_batch import JobWrite
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, SessileError
from sessions.model.types import TenantId, UnixMs

log = structlog.get_logger(__name__)

T = TypeVar("T")

HEARTBEAT_MS: Final = 60_000
TENANTS_LOOKED_AT_MS: Final = 10_000
PRUNED_EVERY_MS: Final = 600_000
LAST_S: Final = 20.0
"""How long an end waits for the object store."""
RETRY_S: Final = (0.5, 1.0, 2.0, 5.0)


class ShippingTimes(msgspec.Struct, frozen=True, kw_only=True):
    interval_s: float = 0.5
    base_s: float = 86_400.0
    keep_s: float = 0.0
    """0: nothing is deleted."""


class BackupShipper:
    """`open`, then `run` until it is cancelled, then `close`; `ship` is one round. One per journal."""

    def __init__(
        self,
        database: SqliteDatabase,
        keys: tuple[KeyDatabase, TenantKeys],
        objects: ObjectStore,
        *,
        now_ms: Callable[[], UnixMs],
        times: ShippingTimes | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        metrics = metrics or Metrics()
        self._database = database
        self._objects = objects
        self._now_ms = now_ms
        self._times = times or ShippingTimes()
        self._tenants = keys[1]
        self._keys = ScopeKeys(*keys, now_ms=now_ms)
        self._capture = ChangeCapture(database.path)
        self._state: BackupState | None = None
        self._tenants_hash = b""
        self._tenants_at = 0
        self._tenants_changed = False
        self._tenants.listen(self._tenant_changed)
        self._shipped_at = 0
        self._pruned_at = 0
        self._behind_since: UnixMs | None = None
        self._segments = metrics.counter("backup_segments", "Segments that were stored.")
        self._bytes = metrics.counter("backup_bytes", "Bytes of segments that were stored.")
        self._failures = metrics.counter("backup_failures", "Rounds that failed; the next one has it all.")
        metrics.gauge(
            "backup_lag_seconds", "For how long the backup has not had all that is in the journal.", (), self._lag
        )

    @property
    def state(self) -> BackupState:
        """How far the chain is."""
        assert self._state is not None
        return self._state

    async def open(self) -> None:
        """Begins or goes on with the chain. Raises Unavailable, and BadInput for a bucket that keeps versions: there
        nothing could be destroyed."""
        found: BackupState | None = await self._write(enable_capture)
        if found is None or found.incarnation != self._database.incarnation:
            found = await self._begin()
        elif (last := await self._last_stored(found)) is not None:
            found = last
        self._state = found
        await asyncio.to_thread(self._capture.open)
        try:
            if found.number == 0:
                await self._store(f"{CHAINS_FOLDER}/{found.chain}", encode_object(CHAIN_MAGIC, found.chain))
            await self._store_tenants(self._now_ms(), first=True)
        except BaseException:
            self.close_files()
            raise
        log.info("backup_started", chain=found.chain, segment=found.number)

    async def run(self) -> None:
        """Ends only by cancellation."""
        failed = 0
        while True:
            pause = self._times.interval_s
            try:
                if await self.ship():
                    pause = 0.0
                else:
                    await self._prune_at_times()
                failed = 0
            except SessileError as error:
                self._failures.add()
                pause = max(pause, RETRY_S[min(failed, len(RETRY_S) - 1)])
                failed += 1
                log.warning("backup_round_failed", error=str(error), cause=repr(error.__cause__), again_s=pause)
            await asyncio.sleep(pause)

    async def finish(self) -> None:
        """Ships what is left, once nobody writes any more. Raises SessileError."""
        async with asyncio.timeout(LAST_S):
            while await self.ship():
                pass

    def close_files(self) -> None:
        self._capture.close()

    async def ship(self) -> bool:
        """One round. True: there is more to be shipped at once. Raises Unavailable; then the next round has it all."""
        await self._begin_base()
        begun = self._now_ms()
        taken = await asyncio.to_thread(self._capture.take)
        now = self._now_ms()
        await self._store_tenants(now)
        if taken is None:
            self._behind_since = None
            if now - self._shipped_at < HEARTBEAT_MS:
                return False
        elif self._behind_since is None:
            self._behind_since = begun
        parts: list[SealedPart] = []
        if taken is not None:
            await self._keys.destroy(taken.destroyed)
            parts = await self._parts(taken)
        for page in await self._keys.pages_to_store():
            await self._store(page_name(page), await self._keys.page(page))
            await self._keys.page_stored(page)
        await self._store_tenants(now)  # the first rows of a tenant have made its key
        await self._store_segment(taken, parts, now)
        if taken is None or taken.complete:
            self._behind_since = None
        return taken is not None and (not taken.complete or (taken.base_began > 0 and not taken.based))

    # -- the chain ----------------------------------------------------------------------------------------------------

    async def _begin(self) -> BackupState:
        chain = f"{self._now_ms():014d}-{uuid4().hex[:12]}"
        incarnation = self._database.incarnation

        def step(connection: sqlite3.Connection) -> BackupState:
            connection.execute("DELETE FROM backup_changes")  # the base has them
            ((highest,),) = connection.execute("SELECT coalesce(max(rowid), 0) FROM events")
            state = BackupState(
                incarnation=incarnation,
                chain=chain,
                number=0,
                hash=first_hash(chain),
                watermark=highest,
                lowest=NONE_DELETED,
                base_began=1,
                base_place=BASE_BEGIN,
                restore_from=0,
                based_at=UnixMs(0),
            )
            write_state(connection, state)
            return state

        return await self._write(step)

    async def _last_stored(self, state: BackupState) -> BackupState | None:
        """The chain's end where a segment was stored and the process ended before it had remembered that."""
        after, number = segment_name(state.chain, state.number), 0
        async for name in self._objects.names(folder_of(state.chain), after=after):
            number = max(number, number_of(name) or 0)
        if number <= state.number:
            return None
        data = await self._objects.get(segment_name(state.chain, number))
        assert data is not None
        ahead = msgspec.structs.replace(state, number=number, hash=hash_of(data))
        log.info("backup_went_on", chain=state.chain, segment=number)
        await self._write(lambda connection: write_state(connection, ahead))
        return ahead

    async def _begin_base(self) -> None:
        state, now = self.state, self._now_ms()
        if state.base_began or now - state.based_at < self._times.base_s * 1000:
            return
        begun = msgspec.structs.replace(state, base_began=state.number + 1, base_place=BASE_BEGIN)
        await self._write(
            lambda connection: (
                connection.execute(
                    "UPDATE backup_state SET base_began = ?, base_place = ?", (begun.base_began, begun.base_place)
                ).rowcount
            )
        )
        self._state = begun
        log.info("backup_base_started", segment=begun.base_began)

    async def _store_segment(self, taken: Taken | None, parts: list[SealedPart], now: UnixMs) -> None:
        state = self.state
        based = taken is not None and taken.based
        restore_from = state.base_began if based else state.restore_from
        header = SegmentHeader(
            chain=state.chain,
            number=state.number + 1,
            previous=state.hash,
            taken_at=now,
            complete=taken is None or taken.complete,
            restore_from=restore_from,
            schema=0 if taken is None else taken.schema,
            parts=(),
        )
        data = await asyncio.to_thread(encode_segment, header, parts)
        await self._store(segment_name(state.chain, header.number), data)
        stored = msgspec.structs.replace(
            state, number=header.number, hash=hash_of(data), restore_from=restore_from, lowest=NONE_DELETED
        )
        if taken is None:
            await self._write(
                lambda connection: (
                    connection.execute(
                        "UPDATE backup_state SET number = ?, hash = ?", (stored.number, stored.hash)
                    ).rowcount
                )
            )
        else:
            stored = msgspec.structs.replace(
                stored,
                watermark=taken.watermark,
                base_began=0 if based else state.base_began,
                base_place=taken.base_place,
                based_at=now if based else state.based_at,
            )
            await self._write(taken.confirm(stored))
        if based:
            log.info("backup_base_finished", segments=header.number - restore_from + 1)
        self._state = stored
        self._shipped_at = now
        self._segments.add()
        self._bytes.add(by=len(data))

    async def _parts(self, taken: Taken) -> list[SealedPart]:
        scopes = [scope for scope in taken.rows if scope.name]
        keys: Mapping[KeyScope, ScopeKey] = await self._keys.of_scopes(scopes)
        parts = []
        for scope, rows in taken.rows.items():
            if scope.name:
                key = keys[scope]
                parts.append(SealedPart("", key.id, key.page, key.cipher, (scope.tenant, scope.name), rows))
            else:
                key = await self._keys.of_tenant(scope.tenant)
                parts.append(SealedPart(scope.tenant, key.id, 0, key.cipher, (scope.tenant, scope.name), rows))
        return parts

    async def _store_tenants(self, now: UnixMs, *, first: bool = False) -> None:
        if not first and now - self._tenants_at < TENANTS_LOOKED_AT_MS and not self._tenants_changed:
            return
        self._tenants_at, self._tenants_changed = now, False
        data = await self._keys.tenants()
        if hash_of(data) != self._tenants_hash:
            await self._store(TENANTS_OBJECT, data)
            self._tenants_hash = hash_of(data)

    async def _store(self, name: str, data: bytes) -> None:
        if await self._objects.put(name, data):
            raise BadInput(
                "backup_keeps_versions",
                "The bucket of --backup keeps older versions of what is replaced, so that nothing could ever be"
                " destroyed in it. Suspend versioning for it, or name another one.",
                param="backup",
            )

    async def _prune_at_times(self) -> None:
        now = self._now_ms()
        if self._times.keep_s and now - self._pruned_at >= PRUNED_EVERY_MS:
            self._pruned_at = now
            await self.prune()

    async def prune(self) -> None:
        """Deletes what no restore to a time that is kept needs."""
        now = self._now_ms()
        reader = ChainReader(self._objects)
        try:
            pruned = await reader.prune(self.state.chain, UnixMs(now - round(self._times.keep_s * 1000)))
        except DamagedBackup as damaged:
            log.error("backup_damaged", cause=str(damaged), hint="`backup verify` says what else is")
            return
        if pruned:
            log.info("backup_pruned", segments=pruned)

    # -- help ---------------------------------------------------------------------------------------------------------

    async def _write(self, step: Callable[[sqlite3.Connection], T]) -> T:
        return cast(T, await self._database.submit(JobWrite(STORE_KEY, step)))

    def _tenant_changed(self, tenant: TenantId) -> None:
        self._tenants_changed = True

    def _lag(self) -> dict[tuple[str, ...], float]:
        since = self._behind_since
        return {(): 0.0 if since is None else (self._now_ms() - since) / 1000}


@contextlib.asynccontextmanager
async def shipping(shipper: BackupShipper) -> AsyncIterator[BackupShipper]:
    """Ships for as long as the block runs, and at its end what is left."""
    await shipper.open()
    task = asyncio.create_task(shipper.run(), name="backup")
    try:
        yield shipper
    finally:
        task.cancel()
        await asyncio.wait([task])
        try:
            await shipper.finish()
        except (SessileError, TimeoutError) as error:
            log.error("backup_incomplete", cause=repr(error), hint="the next start ships the rest")
        finally:
            shipper.close_files()
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure


async def stop_noting(database: SqliteDatabase) -> None:
    """For a server without a backup: changes are noted no more. A backup that is begun later is a new chain."""
    noted = await database.fetch("SELECT 1 FROM sqlite_schema WHERE name = 'backup_changes'")
    if noted:
        await database.submit(JobWrite(STORE_KEY, disable_capture))
        log.warning("backup_chain_ended", hint="no --backup is given; one that is begun later makes a whole copy first")
