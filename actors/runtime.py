"""A replica's actors: activation, routing to them, publishing what they make durable, passivation.

Activation (COLD → CLAIMING → LOADING → WARM) is single-flight per session: claim in the directory, grant in the
journal, load, fold, go on with what is unfinished. The directory only spares a race; the grant decides (I1).
A crash anywhere in it leaves a claim that lapses with the lease, or a grant whose fence the next owner exceeds.

Limits: `actors_max` in memory (the longest idle one leaves first; when none is idle, commands are shed),
`activations_max` at the same time (others wait). Upkeep (sweeps) is in `actors.upkeep`.
After: Orleans' virtual actors (Bernstein et al., 2014), whose directory and activation we follow; ownership by fencing
tokens as in Burrows' Chubby (2006).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Literal

import msgspec
import structlog

from sessions import commands as cm
from sessions.access import may_see, not_found
from sessions.actor import Actor, ActorGone, ActorLimits, World
from sessions.errors import Fenced, Gone, Overloaded, Unavailable
from sessions.events import Record
from sessions.machine import Machine
from sessions.ports import Directory, Engine, FilterSet, Head, Journal, Loaded, Owner, Published
from sessions.state import State, apply, empty, replay
from sessions.steps import Activated
from sessions.types import (
    ActivationId,
    Epoch,
    Principal,
    ReplicaId,
    SessionId,
    SessionKey,
    UnixMs,
    derived_session_id,
)

log = structlog.get_logger(__name__)

GRANT_ATTEMPTS = 4
READ_PAGE = 1_000


class RuntimeLimits(msgspec.Struct, frozen=True):
    actors_max: int = 20_000
    activations_max: int = 64
    idle_s: float = 600.0
    orphan_policy: Literal["continue", "pause", "cancel"] = "continue"
    orphan_after_s: float = 30.0
    actor: ActorLimits = ActorLimits()


class Moved(Exception):
    """Another replica holds the session. An ordinary answer: the router goes there."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner.replica)
        self.owner = owner


