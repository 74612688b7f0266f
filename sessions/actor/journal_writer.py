"""Makes steps durable: one append after another under one fence, each tried until it is known whether it is in the
journal.

    Unavailable   the journal is away, or nobody knows: (fence, top) are read before it is tried again
    Overloaded    nothing happened, and the journal is there: it is tried again, silently
    TooLarge      a snapshot is derived: the append goes without it, and the next one is made later
    Fenced        another owner

Nothing is written twice. An append with records moves the top, which shows whether it was written. Its other rows are
idempotent, except those of the audit log: an append that has such rows and no records also leaves a mark among the
session's commands, under a principal that nobody can be, which shows it.

Does not know: what a step is for, who waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from sessions.actor.actor_context import ActorContext
from sessions.actor.snapshots import SnapshotPolicy
from sessions.machine.inputs_and_effects import Step
from sessions.machine.state import State
from sessions.model.commands import Ok
from sessions.model.errors import Fenced, Overloaded, SessileError, TooLarge, Unavailable
from sessions.model.journal_types import Append, CommandRecord, Head, Snapshot
from sessions.model.types import CommandId

MARK: Final = ("", CommandId("append"))  # (principal, command) of the row that marks an append without records


class JournalWriter:
    """Writes the appends of one activation of a session. One caller at a time."""

    def __init__(self, head: Head, context: ActorContext, log: Any, *, top: int, snapshot_at: int) -> None:
        self.top = top  # the last durable offset
        self.away = False  # the journal does not answer
        self.snapshots = SnapshotPolicy(snapshot_at, context.limits.snapshot_events)
        self._head = head
        self._context = context
        self._log = log
        self._marks = 0

    async def step(self, step: Step, state: State, *, on_away: Callable[[], None]) -> None:
        """Appends a step that led to `state`; returns when it is durable. Raises Fenced, or Unavailable or Overloaded
        when patience ends. `on_away` is called each time that the journal fails."""
        append = self._append(step, self.snapshots.due(step, state))
        await self._persist(append, on_away)
        self.top += len(append.records)

    async def leave(self, state: State) -> None:
        """Writes a snapshot if the log has grown since the last one. If it cannot be stored, that is logged and nothing
        is raised."""
        if self.top == state.top and self.snapshots.worth(state):
            append = self._append(Step(), self.snapshots.take(state))
            try:
                await self._context.journal.append(append)
            except TooLarge:
                self._left_out(append)
            except SessileError as error:  # a snapshot is derived: the log is whole without it
                self._log.warning("snapshot_failed", error=error.code)

    def _append(self, step: Step, snapshot: Snapshot | None) -> Append:
        now = self._context.now_ms()
        commands = tuple(step.commands) if step.commands else ()
        if step.audit and not step.records:
            self._marks += 1
            digest = b"%d.%d" % (self._head.fence, self._marks)
            mark = CommandRecord(principal_id=MARK[0], command_id=MARK[1], digest=digest, answer=Ok(id=MARK[1]), at=now)
            commands = (*commands, mark)
        return Append(
            key=self._head.key,
            fence=self._head.fence,
            top=self.top,
            records=tuple(step.records),
            commands=commands,
            head=step.head,
            usage=tuple(step.usage) if step.usage else (),
            reviews=tuple(step.reviews) if step.reviews else (),
            snapshot=snapshot,
            audit=tuple(step.audit) if step.audit else (),
            push=step.push,
            at=now,
        )

    async def _persist(self, append: Append, on_away: Callable[[], None]) -> None:
        loop, limits, metrics = asyncio.get_running_loop(), self._context.limits, self._context.metrics
        begun_at = loop.time()
        give_up_at = begun_at + limits.journal_patience_s
        unknown = full = False
        while True:
            try:
                if unknown:
                    if await self._stands(append):
                        break
                    unknown = False
                await self._context.journal.append(append)
                break
            except TooLarge:
                if append.snapshot is None:
                    raise
                append = self._left_out(append)
                continue
            except Overloaded as error:
                if not full:
                    full = True
                    self._log.warning("append_delayed", error=str(error))
                if loop.time() >= give_up_at:
                    raise
            except Unavailable as error:
                unknown = True
                metrics.journal_lost.add()
                if not self.away:
                    self.away = True
                    self._log.error("journal_failed", error=str(error))
                on_away()
                if loop.time() >= give_up_at:
                    raise
            await asyncio.sleep(limits.journal_retry_s)
        metrics.journal_s.observe(loop.time() - begun_at)
        if self.away:
            self.away = False
            self._log.info("journal_recovered")

    async def _stands(self, append: Append) -> bool:
        """Returns whether an append whose outcome is unknown was written. Raises Fenced. If the top is neither the old
        nor the new one the result is False, and appending again then finds that the session has another owner."""
        journal, key = self._context.journal, append.key
        head = await journal.head(key)
        if head is None or head.fence != append.fence:
            raise Fenced("fenced", "Another owner holds this session now.")
        if append.records:
            return head.top == append.top + len(append.records)
        if not append.audit:
            return False
        mark = await journal.find_command(key, *MARK)
        return mark is not None and mark.digest == append.commands[-1].digest

    def _left_out(self, append: Append) -> Append:
        """Returns the append without its snapshot, which is too large, and counts and logs that."""
        assert append.snapshot is not None
        self.snapshots.left_out()
        self._context.metrics.snapshots_left_out.add()
        self._log.warning("snapshot_skipped", bytes=len(append.snapshot.body), offset=append.snapshot.offset)
        return msgspec.structs.replace(append, snapshot=None)
