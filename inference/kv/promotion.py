"""Reads snapshots from a tier below into host memory, and decides how long a turn waits for that.

A read is shared by all who need its snapshot, and goes on when one of them is cancelled or too late. It ends before its
time only when everybody who waited for it has seen that computing is faster (`RestoreChoice.is_too_slow`); what it has
shown of the tier's pace is learned then as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import structlog

from inference.kv.catalog import SnapshotCatalog
from inference.kv.cold_tier import ColdSnapshot, FetchProgress
from inference.kv.cost import RestoreChoice
from inference.kv.envelope import SnapshotManifest, SnapshotRefused
from inference.kv.host_tier import HostSnapshot, PendingHostSnapshot
from sessions.model.types import TenantId

log = structlog.get_logger(__name__)


class Promotion:
    """A read of a snapshot into host memory."""

    __slots__ = ("progress", "task", "waiting")

    def __init__(self, task: asyncio.Task[HostSnapshot], progress: FetchProgress) -> None:
        self.task = task
        self.progress = progress
        self.waiting = 0  # how many callers wait for the read


class Promotions:
    """The reads into host memory of one engine."""

    def __init__(
        self,
        catalog: SnapshotCatalog,
        reserve: Callable[[int, TenantId], Awaitable[bool]],
        add: Callable[[SnapshotManifest, Path, int], HostSnapshot],
    ) -> None:
        """`reserve` and `add`: the methods of `Tiers` that take a snapshot into host memory, below its tenant's
        ceiling."""
        self._catalog = catalog
        self._reserve = reserve
        self._add = add
        self._under_way: dict[ColdSnapshot, Promotion] = {}

    def __contains__(self, snapshot: ColdSnapshot) -> bool:
        return snapshot in self._under_way

    def begin(self, snapshot: ColdSnapshot) -> Promotion:
        """Returns the running read of the snapshot, after starting it if there is none. The read's task raises
        SnapshotRefused for an unusable snapshot."""
        promotion = self._under_way.get(snapshot)
        if promotion is None:
            host, progress = self._catalog.host, FetchProgress()
            over = contextlib.ExitStack()
            pending = over.enter_context(host.pending(snapshot.key))  # from now on, not from the task's first step
            over.callback(self._under_way.pop, snapshot)
            task = host.spawn(self._promote(snapshot, progress, pending))
            promotion = self._under_way[snapshot] = Promotion(task, progress)
            task.add_done_callback(lambda done: over.close())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return promotion

    async def wait(self, snapshot: ColdSnapshot, choice: RestoreChoice | None) -> HostSnapshot:
        """Waits until the snapshot is in host memory and returns it. With a `choice`, it gives up when its deadline has
        passed or computing has become faster; without one, it waits as long as it takes. Raises SnapshotRefused.

        If this is cancelled, the read continues, because others may wait for it."""
        promotion = self.begin(snapshot)
        begun_s = time.monotonic()
        promotion.waiting += 1
        try:
            while not promotion.task.done():
                wait_s = None
                if choice is not None:
                    now_s = time.monotonic()
                    waited_s = now_s - begun_s
                    if waited_s >= choice.deadline_s:
                        raise self._refused("too_late")
                    if choice.is_too_slow(snapshot.bytes, promotion.progress, waited_s, now_s):
                        promotion.progress.stopped = promotion.waiting == 1
                        raise self._refused("too_slow")
                    wait_s = min(max(choice.look_s(snapshot.bytes) / 2, waited_s / 16), choice.deadline_s - waited_s)
                await asyncio.wait([promotion.task], timeout=wait_s)
        finally:
            promotion.waiting -= 1
        return promotion.task.result()

    # -- inside --------------------------------------------------------------------------------------

    def _refused(self, reason: Literal["too_late", "too_slow"]) -> SnapshotRefused:
        self._catalog.host.counters[f"refused_{reason}"] += 1
        return SnapshotRefused(reason)

    async def _promote(
        self, snapshot: ColdSnapshot, progress: FetchProgress, pending: PendingHostSnapshot
    ) -> HostSnapshot:
        host, cost = self._catalog.host, self._catalog.worth.cost
        size = snapshot.bytes  # of all that is stored, so a little more than is needed
        if not await self._reserve(size, snapshot.key.tenant):
            raise SnapshotRefused("no_room")
        path, begun_s = host.new_path(), time.monotonic()
        try:
            manifest = await self._catalog.tier_of(snapshot).fetch(snapshot, path, progress)
            if pending.revoked:
                raise SnapshotRefused("no_snapshot")
        except SnapshotRefused as exc:
            log.info("snapshot_promotion_refused", tier=snapshot.tier, reason=exc.reason)
            self._learn_pace(snapshot, progress, begun_s)
            await asyncio.to_thread(path.unlink, missing_ok=True)
            host.unreserve(size)
            raise
        now_s = time.monotonic()
        cost.moved(snapshot.tier, size, now_s - begun_s, now_s)
        return self._add(manifest, path, size)

    def _learn_pace(self, snapshot: ColdSnapshot, progress: FetchProgress, begun_s: float) -> None:
        """Learns from a stopped read how long all of it would have taken."""
        now_s = time.monotonic()
        whole_s = progress.seconds_for(snapshot.bytes, now_s)
        if progress.stopped and progress.first_s is not None and whole_s is not None:
            cost = self._catalog.worth.cost
            cost.moved(snapshot.tier, snapshot.bytes, progress.first_s - begun_s + whole_s, now_s)
