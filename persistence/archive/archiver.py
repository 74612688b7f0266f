"""Chooses the sessions that are cold, moves them away, and gives the space that they leave in the file back.

Goes over all heads in the order of their keys, a page at a time, every `ROUND_S`. The file shrinks in steps so short
that no commit waits long for one: as many pages as took `STEP_S` the last time, with a rest behind each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
import structlog

from persistence.archive.cold_sessions import ColdSessions
from sessions.metrics import Metrics
from sessions.model.errors import Internal, SessileError
from sessions.model.types import NEVER, SessionId, SessionKey, TenantId, UnixMs

log = structlog.get_logger(__name__)

ROUND_S: Final = 600.0
PAGE_ROWS: Final = 1_000
STEP_S: Final = 0.05
PAGES_MIN: Final = 64
PAGES_MAX: Final = 20_000
_PAGE: Final = """
SELECT h.tenant, h.session,
    h.updated_at < ?1 AND h.open = 0 AND h.top > 0 AND h.deleted_at IS NULL AND h.tenant <> '' AND NOT EXISTS (
        SELECT 1 FROM archived a WHERE a.tenant = h.tenant AND a.session = h.session AND a.replaced_at IS NULL
        AND length(a.sealed) > 0 AND (a.recalled_at IS NULL OR a.recalled_at >= ?1))
FROM heads h WHERE (h.tenant, h.session) > (?2, ?3) ORDER BY h.tenant, h.session LIMIT ?4
"""


class ShrinkingDatabase(Protocol):
    async def fetch(self, statement: str, *values: Any) -> list[Any]: ...

    async def give_back(self, pages: int) -> int: ...


class ArchiveTimes(msgspec.Struct, frozen=True, kw_only=True):
    cold_s: float
    replaced_s: float | None = 0.0
    """How long an object is kept in whose place another has come; None: for ever, since a backup may lead to it."""


class Archiver:
    """`run` ends only by cancellation."""

    def __init__(
        self,
        database: ShrinkingDatabase,
        cold: ColdSessions,
        times: ArchiveTimes,
        *,
        now_ms: Callable[[], UnixMs],
        metrics: Metrics | None = None,
    ) -> None:
        metrics = metrics or Metrics()
        self._database = database
        self._cold = cold
        self._times = times
        self._now_ms = now_ms
        self.longest_step_s = 0.0
        """Of giving space back: for so long a commit may have waited."""
        self._archived = metrics.counter("archive_sessions", "Sessions that were moved to the object store.")
        metrics.gauge(
            "archive_recalls", "Sessions that were brought back.", (), lambda: {(): cold.num_recalled}, grows=True
        )

    async def run(self) -> None:
        while True:
            try:
                await self.sweep()
            except SessileError as error:
                log.warning("archive_round_failed", error=str(error), cause=repr(error.__cause__))
            await asyncio.sleep(ROUND_S)

    async def sweep(self) -> int:
        """One round; how many sessions were moved. Raises Unavailable."""
        moved, place = 0, ("", "")
        before = self._now_ms() - round(self._times.cold_s * 1000)
        while rows := await self._database.fetch(_PAGE, before, *place, PAGE_ROWS):
            for tenant, session, is_cold in rows:
                place = (tenant, session)
                if is_cold:
                    moved += await self._move(SessionKey(TenantId(tenant), SessionId(session)))
        kept_s = self._times.replaced_s
        while await self._cold.sweep(NEVER if kept_s is None else UnixMs(self._now_ms() - round(kept_s * 1000))):
            pass
        if moved:
            log.info("sessions_archived", sessions=moved)
        await self.shrink()
        return moved

    async def shrink(self) -> float:
        """Gives the file's free pages back; how long the longest step took, in seconds."""
        loop, pages, longest, left = asyncio.get_running_loop(), PAGES_MIN, 0.0, -1
        while True:
            began = loop.time()
            before, left = left, await self._database.give_back(pages)
            took = loop.time() - began
            longest = max(longest, took)
            self.longest_step_s = max(self.longest_step_s, took)
            if left == 0 or left == before:  # such a file keeps its pages: it was made without
                return longest
            pages = max(PAGES_MIN, min(PAGES_MAX, pages * 2 if took < STEP_S / 2 else round(pages * STEP_S / took)))
            await asyncio.sleep(took)

    async def _move(self, key: SessionKey) -> int:
        try:
            if not await self._cold.archive(key):
                return 0
        except Internal as error:  # one session that cannot be read does not keep the others here
            log.error("session_archive_failed", tenant=key.tenant, session=key.session, error=str(error))
            return 0
        self._archived.add()
        return 1