class Runtime:
    """The actors of one replica; implements the `Sessions` port for sessions that live here.

    Used as an async context: leaving it passivates every actor.
    """

    def __init__(
        self,
        *,
        replica: ReplicaId,
        incarnation: str,
        journal: Journal,
        directory: Directory,
        engine: Engine,
        filters: FilterSet,
        limits: RuntimeLimits,
        now_ms: Callable[[], UnixMs],
        new_id: Callable[[], str],
    ) -> None:
        self.replica = replica
        self.incarnation = incarnation
        self.limits = limits
        self._journal = journal
        self._directory = directory
        self._engine = engine
        self._filters = filters
        self._now_ms = now_ms
        self._new_id = new_id
        self._actors: dict[SessionKey, Actor] = {}
        self._owners: dict[SessionKey, Owner] = {}
        self._activating: dict[SessionKey, asyncio.Task[Actor]] = {}
        self._activation_slots = asyncio.Semaphore(limits.activations_max)
        self._sinks: dict[SessionKey, set[Callable[[Published], None]]] = {}
        self._orphan_timers: dict[SessionKey, asyncio.TimerHandle] = {}
        self._paused: set[SessionKey] = set()
        self._tasks = asyncio.TaskGroup()
        self._closing = False

    async def __aenter__(self) -> Runtime:
        await self._tasks.__aenter__()
        self._world = World(
            journal=self._journal,
            engine=self._engine,
            filters=self._filters,
            replica=self.replica,
            now_ms=self._now_ms,
            spawn=self._spawn,
            publish=self._publish,
            limits=self.limits.actor,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        await self._tasks.__aexit__(kind, error, trace)

    async def quiet(self, patience_s: float) -> None:
        """Takes no new sessions or commands and returns when no answer is being written, or patience ends."""
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                for actor in self.actors:
                    await actor.written()

    async def close(self) -> None:
        """Takes no more commands and passivates every actor. Open responses stay open in the log. Idempotent."""
        self._closing = True
        for task in list(self._activating.values()):
            task.cancel()
        await asyncio.gather(*(self.passivate(key) for key in list(self._actors)))

    # -- Sessions --------------------------------------------------------------------------------------------------

    async def execute(self, principal: Principal, command: cm.ActorCommand) -> cm.Ok:
        """See the `Sessions` port. Raises Moved when another replica holds the session."""
        key = self.key_of(principal, command)
        create = isinstance(command, cm.SessionCreate)
        if self._closing and not isinstance(command, cm.ResponseCancel):
            raise shutting_down()
        for _ in range(GRANT_ATTEMPTS):
            actor = self._actors.get(key) or await self._activated(key, principal, create=create)
            try:
                answer = await actor.execute(principal, command)
            except ActorGone:
                continue
            if create:
                return msgspec.structs.replace(answer, epoch=actor.epoch)
            return answer
        raise Unavailable("session_moving", "The session is changing hands.", retry_after_ms=200)

    def watch(self, key: SessionKey, sink: Callable[[Published], None]) -> Callable[[], None]:
        """See the `Sessions` port."""
        self._sinks.setdefault(key, set()).add(sink)
        self._read_again(key)

        def unwatch() -> None:
            sinks = self._sinks.get(key)
            if sinks is not None:
                sinks.discard(sink)
                if not sinks:
                    del self._sinks[key]
                    self._unread(key)

        return unwatch

    def _unread(self, key: SessionKey) -> None:
        """The last reader has left: the orphan policy's time begins."""
        if self.limits.orphan_policy != "continue" and key not in self._orphan_timers:
            loop = asyncio.get_running_loop()
            self._orphan_timers[key] = loop.call_later(self.limits.orphan_after_s, self._orphaned, key)

    def _orphaned(self, key: SessionKey) -> None:
        self._orphan_timers.pop(key, None)
        actor = self._actors.get(key)
        if actor is not None and key not in self._sinks:
            if self.limits.orphan_policy == "pause":
                self._paused.add(key)
            actor.readers_gone(cancel=self.limits.orphan_policy == "cancel")

    def _read_again(self, key: SessionKey) -> None:
        timer = self._orphan_timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._paused:
            self._paused.discard(key)
            actor = self._actors.get(key)
            if actor is not None:
                actor.readers_back()

    @staticmethod
    def key_of(principal: Principal, command: cm.ActorCommand) -> SessionKey:
        """The session that a command is for; one that creates without a name gets the name that follows from it."""
        session: SessionId | None = command.session
        return SessionKey(principal.tenant, session or derived_session_id(principal, command.id))

    def _publish(self, published: Published) -> None:
        sinks = self._sinks.get(published.key)
        if sinks:
            for sink in tuple(sinks):
                sink(published)

    # -- activation ------------------------------------------------------------------------------------------------

    def actor(self, key: SessionKey) -> Actor | None:
        return self._actors.get(key)

    @property
    def actors(self) -> list[Actor]:
        return list(self._actors.values())

    def readers(self, key: SessionKey) -> int:
        """How many watch the session through this replica."""
        return len(self._sinks.get(key, ()))

    async def recover(self, key: SessionKey) -> None:
        """Activates a session so that its open turns are finished. Raises like `execute`."""
        await self._activated(key, None, create=False)

    async def _activated(self, key: SessionKey, principal: Principal | None, *, create: bool) -> Actor:
        """The session's actor, activated by whoever comes first; everyone else waits for the same attempt."""
        task = self._activating.get(key)
        if task is None:
            if self._closing:
                raise shutting_down()
            head = await self._journal.head(key)
            if head is None or head.top == 0:
                if not create:
                    raise not_found(key)
            elif principal is not None and not may_see(principal, key, head.user):
                raise not_found(key)
            elif head.deleted_at is not None and not create:
                raise Gone("session_deleted", f"The session {key.session!r} is deleted.", param="session")
            actor = self._actors.get(key)
            if actor is not None:
                return actor
            task = self._activating.get(key)
            if task is None:
                await self._make_room()
                task = self._activating[key] = asyncio.create_task(self._activate(key, head))
                task.add_done_callback(lambda _: self._activating.pop(key, None))
        return await asyncio.shield(task)

    async def _make_room(self) -> None:
        """Keeps the number of actors in bounds: the longest idle one leaves."""
        if len(self._actors) + len(self._activating) < self.limits.actors_max:
            return
        idle = [actor for actor in self._actors.values() if not actor.busy]
        if not idle:
            raise Overloaded("overloaded", "Every session in memory is busy.", retry_after_ms=1_000)
        await self.passivate(min(idle, key=lambda actor: actor.active_at).key)

    async def _activate(self, key: SessionKey, head: Head | None) -> Actor:
        async with self._activation_slots:
            owner = Owner(self.replica, self.incarnation, ActivationId(self._new_id()))
            claim = await self._directory.claim(key, owner)
            if not claim.won and self._is_ours(claim.owner):  # an activation of ours that has left already
                claim = await self._directory.claim(key, owner, instead_of=claim.owner)
            if not claim.won:
                raise Moved(claim.owner)
            try:
                granted = await self._grant(key, owner, head)
                state, loaded = await self._load(key, granted)
            except BaseException:
                await asyncio.shield(self._directory.release(key, owner))
                raise
            machine = Machine(
                state,
                loaded.commands,
                default_model=self._engine.info.model,
                fingerprint=self._engine.tokenizer.fingerprint,
                forgetful=not loaded.commands_complete,
            )
            snapshot_at = loaded.snapshot.offset if loaded.snapshot is not None else 0
            actor = Actor(machine, granted, self._world, on_end=self._ended, snapshot_at=snapshot_at)
            self._actors[key] = actor
            self._owners[key] = owner
            same = head is not None and head.owner.split("/", 1)[0] == self.replica
            actor.activate(Activated(self.replica, "restart" if same else "failover"))
            log.info("activated", session=key.session, tenant=key.tenant, fence=granted.fence, epoch=granted.epoch)
        await self._directory.activated(key, owner)
        return actor

    def _is_ours(self, owner: Owner) -> bool:
        return owner.replica == self.replica and owner.incarnation == self.incarnation

    async def _grant(self, key: SessionKey, owner: Owner, head: Head | None) -> Head:
        """The fence, by compare-and-swap on the one read before; a race is read again a few times."""
        for _ in range(GRANT_ATTEMPTS):
            try:
                return await self._journal.grant(
                    key,
                    expected_fence=None if head is None else head.fence,
                    owner=f"{owner.replica}/{owner.activation}",
                    new_epoch=Epoch(self._new_id()),
                    now_ms=self._now_ms(),
                )
            except Fenced:
                head = await self._journal.head(key)
        raise Unavailable("session_moving", "The session is changing hands.", retry_after_ms=200)

    async def _load(self, key: SessionKey, granted: Head) -> tuple[State, Loaded]:
        loaded = await self._journal.load(key, now_ms=self._now_ms())
        if loaded is None or loaded.head.fence != granted.fence:
            raise Unavailable("session_moving", "The session is changing hands.", retry_after_ms=200)
        try:
            state = replay(loaded)
        except ValueError:
            log.warning("snapshot_unreadable", session=key.session, tenant=key.tenant)
            state = empty(key, user=granted.user, listed=granted.listed)
            for record in await self._whole_log(key):
                apply(state, record)
        if state.top != granted.top:
            raise AssertionError(f"{key}: the log ends at {state.top}, its head at {granted.top}")
        return state, loaded

    async def _whole_log(self, key: SessionKey) -> list[Record]:
        records: list[Record] = []
        while True:
            after = records[-1].offset if records else 0
            page = await self._journal.read(key, after=after, limit=READ_PAGE, bytes_max=1 << 24)
            if page is None or not page.records:
                return records
            records.extend(page.records)

    # -- leaving memory --------------------------------------------------------------------------------------------

    async def passivate(self, key: SessionKey) -> None:
        """Takes one session out of memory with everything durable; its KV may be spilled."""
        actor = self._actors.get(key)
        if actor is not None:
            await actor.passivate()
            await self._engine.park(key)

    def _ended(self, actor: Actor) -> None:
        if self._actors.get(actor.key) is actor:
            del self._actors[actor.key]
            self._paused.discard(actor.key)
            owner = self._owners.pop(actor.key)
            self._spawn(self._release(actor.key, owner))

    async def _release(self, key: SessionKey, owner: Owner) -> None:
        try:
            await self._directory.release(key, owner)
        except Unavailable as error:  # the claim lapses with the lease, and the fence stands against it anyway
            log.warning("release_failed", session=key.session, error=error.code)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.create_task(work)


def shutting_down() -> Unavailable:
    return Unavailable("shutting_down", "This server is shutting down.", retry_after_ms=1_000)
