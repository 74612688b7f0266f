"""An engine's KV off the device: saves it to host memory, moves it through the tiers below, and brings it back.

    device --save--> host (a file in the staging folder) --demote--> disk (an encrypted file)
           <-restore-                                    <-promote-
                                                          --copy---> Redis, where snapshots are small
                                                         <-import--- a peer replica, over the link between them

It composes the parts, one object per engine: `host_tier` owns room and files, `catalog` finds snapshots, `promotion`
reads them up, `tenant_quota` bounds tenants. Invariants: a snapshot is tagged before anything trusts it and checked
against its tags each time it is used, an engine that writes more than it announced is cut back at once, and `erase`
leaves nothing of a session in any tier, whatever was on its way at the time.

A session may have several snapshots (branches); one that another covers is dropped. What is saved is copied down soon
after (write-behind), so a process that is killed loses little; while a session's tools run, its next snapshot is waited
for, a few times. It does not know engines, nor when saving is worth it.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from inference.kv import transfer
from inference.kv.catalog import Snapshot, SnapshotCatalog
from inference.kv.cold_tier import ColdSnapshot
from inference.kv.cost import RestoreChoice
from inference.kv.envelope import KvIdentity, SnapshotManifest, SnapshotRefused, check_file, make_manifest, tag_file
from inference.kv.host_tier import HostSnapshot
from inference.kv.promotion import Promotions
from inference.kv.tenant_quota import TenantKvQuota
from sessions.model.generation import KVExport
from sessions.model.types import OPENINGS, SessionKey, TenantId

log = structlog.get_logger(__name__)

EARLY_SHARE: Final = 0.1  # the share of tools' outputs that may come before the KV is back
TOOLS_COPY_S: Final = 10.0  # tools that run longer have their session's snapshot copied down meanwhile
POSTPONED_MAX: Final = 16  # snapshots in a row that are not copied down because the next one was near
_OPENING_IDLE_S: Final = 30 * 86_400.0  # an opening that no session of its tenant began with for so long is dropped


class _PostponedCopy(NamedTuple):
    """A copy to a lower tier that is delayed because the snapshot's session waits for its tools."""

    snapshot: HostSnapshot
    manifest: SnapshotManifest
    timer: asyncio.TimerHandle
    in_a_row: int  # how many snapshots in a row were not copied, this one included


