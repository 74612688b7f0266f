"""Reads logs from the journal: pages, folded states, and resume plans.

All journal reads of a gateway are here. Reading never claims a session and never wakes an actor.

Invariants:
* A page is only handed on when every retraction behind its first record is known to the feed (I3), so that no text is
  shown that was taken back since.
* `standing` answers a resume with a complete replay, a snapshot with its tail, a reset, or gone: never with a hole.
* At most `READS_MAX` pages and `FOLDS_MAX` states are in memory at a time: a storm of reconnects waits in line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from sessions.machine.client_state import client_state
from sessions.machine.state import State, apply, begin, replay
from sessions.model import authorization
from sessions.model.authorization import not_found
from sessions.model.errors import Gone, Internal
from sessions.model.events import ContentRetracted, Record
from sessions.model.journal_types import Head, Page
from sessions.model.types import Epoch, Principal, SessionKey, UnixMs
from sessions.ports import Journal
from transport.protocol.retraction import Retraction
from transport.reading.feeds import Feed

SCAN_RECORDS: Final = 1024
SCAN_BYTES: Final = 1024 * 1024
PAGE_RECORDS: Final = 512
PAGE_BYTES: Final = 64 * 1024
READS_MAX: Final = 32
FOLDS_MAX: Final = 4


class ResumePlan(NamedTuple):
    """How a client continues to read: its events begin after `position`. `state` is set for snapshot and reset."""

    mode: Literal["replay", "snapshot", "reset"]
    epoch: Epoch
    position: int
    top: int
    state: dict[str, Any] | None = None
    reason: str | None = None
    page: tuple[Record, ...] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class LogReader:
    """Reads logs from a journal, a bounded number at once."""

    journal: Journal
    now_ms: Callable[[], UnixMs]
    replay_records_max: int
    reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READS_MAX))
    folds: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FOLDS_MAX))

    async def look_ahead(
        self, principal: Principal, feed: Feed, epoch: Epoch | None, offset: int | None
    ) -> Page | None:
        """Reads the first page that `standing` needs for its decision, so that a caller can read it before its turn.
        Returns None if `standing` needs none: because the feed's tail suffices, or `offset` is None. Raises as
        `standing` does."""
        authorization.demand(principal, "read")  # first, so that such a key learns nothing of what there is
        if offset is None or self._in_tail(feed, epoch, offset):
            return None
        return await self._first(feed, offset)

    @staticmethod
    def _in_tail(feed: Feed, epoch: Epoch | None, offset: int | None) -> bool:
        """Returns whether the feed's tail reaches back to `offset`, so that the journal is not needed."""
        known = feed.known and feed.epoch == epoch and offset is not None and 0 < offset <= feed.top
        return known and offset is not None and feed.after(offset) is not None

    async def standing(
        self, principal: Principal, feed: Feed, epoch: Epoch | None, offset: int | None, page: Page | None = None
    ) -> ResumePlan:
        """Returns how a client that has read up to (epoch, offset) continues. The caller has acquired `feed` before,
        and may pass the `page` of `look_ahead`. Raises Forbidden, NotFound, Gone, Unavailable."""
        authorization.demand(principal, "read")
        if offset is not None and self._in_tail(feed, epoch, offset):
            visible(principal, feed.key, feed.user, feed.deleted)
            return ResumePlan("replay", feed.epoch, offset, feed.top)
        page = page or await self._first(feed, offset)
        head = page.head
        visible(principal, feed.key, head.user, head.deleted_at is not None)
        if offset is None:
            return await self._snapshot(feed, "snapshot")
        if epoch != head.epoch and (offset > 0 or epoch is not None):
            return await self._snapshot(feed, "reset", "epoch_unknown" if epoch is None else "epoch_changed")
        if offset > head.top:
            return await self._snapshot(feed, "reset", "offset_ahead")
        if offset > 0 and head.top - offset > self.replay_records_max:
            return await self._snapshot(feed, "snapshot", "too_far_back")
        if page.records and page.records[0].offset != offset + 1:
            return await self._snapshot(feed, "snapshot", "trimmed")
        return ResumePlan("replay", head.epoch, offset, max(head.top, feed.top), page=page.records)

    async def page(self, feed: Feed, after: int, *, bytes_max: int) -> tuple[Record, ...]:
        """Returns records behind `after`, about `bytes_max` bytes; empty at the top. Raises NotFound, Unavailable."""
        async with self.reads:
            page = await self._read(feed, after, PAGE_RECORDS, min(PAGE_BYTES, bytes_max))
            return page.records

    async def state(self, principal: Principal, key: SessionKey) -> tuple[Head, dict[str, Any]]:
        """Returns a session's head, and its state as clients see it. Raises Forbidden, NotFound, Gone, Unavailable."""
        authorization.demand(principal, "read")
        head, state = await self.fold(key)
        visible(principal, key, head.user, head.deleted_at is not None)
        return head, client_state(state)

    # -- pages ------------------------------------------------------------------------------------------------------

    async def _first(self, feed: Feed, offset: int | None) -> Page:
        if offset is not None:
            async with self.reads:
                return await self._read(feed, offset, PAGE_RECORDS, PAGE_BYTES)
        head = await self.journal.head(feed.key)
        if head is None or head.top == 0:
            raise not_found(feed.key)
        feed.learn(head)
        return Page(head, ())

    async def _read(self, feed: Feed, after: int, limit: int, bytes_max: int) -> Page:
        page = await self.journal.read(feed.key, after=after, limit=limit, bytes_max=bytes_max)
        if page is None or page.head.top == 0:
            raise not_found(feed.key)
        feed.learn(page.head)
        if not feed.covers(after, feed.top):
            await self._find_retractions(feed, page, after)
        return page

    async def _find_retractions(self, feed: Feed, page: Page, after: int) -> None:
        """Reads the log from the page on, up to where the feed knows all retractions, and tells the feed of every
        retraction in (after, top]. `top` is the feed's newest offset when the search ends, as records may be published
        meanwhile."""
        retractions: list[Retraction] = []
        records, position = page.records, after
        while records:
            retractions += [(r.offset, r.event) for r in records if isinstance(r.event, ContentRetracted)]
            position = feed.covered_from(records[-1].offset)
            if position >= feed.top:
                break
            further = await self.journal.read(feed.key, after=position, limit=SCAN_RECORDS, bytes_max=SCAN_BYTES)
            if further is None or further.head.epoch != page.head.epoch:
                raise not_found(feed.key)
            records = further.records
        feed.remember(after, max(position, page.head.top), retractions)

    # -- states -----------------------------------------------------------------------------------------------------

    async def _snapshot(self, feed: Feed, mode: Literal["snapshot", "reset"], reason: str | None = None) -> ResumePlan:
        head, state = await self.fold(feed.key)
        feed.learn(head)
        while feed.epoch == head.epoch and feed.retracted_after(state.top):
            # Something in this state was retracted while it was made.
            head, state = await self.fold(feed.key)
        return ResumePlan(mode, head.epoch, state.top, head.top, client_state(state), reason)

    async def fold(self, key: SessionKey, *, in_thread: bool = False) -> tuple[Head, State]:
        """Returns a session's head and state without checking who reads. With `in_thread` the state is computed in a
        thread, for callers that read many sessions. Raises NotFound, Unavailable, Internal."""
        async with self.folds:
            loaded = await self.journal.load(key, now_ms=self.now_ms())
            if loaded is None or loaded.head.top == 0:
                raise not_found(key)
            try:
                if in_thread:
                    return loaded.head, await asyncio.to_thread(replay, loaded)
                return loaded.head, replay(loaded)
            except ValueError:
                # The snapshot is of another version: the log is the truth.
                return await self._fold_log(key)

    async def _fold_log(self, key: SessionKey) -> tuple[Head, State]:
        state: State | None = None
        while True:
            after = state.top if state is not None else 0
            page = await self.journal.read(key, after=after, limit=SCAN_RECORDS, bytes_max=SCAN_BYTES)
            if page is None:
                raise not_found(key)
            if state is None:
                state = begin(page.head, None)
            for record in page.records:
                apply(state, record)
            if state.top >= page.head.top:
                return page.head, state
            if not page.records:
                raise Internal("internal_error", "The log of this session has a hole.")


def visible(principal: Principal, key: SessionKey, user: str | None, deleted: bool) -> None:
    """Raises NotFound if a principal may not read a session of `user`, and Gone if it was deleted."""
    authorization.demand_visible(principal, key, user)
    if deleted:
        raise Gone("session_deleted", f"The session {key.session!r} was deleted.", param="session")
