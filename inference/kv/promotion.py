"""The way up: snapshots that are being read from a tier below into host memory, and who waits for them how long.

A read is shared by all who want its snapshot, and goes on when one of them is cancelled or too late. It ends before its
time only when everybody who waited for it has seen that computing is faster (`RestoreChoice.is_too_slow`); what it has
shown of the tier's pace is learned then as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Literal

from inference.kv.cold_tier import ColdSnapshot, FetchProgress
from inference.kv.cost import RestoreChoice
from inference.kv.envelope import SnapshotRefused
from inference.kv.host_tier import HostSnapshot, PendingHostSnapshot

if TYPE_CHECKING:
    from inference.kv.tiers import Tiers

log = logging.getLogger(__name__)


class Promotion:
    """One read that is under way."""

    __slots__ = ("progress", "task", "waiting")

    def __init__(self) -> None:
        self.progress = FetchProgress()
        self.waiting = 0  # who would lose by its end
        self.task: asyncio.Task[HostSnapshot]


class Promotions:
    """Of one `Tiers`."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._under_way: dict[ColdSnapshot, Promotion] = {}

    def __contains__(self, snapshot: ColdSnapshot) -> bool:
        return snapshot in self._under_way

    def begin(self, snapshot: ColdSnapshot) -> Promotion:
        """The snapshot's read, begun unless it is under way. It ends with Refused when the snapshot is no good."""
        found = self._under_way.get(snapshot)
        if found is None:
            found = self._under_way[snapshot] = Promotion()
            over = contextlib.ExitStack()
            flight = over.enter_context(self._tiers.flight(snapshot.key))  # from now on, not from the task's first step
            over.callback(self._under_way.pop, snapshot)
            found.task = self._tiers.spawn(self._promote(snapshot, found.progress, flight))
            found.task.add_done_callback(lambda done: over.close())
            found.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return found

    async def wait(self, snapshot: ColdSnapshot, choice: RestoreChoice | None) -> HostSnapshot:
        """The snapshot in host memory; without a choice, however long that takes. Raises Refused.

        Cancelled, it leaves the read to itself."""
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
        self._tiers.counters[f"refused_{reason}"] += 1
        return SnapshotRefused(reason)

    async def _promote(
        self, snapshot: ColdSnapshot, progress: FetchProgress, flight: PendingHostSnapshot
    ) -> HostSnapshot:
        tiers = self._tiers
        size = snapshot.bytes  # of all that is stored, so a little more than is needed
        if not await tiers.reserve(size, snapshot.key.tenant):
            raise SnapshotRefused("no_room")
        path, begun_s = tiers.new_path(), time.monotonic()
        try:
            manifest = await tiers.tier_of(snapshot).fetch(snapshot, path, progress)
            if flight.revoked:
                raise SnapshotRefused("no_snapshot")
        except SnapshotRefused as exc:
            log.info("KV does not come back from %s: %s", snapshot.tier, exc.reason)
            self._learn_pace(snapshot, progress, begun_s)
            await asyncio.to_thread(path.unlink, missing_ok=True)
            tiers.unreserve(size)
            raise
        now_s = time.monotonic()
        tiers.cost.moved(snapshot.tier, size, now_s - begun_s, now_s)
        return tiers.take(manifest, path, reserved=size)

    def _learn_pace(self, snapshot: ColdSnapshot, progress: FetchProgress, begun_s: float) -> None:
        """How long all of it would have taken, of a read that was stopped."""
        now_s = time.monotonic()
        whole_s = progress.seconds_for(snapshot.bytes, now_s)
        if progress.stopped and progress.first_s is not None and whole_s is not None:
            self._tiers.cost.moved(snapshot.tier, snapshot.bytes, progress.first_s - begun_s + whole_s, now_s)
