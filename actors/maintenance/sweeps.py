"""Runs a replica's periodic work: finish orphaned turns, passivate idle sessions, purge deleted ones, release their
remaining KV, trim the audit log, deliver decisions of reviewers.

Each sweep is one pass that may fail and is repeated at the next interval; none is needed for correctness. The journal
has an index of open turns, so that a turn without readers is finished too. A session whose owner has a live lease is
left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from actors.hosting.error_isolation import isolate_errors
from actors.hosting.runtime import UNREADABLE, Moved, Runtime
from actors.hosting.services import Stores
from actors.maintenance.erasure import Eraser
from actors.maintenance.kv_cleanup import KVCleanup
from sessions.clock import Clock
from sessions.governance.audit_trim import trim
from sessions.governance.retention import Retention
from sessions.machine.appeals import decision_notice
from sessions.model.errors import Gone, NotFound, SessileError
from sessions.model.journal_types import Head
from sessions.model.request import request_of
from sessions.model.reviews import Case
from sessions.model.types import SessionKey, UnixMs
from sessions.ports import Engine

log = structlog.get_logger(__name__)


class SweepLimits(msgspec.Struct, frozen=True):
    sweep_s: float = 5.0
    unreadable_s: float = 600.0  # until a session whose log cannot be read is tried again
    recoveries_at_once: int = 8
    passivations_at_once: int = 8
    page: int = 200
    commands_s: float = 86_400.0
    purge_every_s: float = 300.0
    reclaim_every_s: float = 60.0


class Sweeps:
    """The periodic work of one replica. `run` ends only by cancellation."""

    def __init__(
        self,
        runtime: Runtime,
        stores: Stores,
        engine: Engine,
        clock: Clock,
        *,
        limits: SweepLimits | None = None,
        retention: Callable[[], Retention] = Retention,
        takes: Callable[[Head], bool] = lambda head: True,
    ) -> None:
        """`retention` returns the retention periods in force. `takes` returns whether a session without an owner is for
        this replica."""
        self._takes = takes
        self._runtime = runtime
        self._stores = stores
        self._store = stores.store
        self._clock = clock
        self._limits = limits or SweepLimits()
        self._retention = retention
        self._unreadable: dict[SessionKey, float] = {}  # until when
        self.kv_cleanup = KVCleanup(runtime, stores.store.journal, engine)
        self.eraser = Eraser(runtime, stores, engine, clock)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._recover())
            loops.create_task(self._sweep())

    async def _recover(self) -> None:
        """Recovers sessions periodically, apart from the other sweeps, because it may take long
        (`actors.hosting.recovery_gate`)."""
        while True:
            await self._attempt("recover", self.recover())
            await asyncio.sleep(self._limits.sweep_s)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        reclaim_at = loop.time() + self._limits.reclaim_every_s
        purge_at = loop.time() + self._limits.purge_every_s
        while True:
            await self._attempt("release", self._runtime.ownership.retry_releases())
            await self._attempt("reclaim", self._runtime.reclaim())
            if loop.time() >= reclaim_at:  # a directory that failed over may have lost single entries unnoticed
                reclaim_at = loop.time() + self._limits.reclaim_every_s
                await self._attempt("reclaim_all", self._runtime.reclaim(lambda key: True))
            await self._attempt("erase", self.eraser.sweep())
            await self._attempt("passivate", self.passivate_idle())
            if loop.time() >= purge_at:
                purge_at = loop.time() + self._limits.purge_every_s
                await self._attempt("purge", self.purge())
                await self._attempt("trim_audit", self.trim_audit())
                await self._attempt("tidy_reviews", self.tidy_reviews())
                await self._attempt("collect_files", self.collect_files())
            await self._attempt("deliver_reviews", self.deliver_reviews())
            await self._attempt("kv_cleanup", self.kv_cleanup.sweep())
            await asyncio.sleep(self._limits.sweep_s)

    async def _attempt(self, sweep: str, work: Awaitable[object]) -> None:
        try:
            await work
        except SessileError as error:
            log.warning("sweep_failed", sweep=sweep, error=str(error))
        except Exception:  # a replica with its sessions does not end for it
            log.exception("sweep_failed", sweep=sweep)

    async def recover(self) -> int:
        """Activates every session that has an open turn and no live owner; returns how many. Sessions that left this
        replica with paused answers are left alone until they are read."""
        recovered = 0
        slots = asyncio.Semaphore(self._limits.recoveries_at_once)
        now = asyncio.get_running_loop().time()
        self._unreadable = {key: until for key, until in self._unreadable.items() if until > now}
        after: SessionKey | None = None
        while heads := await self._store.journal.open_heads(limit=self._limits.page, after=after):
            after = heads[-1].key
            orphans = [
                head.key
                for head in heads
                if head.key not in self._unreadable
                and self._takes(head)
                and not self._runtime.left_paused(head)
                and await self._orphan(head.key)
            ]
            done = await asyncio.gather(*(self._recover_one(key, slots) for key in orphans))
            recovered += sum(done)
        return recovered

    async def _orphan(self, key: SessionKey) -> bool:
        """Returns whether a session has no live owner: the directory names none, or it names this process, which does
        not have the session."""
        if self._runtime.present(key):
            return False
        owner = await self._stores.directory.locate(key)
        return owner is None or (self._runtime.ownership.is_ours(owner) and not self._runtime.present(key))

    async def _recover_one(self, key: SessionKey, slots: asyncio.Semaphore) -> bool:
        async with slots:
            with isolate_errors("recovery_failed", key):
                try:
                    await self._runtime.recover(key)
                    return True
                except Moved:
                    pass
                except Exception as error:  # a log that cannot be read or folded, and each attempt writes a grant
                    if not isinstance(error, SessileError) or error.code in UNREADABLE:
                        self._unreadable[key] = asyncio.get_running_loop().time() + self._limits.unreadable_s
                    raise
        return False

    async def collect_files(self) -> int:
        """Deletes expired files, and content that no file has any more; returns how many."""
        collected = 0
        while done := await self._store.files.collect(self._clock.now_ms(), limit=self._limits.page):
            collected += done
        return collected

    async def passivate_idle(self) -> int:
        """Passivates the sessions that have been idle for `idle_s`, several at a time, so that they leave as fast as
        others come; returns how many."""
        long_ago = asyncio.get_running_loop().time() - self._runtime.limits.idle_s
        idle = iter([actor.key for actor in self._runtime.actors if not actor.busy and actor.active_at <= long_ago])
        left = 0

        async def passivate() -> None:
            nonlocal left
            for key in idle:
                actor = self._runtime.actor(key)
                if actor is not None and not actor.busy and actor.active_at <= long_ago:  # it may have been woken since
                    with isolate_errors("passivation_failed", key):
                        await self._runtime.passivate(key)
                        left += 1

        async with asyncio.TaskGroup() as passivations:
            for _ in range(self._limits.passivations_at_once):
                passivations.create_task(passivate())
        return left

    async def purge(self) -> int:
        """Purges sessions that are not kept any longer (`sessions.governance.retention`); returns how many.

        Their keys are destroyed first, because nothing refers to the keys once the sessions' rows are deleted.
        """
        now, purged = self._clock.now_ms(), 0
        commands_before = UnixMs(now - int(self._limits.commands_s * 1000))
        for due in self._retention().due(now):
            keys = await self._store.journal.purgeable(due, limit=self._limits.page)
            released = [key for key in keys if await self._key_destroyed(key)]
            purged += len(await self._store.journal.purge(released, due, commands_before=commands_before, at=now))
        return purged

    async def _key_destroyed(self, key: SessionKey) -> bool:
        """Releases a session's KV and destroys its key; returns whether both succeeded. If not, the next purge tries
        again."""
        with isolate_errors("purge_failed", key):
            await self._runtime.erase(key)
            if self._stores.keys is not None:
                await self._stores.keys.destroy(key)  # what was encrypted for it is unreadable now, in every copy
            return True
        return False

    async def trim_audit(self) -> int:
        """Deletes audit rows that are not kept any longer (`sessions.governance.audit_trim`); returns how many."""
        audit, retention, now, trimmed = self._store.audit, self._retention(), self._clock.now_ms(), 0
        if not retention.trims_audit:
            return 0
        for tenant in await audit.tenants():
            before = retention.of(tenant).audit_before(now)
            if before is not None:
                trimmed += await trim(audit, tenant, before=before, now=now)
        return trimmed

    async def deliver_reviews(self) -> int:
        """Delivers decisions of reviewers that their sessions' logs do not have yet; returns how many."""
        delivered = 0
        for case in await self._store.reviews.undelivered(limit=self._limits.page):
            with isolate_errors("review_delivery_failed", case.key):
                delivered += await self._deliver_review(case)
        return delivered

    async def _deliver_review(self, case: Case) -> bool:
        try:
            await self._runtime.execute(request_of(*decision_notice(case)))
        except Moved:
            return False  # its owner delivers it
        except (NotFound, Gone):
            pass  # there is no session left to deliver it to
        await self._store.reviews.mark_delivered(case.id, decision=case.decisions)
        return True

    async def tidy_reviews(self) -> None:
        """Drops review cases that are too old, or too many."""
        dropped = await self._store.reviews.tidy(now=self._clock.now_ms())
        for why, count in zip(("age", "room"), dropped, strict=True):
            if count:
                self._runtime.metrics.reviews_dropped.add(why, by=count)
                log.warning("reviews_dropped", why=why, count=count)
