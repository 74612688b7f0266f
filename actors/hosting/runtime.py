"""Hosts a replica's actors: activates sessions, routes commands to them, publishes what they write, passivates them.

Activation (COLD → CLAIMING → LOADING → WARM) is single-flight per session: claim in the directory, grant in the
journal, load, fold (`actors.hosting.ownership`), go on with what is unfinished.
A crash anywhere in it leaves a claim that lapses with the lease, or a grant whose fence the next owner exceeds.

Limits: `actors_max` in memory (the longest idle one leaves first; when none is idle, commands are shed),
`activations_max` at the same time and `recoveries_max` sessions coming back from a lost owner (others wait).
Sweeps are in `actors.maintenance.sweeps`, hand-off in `actors.handoff`.
After: Orleans' virtual actors (Bernstein et al., 2014), whose directory and activation we follow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Literal

import msgspec
import structlog

from actors.cluster.pool_states import pool_state
from actors.hosting.error_isolation import isolate_errors
from actors.hosting.inflight_commands import InflightCommands
from actors.hosting.orphan_policy import is_given_up
from actors.hosting.ownership import (
    TICK_S,
    Identity,
    Moved,
    Ownership,
    Peers,
    activation_cause,
    activation_reason,
    last_replica,
    session_moving_error,
)
from actors.hosting.recovery_gate import READ, UNREAD, RecoveryGate
from actors.hosting.runtime_limits import RuntimeLimits
from actors.hosting.services import Accounting, Inference
from actors.hosting.single_flight import SingleFlight, shutting_down
from actors.hosting.subscribers import OnDeactivated, Sink, Subscribers
from sessions.actor.actor import Actor
from sessions.actor.actor_context import ActorContext
from sessions.actor.journal_writer import JournalWriter
from sessions.actor.mailbox import ActorStopped, ModelSwitch
from sessions.actor.model_router import ModelRouter
from sessions.actor.step_observer import observed_step
from sessions.clock import Clock
from sessions.machine.inputs_and_effects import Activated, Command
from sessions.machine.machine import Machine
from sessions.machine.state import of_head
from sessions.model import commands as cm
from sessions.model.authorization import deleted, demand, may_see, not_found
from sessions.model.errors import BadInput, Fenced, Gone, Internal, NotFound, Overloaded, SessileError, Unavailable
from sessions.model.journal_types import Head
from sessions.model.request import Request, recorded_answer
from sessions.model.types import Principal, SessionKey, TenantId
from sessions.ports import Directory, Journal, Owner, Published
from sessions.routing.models_file import NO_POOLS
from sessions.turn.inspector import Inspector

__all__ = ["Moved", "Runtime", "RuntimeLimits"]

log = structlog.get_logger(__name__)

ATTEMPTS = 4
CONFIRMATIONS_AT_ONCE = 16
UNREADABLE = ("body_unreadable", "journal_hole")


class Runtime:
    """The actors of one replica; implements the `Sessions` port for sessions that live here.

    Used as an async context: leaving it passivates every actor. It is large because it is where a replica's parts meet:
    ownership, activation, subscribers and the end of each actor. They decide; it calls them in their order.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        journal: Journal,
        directory: Directory,
        inference: Inference,
        clock: Clock,
        limits: RuntimeLimits,
        accounting: Accounting | None = None,
        peers: Peers | None = None,
    ) -> None:
        """`peers` are the functions that reach other replicas; None if there is no other replica."""
        accounting, peers = accounting or Accounting(), peers or Peers()
        self.identity = identity
        self.limits = limits
        self.metrics = accounting.metrics
        self.draining = False  # whether new sessions are refused; those that are here go on
        self._journal = journal
        self._directory = directory
        self._engine = inference.engine
        self._accounting = accounting
        self._announce_deletion = peers.announce_deletion
        self._question_owner = peers.question_owner
        self._switch_model = peers.switch_model
        self.ownership = Ownership(identity, journal=journal, directory=directory, clock=clock, peers=peers)
        self._actors: dict[SessionKey, Actor] = {}
        self._inflight = InflightCommands()
        self._head_reads = SingleFlight[Head | None](shutting_down, ended=_log_failed_activation)
        self._adopting = set[SessionKey]()  # sealed for us by their owners
        self._activating = SingleFlight[Actor](shutting_down, ended=_log_failed_activation)
        self._activation_slots = asyncio.Semaphore(limits.activations_max)
        self._passivation_slots = asyncio.Semaphore(limits.passivations_max)
        self._gate = RecoveryGate(at_once=limits.recoveries_max, patience_s=limits.recovery_patience_s)
        self._successors: dict[SessionKey, Owner] = {}
        self._reasons: dict[SessionKey, str] = {}  # why each actor was activated here, for operators
        self.subscribers = Subscribers(limits, self._actors.get, self._wake)
        self.inspector = Inspector(inference.engine, inference.filters, limits.actor.content_bytes)
        self._tasks = asyncio.TaskGroup()
        self._closing = False
        self._context = ActorContext(
            journal=journal,
            engine=inference.engine,
            schemas=inference.schemas,
            filters=inference.filters,
            replica=identity.replica,
            now_ms=clock.now_ms,
            spawn=self._spawn,
            publish=self._publish,
            erase=self.erase,
            limits=limits.actor,
            metrics=accounting.metrics,
            results=inference.results,
            memories=inference.memories,
            tools=inference.tools,
            knowledge=inference.knowledge,
            unread=(lambda key: not self.subscribers.count(key)) if limits.push else None,
            router=self._model_router(inference, peers, clock),
        )

    def _model_router(self, inference: Inference, peers: Peers, clock: Clock) -> ModelRouter:
        info = inference.engine.info
        about = "Sessions that were sent to another model, by why."
        return ModelRouter(
            inference.pools or (lambda: NO_POOLS),
            inference.engine,
            peers.pool_states or (lambda: {info.model: pool_state([info], [0.0])}),
            replica=self.identity.replica,
            now_ms=clock.now_ms,
            count=self.metrics.counter("model_switches", about, "why").add,
        )

    async def __aenter__(self) -> Runtime:
        await self._tasks.__aenter__()
        self._monitor = self._spawn(self._monitor_ownership())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        await self._tasks.__aexit__(kind, error, trace)

    async def quiesce(self, patience_s: float) -> None:
        """Takes no new sessions or commands; returns when no answer is being written, or after `patience_s`."""
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                for actor in self.actors:
                    await actor.written()

    async def close(self) -> None:
        """Takes no more commands and passivates every actor. Open responses stay open in the log. Idempotent."""
        self._closing = True
        await self._head_reads.close()
        await self._activating.close()
        await asyncio.gather(*(self.passivate(key) for key in list(self._actors)))
        self._monitor.cancel()
        self._gate.close()

    # -- Sessions --------------------------------------------------------------------------------------------------

    async def execute(self, request: Request, *, instead_of: Owner | None = None) -> cm.Ok:
        """Executes a command as the `Sessions` port says. Raises Moved when another replica holds the session.

        `instead_of` is an owner that the sender has lost: its claim may be taken over, and nobody else's.
        """
        demand(request.principal, "chat")
        if self._closing and not isinstance(request.command, cm.ResponseCancel):
            raise shutting_down()
        answer = await self._inflight.join(request)
        if answer is None:
            with self._inflight.answering(request) as answers:
                answers.append(answer := await self._execute(request, instead_of))
        return answer

    async def _execute(self, request: Request, instead_of: Owner | None) -> cm.Ok:
        key, create = request.key, cm.session_settings_of(request.command) is not None
        keep_model = ""
        for _ in range(ATTEMPTS):
            actor = self._actors.get(key)
            if actor is None:
                try:
                    actor = await self._get_or_activate(key, request.principal, create=create, instead_of=instead_of)
                except Gone:
                    answer = await recorded_answer(self._journal, request)
                    if answer is None:
                        raise
                    return answer
                except Internal as error:
                    if not isinstance(request.command, cm.SessionDelete) or error.code not in UNREADABLE:
                        raise
                    return await self._delete_unread(request, instead_of)
            elif not self.ownership.is_confirmed(key):
                await self._confirm(actor)
            try:
                answer = await actor.execute(request, keep_model=keep_model)
            except ActorStopped:
                await actor.settled()
                continue
            except ModelSwitch as switch:
                owner = None if self._switch_model is None else await self._switch_model(key, switch.plan)
                if owner is not None:
                    raise Moved(owner) from None
                keep_model = "no_replica"
                continue
            except (BadInput, NotFound, Gone):  # written nowhere, so no fence has spoken: it may be out of date
                if await self._confirm(actor):
                    if not actor.top:
                        self._spawn(self._leave_empty(key))
                    raise
                continue
            except (Overloaded, Unavailable):
                if not actor.top:
                    self._spawn(self._leave_empty(key))
                raise
            return msgspec.structs.replace(answer, epoch=actor.epoch) if create else answer
        raise session_moving_error()

    async def _delete_unread(self, request: Request, instead_of: Owner | None) -> cm.Ok:
        """Deletes a session whose log cannot be read; only its head is needed. Raises like `execute`."""
        key, context = request.key, self._context
        head = await self._read_head(key)
        if head is None or head.deleted_at is not None:
            raise session_moving_error()  # somebody was faster: the next attempt finds the answer
        async with self.ownership.granted(key, head, instead_of=instead_of) as granted:
            about = log.bind(session=key.session, tenant=key.tenant, fence=granted.fence)
            about.warning("unreadable_session_deleted", offset=granted.top)
            info, tokenizer = self._engine.info, self._engine.tokenizer
            machine = Machine(of_head(granted), default_model=info.model, fingerprint=tokenizer.fingerprint)
            input = Command(request.principal, request.command, request.digest)
            step = observed_step(input, machine, context, about, context.now_ms())
            if not isinstance(step.answer, cm.Ok):
                raise step.answer or session_moving_error()
            writer = JournalWriter(granted, context, about, top=granted.top, snapshot_at=granted.top)
            try:
                await writer.step(step, machine.state, on_away=lambda: None)
            except Fenced:
                raise session_moving_error() from None
            self._publish(Published(key, granted.epoch, tuple(step.records)))
            with isolate_errors("kv_erasure_failed", key):  # the purge tries again
                await self.erase(key)
            return step.answer

    def watch(self, key: SessionKey, sink: Sink) -> Callable[[], None]:
        """Begins a watch as the `Sessions` port says."""
        return self.subscribers.watch(key, sink)

    async def attach(
        self, key: SessionKey, sink: Sink, on_deactivated: OnDeactivated
    ) -> tuple[Actor, Callable[[], None]] | None:
        """Watches a session that is in memory here; returns its actor and a function that ends the watch, or None if it
        is not in memory. No record falls between the returned actor's `top` and the first call of `sink`.

        `on_deactivated` (plain function) is called once when the session leaves memory. Raises Unavailable if it is in
        doubt whether the session is still ours, and the journal does not answer.
        """
        activating = self._activating.get(key)
        if activating is not None:
            await asyncio.wait((activating,))
        actor = self._actors.get(key)
        if actor is not None and not self.ownership.is_confirmed(key):
            await self._confirm(actor)
            actor = self._actors.get(key)
        return None if actor is None else (actor, self.subscribers.attach(key, sink, on_deactivated))

    def _publish(self, published: Published) -> None:
        self._gate.published(published.key, published.records)
        self._accounting.on_published(published)
        self.subscribers.publish(published)
        if any(is_given_up(record.event) for record in published.records):
            self._spawn(self._leave_given_up(published.key, published.records[-1].offset))

    # -- activation ------------------------------------------------------------------------------------------------

    def actor(self, key: SessionKey) -> Actor | None:
        return self._actors.get(key)

    def present(self, key: SessionKey) -> bool:
        """Returns whether the session is in memory here, or on its way."""
        return key in self._actors or key in self._activating

    @property
    def actors(self) -> list[Actor]:
        return list(self._actors.values())

    async def confirmed_owner(self, key: SessionKey, *, fence: int) -> Owner | None:
        """Returns our ownership of a session in memory here, or None if it is not here or not ours any more. The
        journal is asked if that is in doubt, also because our fence is older than `fence`. Raises Unavailable."""
        actor = self._actors.get(key)
        if actor is None:
            return None
        certain = self.ownership.is_confirmed(key) and actor.fence >= fence
        if not (certain or await self._confirm(actor)):
            return None
        return self.ownership.owner(key)

    @property
    def num_present(self) -> int:
        """How many sessions are in memory here, or on their way."""
        adopted = sum(key not in self._actors and key not in self._activating for key in self._adopting)
        return len(self._actors) + len(self._activating) + adopted

    def keys_present(self) -> list[SessionKey]:
        return list(dict.fromkeys((*self._actors, *self._activating)))

    def reason(self, key: SessionKey) -> str:
        """Returns in words why a session is in memory here."""
        return self._reasons.get(key, "on its way")

    def readers(self, key: SessionKey) -> int:
        """Returns how many readers watch the session through this replica."""
        return self.subscribers.count(key)

    async def recover(
        self, key: SessionKey, *, instead_of: Owner | None = None, priority: int = UNREAD
    ) -> Owner | None:
        """Activates a session so that its open turns are finished, when a recovery slot is free. Raises like
        `execute`."""
        await self._gate.enter(priority)
        try:
            actor = self._actors.get(key)
            if actor is None:
                actor = await self._get_or_activate(key, None, create=False, instead_of=instead_of)
        except BaseException:
            self._gate.leave()
            raise
        if actor.open and self._actors.get(key) is actor:
            self._gate.hold(key)
        else:
            self._gate.leave()
        return self.ownership.owner(key)

    def _wake(self, key: SessionKey) -> None:
        """Activates a session that left memory with paused answers, because it is read again."""

        async def wake() -> None:
            with isolate_errors("wake_failed", key), contextlib.suppress(Moved):
                await self.recover(key, priority=READ)

        if not self._closing:
            self._spawn(wake())

    def left_paused(self, head: Head) -> bool:
        """Returns whether a session left memory here with all its open answers paused (orphan policy), and has had no
        owner since."""
        return self.subscribers.left_paused(head)

    async def adopt(self, key: SessionKey, source: Owner) -> Owner:
        """Takes over a session in a hand-off, after the source's seal; returns its owner. Raises Moved,
        SessileError."""
        self._adopting.add(key)
        try:
            return await self._adopt(key, source)
        finally:
            self._adopting.discard(key)

    async def _adopt(self, key: SessionKey, source: Owner) -> Owner:
        for _ in range(ATTEMPTS):
            head = await self._journal.head(key)
            if head is None:
                raise not_found(key)
            older = self._actors.get(key)
            if older is not None and older.fence != head.fence:  # of ours, which has not learnt of its end
                older.lost()
            try:
                await self._activate_once(key, head, source, "handoff")
            except Moved as moved:  # an attempt for a command was under way, which could not replace the source
                if moved.owner != source:
                    raise
                continue
            owner = self.ownership.owner(key)
            if owner is not None:
                return owner
        raise session_moving_error()

    def hand_over(self, key: SessionKey, owner: Owner) -> None:
        """Ends a hand-off at the source: the session is `owner`'s now, and its actor here ends."""
        actor = self._actors.get(key)
        if actor is not None:
            self._successors[key] = owner
            actor.hand_over()

    async def _get_or_activate(
        self, key: SessionKey, principal: Principal | None, *, create: bool, instead_of: Owner | None = None
    ) -> Actor:
        """Returns the session's actor. The first caller activates it; others wait for the same attempt."""
        task = self._activating.get(key)
        if task is None:
            if self._closing or self.draining:
                raise shutting_down()
            head = await self._read_head(key)
            if head is None or head.top == 0:
                if not create:
                    raise not_found(key)
            elif principal is not None and not may_see(principal, key, head.user):
                raise not_found(key)
            elif head.deleted_at is not None and not create:
                raise deleted(key)
            return await self._activate_once(key, head, instead_of, None)
        return await self._activating.join(task)

    async def _read_head(self, key: SessionKey) -> Head | None:
        """Returns a session's head. Callers at the same time share one reading, and go on in the order in which they
        came."""
        reading = self._head_reads.get(key) or self._head_reads.begin(key, self._journal.head(key))
        return await self._head_reads.join(reading)

    async def _activate_once(
        self, key: SessionKey, head: Head | None, instead_of: Owner | None, cause: Literal["handoff"] | None
    ) -> Actor:
        actor = self._actors.get(key)
        if actor is not None:
            return actor
        task = self._activating.get(key)
        if task is None:
            await self._make_room()
        task = self._activating.get(key)
        if task is None:
            if self._closing:
                raise shutting_down()
            task = self._activating.begin(key, self._activate(key, head, instead_of, cause))
        return await self._activating.join(task)

    async def _make_room(self) -> None:
        """Passivates idle actors, the longest idle first, while there are too many. Raises Overloaded if none is
        idle."""
        while len(self._actors) + len(self._activating) >= self.limits.actors_max:
            idle = [actor for actor in self._actors.values() if not actor.busy]
            if not idle:
                raise Overloaded("overloaded", "Every session in memory is busy.", retry_after_ms=1_000)
            await self.passivate(min(idle, key=lambda actor: actor.active_at).key)

    async def _activate(
        self, key: SessionKey, head: Head | None, instead_of: Owner | None, cause: Literal["handoff"] | None
    ) -> Actor:
        begun_at = asyncio.get_running_loop().time()
        async with self._activation_slots:
            taken = await self.ownership.acquire(key, head, instead_of=instead_of)
            loaded, granted = taken.loaded, taken.head
            machine = Machine(
                taken.state,
                loaded.commands,
                default_model=self._engine.info.model,
                fingerprint=self._engine.tokenizer.fingerprint,
                smaller_model=self._engine.info.smaller_model,
                forgetful=not loaded.commands_complete,
                prices=self._accounting.prices,
                takes_tools=self._engine.info.takes_tools,
            )
            snapshot_at = loaded.snapshot.offset if loaded.snapshot is not None else 0
            actor = Actor(machine, granted, self._context, on_end=self._deactivated, snapshot_at=snapshot_at)
            self._actors[key] = actor
            self.subscribers.activated(actor)
            me = self.identity.replica
            self._reasons[key] = activation_reason(head, me, instead_of, handed_off=cause is not None)
            same = head is not None and last_replica(head) == me
            actor.post(Activated(me, cause or ("restart" if same else "failover")))
            why = activation_cause(head, same=same, replaced=instead_of is not None, handed_off=cause is not None)
            self.metrics.activated(why, asyncio.get_running_loop().time() - begun_at)
            log.info(
                "session_activated", session=key.session, tenant=key.tenant, fence=granted.fence, epoch=granted.epoch
            )
        self._spawn(self._notify_watchers(key, taken.owner))
        return actor

    async def _notify_watchers(self, key: SessionKey, owner: Owner) -> None:
        try:
            await self._directory.activated(key, owner)
        except SessileError as error:  # they look again once per TTL
            log.warning("watcher_notification_failed", session=key.session, tenant=key.tenant, error=error.code)

    # -- confirmation
    # -----------------------------------------------------------------------------------------------------

    async def _confirm(self, actor: Actor) -> bool:
        """Returns whether the journal says that an actor's session is still ours; if not, the actor is ended. Raises
        Unavailable."""
        ours = await self.ownership.confirm(actor.key, actor.fence)
        if not ours:
            actor.lost()
        return ours

    async def _monitor_ownership(self) -> None:
        """Looks periodically for signs that sessions here may have other owners, or other logs: this process stood
        still, or the journal went back (a restored backup). Then every session is confirmed again."""
        incarnation = self._journal.incarnation
        while True:
            if self.ownership.tick():
                self.reconfirm("stood_still")
            if self._journal.incarnation != incarnation:
                incarnation = self._journal.incarnation
                self.reconfirm("journal_went_back")
            await asyncio.sleep(TICK_S)

    def reconfirm(self, why: str) -> None:
        """Has every session here confirmed by the journal before anything is answered for it: others may have taken
        them."""
        log.warning("ownership_questioned", why=why, actors=len(self._actors))
        self.ownership.invalidate()
        self._spawn(self._confirm_all(self.actors))

    async def reclaim(self, among: Callable[[SessionKey], bool] | None = None) -> None:
        """Claims sessions again by `Ownership.reclaim`. If the directory names another owner, the journal decides. A
        session that is not ours any more leaves memory (one that waits for a tool would otherwise stay for long). If it
        is ours, the other owner was replaced without noticing; it is asked about the session, so that it finds out and
        its readers do not wait there. Raises Unavailable."""
        contested = await self.ownership.reclaim(among)
        actors = [actor for key in contested if (actor := self._actors.get(key)) is not None]
        await self._confirm_all(actors)
        ours = [actor for actor in actors if self.ownership.is_confirmed(actor.key)]
        await asyncio.gather(*(self._question_owner(each.key, contested[each.key], each.fence) for each in ours))

    async def _confirm_all(self, actors: list[Actor]) -> None:
        slots = asyncio.Semaphore(CONFIRMATIONS_AT_ONCE)

        async def confirm(actor: Actor) -> None:
            async with slots:
                if not self.ownership.is_confirmed(actor.key):
                    try:
                        await self._confirm(actor)
                    except SessileError as error:  # confirmed again before anything is answered for it
                        log.warning("confirmation_failed", session=actor.key.session, error=error.code)

        await asyncio.gather(*(confirm(actor) for actor in actors))

    # -- leaving memory --------------------------------------------------------------------------------------------

    async def passivate(self, key: SessionKey) -> None:
        """Takes one session out of memory once everything of it is durable; then its KV may be spilled."""
        async with self._passivation_slots:
            actor = self._actors.get(key)
            if actor is not None:
                await actor.passivate()
                await self._engine.park(key)

    async def _leave_empty(self, key: SessionKey) -> None:
        """Takes an empty session out of memory, after its first request was refused."""
        actor = self._actors.get(key)
        if actor is not None and not actor.busy and not actor.top:
            with isolate_errors("passivation_failed", key):
                await self.passivate(key)

    async def _leave_given_up(self, key: SessionKey, top: int) -> None:
        """Takes an unlisted session out of memory whose client has left it at the offset `top`, unless it goes on. Its
        KV keeps its rank: a client that pressed stop may come back with the same history."""
        actor = self._actors.get(key)
        if actor is None or actor.listed:
            return
        await actor.written()
        async with self._passivation_slots:
            if self._actors.get(key) is actor and not actor.busy and actor.top == top:
                with isolate_errors("passivation_failed", key):
                    await actor.passivate()

    async def erase(self, key: SessionKey) -> None:
        """Erases a deleted session's KV, here and on the other replicas, and its answers in the result cache."""
        if self._context.results is not None:
            await self._context.results.forget_session(key)
        try:
            await self._engine.release(key)
        finally:
            await self._announce_deletion(key)

    async def forget_results(self, tenant: TenantId) -> None:
        """Forgets all answers of a tenant in the result cache. Raises Unavailable, OutcomeUnknown."""
        if self._context.results is not None:
            await self._context.results.forget_tenant(tenant)

    def _deactivated(self, actor: Actor) -> None:
        if self._actors.get(actor.key) is actor:
            del self._actors[actor.key]
            self._reasons.pop(actor.key, None)
            self._gate.done(actor.key)
            owner = self.ownership.drop(actor.key)
            successor = self._successors.pop(actor.key, None)
            # A successor has claimed it already, unless it was taken while the directory was away.
            self._spawn(self.ownership.release(actor.key, owner))
            self.subscribers.deactivated(actor, successor)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.create_task(work)


def _log_failed_activation(key: SessionKey, error: Exception) -> None:
    log.info("activation_failed", session=key.session, tenant=key.tenant, error=str(error))