class Tiers:
    """The KV tiers of one engine. `open` first; `close` moves snapshots to disk. All else may be called between. The
    methods are the ways in which snapshots come, move between tiers and go."""

    def __init__(self, identity: KvIdentity, catalog: SnapshotCatalog, quota: TenantKvQuota) -> None:
        self.identity = identity
        self.catalog = catalog
        self.host = catalog.host
        self.cold = catalog.cold
        self.quota = quota
        self.returns = catalog.worth.returns
        self.cost = catalog.worth.cost
        self.counters = self.host.counters
        self._promotions = Promotions(catalog, self.reserve, self._add)
        self._copying = asyncio.Semaphore(1)
        self._postponed: dict[SessionKey, _PostponedCopy] = {}

    async def open(self) -> None:
        """Opens the tiers. Raises BadInput or Unavailable when one cannot be used."""
        for tier in self.cold:
            await tier.open()

    async def close(self, deadline_s: float) -> None:
        """Moves host snapshots to disk, the latest used first, beginning none after `deadline_s`; drops the rest."""
        for postponed in self._postponed.values():
            postponed.timer.cancel()
        self._postponed.clear()
        await self.host.close(deadline_s)
        for tier in self.cold:
            await tier.close()

    def stats(self) -> dict[str, float]:
        """Returns each tier's use and bounds, and the measured costs of moving KV."""
        stats = {
            "host_bytes": float(self.host.bytes),
            "host_bytes_max": float(self.host.bytes_max),
            "host_snapshots": float(len(self.host)),
        }
        for tier in self.cold:
            stats[f"{tier.name}_bytes"] = float(tier.bytes)
            stats[f"{tier.name}_bytes_max"] = float(tier.bytes_max)
        return stats | self.cost.described()

    # -- finding -------------------------------------------------------------------------------------

    async def discover(self, key: SessionKey, prompt: array.array[int] | None = None) -> None:
        """Looks up which snapshots of the session other replicas have stored in shared tiers; engines call it once for
        each run. Does nothing if a known snapshot covers all of `prompt`."""
        if prompt is None or self.catalog.find(key, prompt)[1] < len(prompt):
            for tier in self.cold:
                await tier.discover(key)

    def choose(self, snapshot: Snapshot, begin: int, end: int, *, needed_bytes: int | None = None) -> RestoreChoice:
        """Decides whether to restore a snapshot for tokens [begin, end) of a prompt, and how long that may take.

        `needed_bytes`: how many bytes of the snapshot the engine needs if it is in host memory (None: all)."""
        if isinstance(snapshot, HostSnapshot):
            size = snapshot.bytes if needed_bytes is None else needed_bytes
            return self.cost.choose(("device",), size, begin, end, time.monotonic())
        return self.cost.choose((snapshot.tier, "device"), snapshot.bytes, begin, end, time.monotonic())

    def on_tools(self, key: SessionKey, tools: Sequence[str], num_bytes: int) -> float | None:
        """Notes that a turn has ended with calls of these tools; its session has `num_bytes` of KV. Returns after how
        many seconds the KV should be brought back to the device; None if the tools' duration is unknown, or too short
        for moving the KV away."""
        times = self.returns.on_tools(key, tools)
        if not times.known:
            return None
        now_s = time.monotonic()
        below_s = max((self.cost.move_s(tier.name, num_bytes, now_s) for tier in self.cold), default=0.0)
        ahead_s = times.quantile_s(EARLY_SHARE) - self.cost.move_s("device", num_bytes, now_s) - below_s
        return ahead_s if ahead_s > 0 else None

    # -- into host memory ------------------------------------------------------------------------------

    async def reserve(
        self, size: int, tenant: TenantId | None = None, *, grows: int | None = None, computed: int = 0
    ) -> bool:
        """Makes room for `size` bytes in host memory and counts them. Returns False if that is impossible, or takes
        longer than computing the `computed` tokens again.

        With a `tenant`, it also makes room for `grows` more bytes (None: `size`) below the tenant's ceiling. After True
        the caller calls `adopt` or `host.unreserve`."""
        grows = size if grows is None else grows
        fits = size <= self.host.bytes_max
        if fits and tenant is not None and not await self.quota.make_room(tenant, grows):
            self.counters["tenant_full"] += 1
            return False
        return await self.host.reserve(size, self.cost.prefill_s(0, computed) if computed else 0.0)

    def adopt(
        self,
        key: SessionKey,
        tokens: array.array[int],
        path: Path,
        size: int,
        reserved: int,
        scope: bytes = b"",
    ) -> None:
        """Adds the payload that an engine wrote to a `host.new_path`, in reserved room."""
        snapshot = HostSnapshot(key, tokens, path, size, scope=scope)
        self.host.add(snapshot, reserved=reserved)
        self.trim(key.tenant)
        snapshot.tagging = self.host.spawn(self._tag(snapshot))
        if self.host.bytes > self.host.bytes_max:
            self.counters["host_overrun"] += 1
            self.host.spawn(self.host.drop(snapshot))

    # -- out of it -------------------------------------------------------------------------------------

    async def prefetch(self, key: SessionKey) -> None:
        """Starts to bring the session's KV into host memory."""
        await self.discover(key)
        best = self.catalog.longest(key)
        if isinstance(best, ColdSnapshot):
            self.counters["prefetches"] += best not in self._promotions
            self._promotions.begin(best)

    @contextlib.asynccontextmanager
    async def payload(self, snapshot: Snapshot, choice: RestoreChoice | None = None) -> AsyncIterator[HostSnapshot]:
        """Yields the checked payload as a file in the staging folder, which stays as long as the context lasts.

        Raises SnapshotRefused; the snapshot was then dropped and counted, or was not worth waiting for (see `held`)."""
        async with self.held(snapshot, choice) as host:
            if host is snapshot:  # else it was checked on its way up
                await self._check(host)
            yield host

    @contextlib.asynccontextmanager
    async def held(self, snapshot: Snapshot, choice: RestoreChoice | None = None) -> AsyncIterator[HostSnapshot]:
        """Yields the snapshot in host memory, payload file and manifest; it is not evicted while the context lasts. It
        is for a reader that checks what it reads and calls `refuse` if that is wrong.

        Raises SnapshotRefused. The reason is `too_late` if a tier below takes longer than the choice's deadline: the
        read continues, and the next turn finds the snapshot in host memory. It is `too_slow` if the read's pace shows
        that computing is faster: then the read is stopped."""
        host = await self._promotions.wait(snapshot, choice) if isinstance(snapshot, ColdSnapshot) else snapshot
        with self.host.using(host):
            if host.tagging is not None:
                await asyncio.shield(host.tagging)
            if host.forgotten or host.manifest is None:
                raise SnapshotRefused("no_snapshot")
            self.host.touch(host)
            yield host

    async def refuse(self, snapshot: HostSnapshot, reason: str) -> None:
        """Drops a snapshot that a reader could not use."""
        self.counters[f"refused_{reason}"] += 1
        log.warning("snapshot_refused", tier="host", reason=reason)
        await self.host.drop(snapshot)

    def park(self, key: SessionKey) -> None:
        """Marks the session's snapshots to be evicted first when room is needed."""
        for snapshot in self.host.of(key):
            snapshot.parked = True

    async def erase(self, key: SessionKey) -> None:
        """Removes all snapshots of a session from every tier."""
        self.returns.forget(key)
        self.host.revoke(key)
        if key in self._postponed:
            self._postponed.pop(key).timer.cancel()
        await asyncio.gather(
            *(self.host.drop(snapshot) for snapshot in self.host.of(key)),
            *(tier.erase(key) for tier in self.cold),
        )

    # -- between replicas ------------------------------------------------------------------------------

    async def export(self, key: SessionKey, ledger: array.array[int]) -> KVExport | None:
        """Returns the snapshot that covers most of `ledger`, as an envelope in chunks of at most 1 MiB; None if there
        is none.

        If the snapshot turns out to be damaged, it is dropped and the chunks end early; the receiver then refuses it as
        incomplete."""
        best, _ = self.catalog.find(key, ledger)
        return None if best is None else KVExport(best.tokens, self._exported(best))

    async def _exported(self, snapshot: Snapshot) -> AsyncGenerator[bytes, None]:
        try:
            if isinstance(snapshot, ColdSnapshot):
                async with contextlib.aclosing(self.catalog.tier_of(snapshot).stream(snapshot)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            async with self.payload(snapshot) as host:
                assert host.manifest is not None
                async with contextlib.aclosing(transfer.stream(host.path, host.manifest)) as chunks:
                    async for chunk in chunks:
                        yield chunk
        except SnapshotRefused as exc:
            self.counters["exports_cut"] += 1
            log.warning("snapshot_export_cut", reason=exc.reason)

    async def import_(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        """Takes in a snapshot that another replica sends. Returns how many tokens it covers; 0 if it was refused."""
        try:
            return await self._import(key, chunks)
        except SnapshotRefused as exc:
            self.counters[f"refused_{exc.reason}"] += 1
            log.warning("snapshot_import_refused", reason=exc.reason)
            return 0

    async def _import(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        manifest, rest = await transfer.begin(chunks, key, self.identity)
        begun, size = time.monotonic(), manifest.payload_bytes
        with self.host.pending(key) as pending:
            if not await self.reserve(size, key.tenant, computed=len(manifest.ledger)):
                raise SnapshotRefused("no_room")
            path = self.host.new_path()
            try:
                await transfer.receive(chunks, manifest, rest, path)
                if pending.revoked:
                    raise SnapshotRefused("no_snapshot")
            except BaseException:
                path.unlink(missing_ok=True)
                self.host.unreserve(size)
                raise
            self._add(manifest, path, size)
        now_s = time.monotonic()
        self.cost.moved("peer", size, now_s - begun, now_s)
        self.counters["imports"] += 1
        return len(manifest.ledger)

    # -- inside ------------------------------------------------------------------------------------------

    def trim(self, tenant: TenantId) -> None:
        """Brings a tenant below its ceiling, after each of its runs, and drops shared prefixes that are out of use."""
        for opening in self.catalog.of(SessionKey(tenant, OPENINGS)):
            if time.monotonic() - opening.used_s > _OPENING_IDLE_S:
                self.host.spawn(self.catalog.drop(opening))
        if self.quota.over(tenant) > 0:
            self.host.spawn(self.quota.make_room(tenant, 0))

    def _add(self, manifest: SnapshotManifest, path: Path, reserved: int) -> HostSnapshot:
        """Adds a checked payload with its manifest, in the room reserved for it."""
        snapshot = HostSnapshot(
            manifest.key, manifest.ledger, path, manifest.payload_bytes, manifest, scope=manifest.scope
        )
        self.host.add(snapshot, reserved=reserved)
        self.trim(manifest.key.tenant)
        return snapshot

    async def _tag(self, snapshot: HostSnapshot) -> None:
        snapshot_id = bytes.fromhex(snapshot.path.stem)
        try:
            size, tags = await asyncio.to_thread(tag_file, snapshot.path, snapshot_id)
        except (OSError, ValueError) as exc:
            if not snapshot.forgotten:
                log.warning("snapshot_tagging_failed", error=str(exc))
                await self.host.drop(snapshot)
            return
        snapshot.manifest = make_manifest(
            snapshot.key, self.identity, snapshot.tokens, snapshot_id, size, tags, snapshot.scope
        )
        if self.cold and not snapshot.forgotten:
            self._copy_soon(snapshot, snapshot.manifest)

    async def _check(self, snapshot: HostSnapshot) -> None:
        if snapshot.forgotten:
            raise SnapshotRefused("no_snapshot")
        try:
            if snapshot.manifest is None:
                raise SnapshotRefused("unreadable")
            await asyncio.to_thread(check_file, snapshot.path, snapshot.manifest)
        except SnapshotRefused as exc:
            await self.refuse(snapshot, exc.reason)
            raise

    def _copy_soon(self, snapshot: HostSnapshot, manifest: SnapshotManifest) -> None:
        """Copies the snapshot to lower tiers: at once, or later if its session will soon continue and have a newer
        one."""
        key = snapshot.key
        before = self._postponed.pop(key, None)
        count = 1
        if before is not None:
            before.timer.cancel()
            if not before.snapshot.forgotten:  # of another branch
                self._begin_copy(before.snapshot, before.manifest)
            else:
                count += before.in_a_row
        if not self.returns.waits_for_tools(key) or count > POSTPONED_MAX:
            self._begin_copy(snapshot, manifest)
            return
        timer = asyncio.get_running_loop().call_later(TOOLS_COPY_S, self._copy_postponed, key)
        self._postponed[key] = _PostponedCopy(snapshot, manifest, timer, count)
        self.counters["copies_postponed"] += 1

    def _copy_postponed(self, key: SessionKey) -> None:
        postponed = self._postponed.pop(key)
        self._begin_copy(postponed.snapshot, postponed.manifest)

    def _begin_copy(self, snapshot: HostSnapshot, manifest: SnapshotManifest) -> None:
        self.host.spawn(self._copy_down(snapshot, manifest))

    async def _copy_down(self, snapshot: HostSnapshot, manifest: SnapshotManifest) -> None:
        """Copies a snapshot to the tiers below, while it stays here. One copy at a time, and the newest snapshot
        only."""
        async with self._copying:
            for tier in self.cold:
                if snapshot.forgotten or tier.has(manifest.key, manifest.snapshot_id):
                    continue
                if self.quota.over(manifest.key.tenant, manifest.payload_bytes) > 0:
                    self.counters["tenant_not_copied"] += 1
                    continue
                with self.host.using(snapshot):
                    await tier.put(manifest, snapshot.path)
                self.trim(manifest.key.tenant)  # what came meanwhile may have reached the ceiling
