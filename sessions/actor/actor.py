"""The shell around one session's machine: mailbox, appends in order, turns as tasks, answers after durability.

    commands ─► control lane (cancel, warm) ─┐
    commands ─► data lane, bounded ──────────┼─► drain task ─► step ─► append ─► publish, answer, start, stop
    turns ────► ready outputs, endings ──────┘   (only while there is work: an idle actor has no task)

Invariants. One append at a time, in step order; nothing is published or answered before its append is durable (I2).
When an append is refused (I1) the actor is fenced: it shows nothing more and throws its state away. When the journal is
away, nothing is published; steps that are not durable yet are tried again (`sessions.actor.journal_writer`), and
commands are answered with `journal_unavailable`.

States: WARM → SEALED (by a hand-off: no new commands; what is here is finished) → GONE, or WARM again; WARM → PARKING
(by a passivation: the same, and a snapshot) → GONE; FENCED can follow each of them and is the end. Either a hand-off or
a passivation takes an actor out of WARM, never both. Once it has come to rest in SEALED or PARKING, nothing wakes it:
the hand-off's target relies on the log's end, and a passivation's snapshot is the only append under way.

Around it: `RunningTurns` writes answers, `Compactor`, `Titles`, `ToolRunner` and `KvHints` are the background work. All
of it comes back through `post` or `ready`, as inputs of the machine like any other.

Does not know: how a session is claimed, who its readers are, transports.
"""

from __future__ import annotations

import asyncio
import enum
from array import array
from collections.abc import Callable

import structlog
from msgspec import UNSET

from sessions.actor.actor_context import ActorContext
from sessions.actor.admission import admitted
from sessions.actor.compactor import Compactor
from sessions.actor.input_pipeline import prepare_input
from sessions.actor.journal_writer import JournalWriter
from sessions.actor.kv_hints import KvHints
from sessions.actor.mailbox import (
    ActorStopped,
    Envelope,
    Mailbox,
    ModelSwitch,
    error_for_sender,
    journal_unavailable_error,
    mailbox_full_error,
)
from sessions.actor.model_router import with_receipt
from sessions.actor.push_decision import concerns_user, push_notice
from sessions.actor.result_finder import ResultFinder
from sessions.actor.running_turns import RunningTurns
from sessions.actor.step_observer import observed_step, record_cases
from sessions.actor.title_writer import Titles, TitleWriter
from sessions.actor.tool_runner import ToolRunner
from sessions.actor.turn_knowledge import deleted_documents
from sessions.machine import inputs_and_effects
from sessions.machine.inputs_and_effects import Step
from sessions.machine.machine import Machine
from sessions.model import commands as cm
from sessions.model.errors import Fenced, Overloaded, SessileError, Unavailable
from sessions.model.generation import is_attended
from sessions.model.journal_types import Head
from sessions.model.request import Request
from sessions.model.types import ResponseId, SessionKey
from sessions.ports import Published
from sessions.turn.generation_task import GenerationRun, GenerationTask
from sessions.turn.ledger import Ledger
from sessions.turn.output_accumulator import OutputAccumulator
from sessions.turn.run_timing import count_ended

log = structlog.get_logger(__name__)

TOOL_PATIENCE_S = 5.0  # a server tool that takes longer is broken off when its session leaves
CACHED_PATIENCE_S = 0.02  # a filter that takes longer has the rest of a cached answer appended by itself
_STOPS_EXTRAS = cm.TurnCommand | cm.ItemDelete | cm.ResponseErase


class Phase(enum.Enum):
    WARM = "warm"
    SEALED = "sealed"
    PARKING = "parking"
    GONE = "gone"
    FENCED = "fenced"


class Actor:
    """One session in memory. The runtime makes it once its grant is committed and its log is loaded. It is large
    because order is its whole task: every command, effect and end of a session passes through its one mailbox. What
    needs no order is in objects of its own (`Mailbox`, `RunningTurns`, `Titles`, `KvHints`)."""

    def __init__(
        self, machine: Machine, head: Head, context: ActorContext, *, on_end: Callable[[Actor], None], snapshot_at: int
    ) -> None:
        self.key: SessionKey = head.key
        self.epoch = head.epoch
        self.fence = head.fence
        self.phase = Phase.WARM
        self._loop = asyncio.get_running_loop()
        self.active_at = self._loop.time()
        self._machine = machine
        self._context = context
        self._on_end = on_end
        self._ledger = Ledger(
            machine.state,
            context.engine.tokenizer,
            context.engine.info,
            tenant_policy=context.limits.context_policy,
            answer_room=context.limits.answer_room,
            answer_tokens=context.limits.answer_tokens,
        )
        self._log = log.bind(session=self.key.session, tenant=self.key.tenant, fence=self.fence, epoch=self.epoch)
        self._mailbox = Mailbox(context.limits.mailbox_commands)
        self._released: list[OutputAccumulator | inputs_and_effects.Input] = []  # by turns and background work
        self._turns = RunningTurns(self._log, self._wake_to_leave)
        self._tools = ToolRunner(machine.state, self._ledger, context, self.post)
        self._compactor = Compactor(machine.state, self._ledger, context, self.post)
        self._titles = Titles(TitleWriter(machine.state, self._ledger, context), self.post)
        self._hints = KvHints(machine.state, self._ledger, context, self._is_warm)
        self._results: ResultFinder | None = None
        if context.results is not None:
            self._results = ResultFinder(head.key, machine, self._ledger, context, context.results)
        self._drain: asyncio.Task[None] | None = None
        self._wakeup: asyncio.Future[None] | None = None  # the drain waits on it while a turn is under way
        self._at_rest = False  # sealed or parking, and nothing is written any more
        self._passivation: asyncio.Task[None] | None = None
        self._sealed_off: list[asyncio.Future[None]] = []
        self._appending = JournalWriter(head, context, self._log, top=machine.state.top, snapshot_at=snapshot_at)

    # -- for the runtime -----------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether the actor must stay in memory: a turn is open and not paused, or commands, outputs or appends are in
        work."""
        return bool(self._machine.at_work or self._mailbox or self._released or self._drain)

    def _is_warm(self) -> bool:
        return self.phase is Phase.WARM

    @property
    def top(self) -> int:
        """The offset of the last durable record."""
        return self._appending.top

    @property
    def open(self) -> tuple[ResponseId, ...]:
        """The ids of the open responses, whether or not an engine runs for them."""
        return tuple(self._machine.state.open)

    @property
    def listed(self) -> bool:
        """Whether lists show the session."""
        return self._machine.state.listed

    @property
    def is_attended(self) -> bool:
        """Whether at least one open response is written for a client that waits for it."""
        return any(is_attended(open_.body.request) for open_ in self._machine.state.open.values())

    @property
    def in_turn(self) -> bool:
        """Whether at least one turn is open: answers are written, or wait, or tools run."""
        return self._machine.state.busy

    @property
    def is_generating(self) -> bool:
        """Whether an engine has produced a token for at least one open response."""
        return self._turns.is_generating

    @property
    def generated(self) -> int:
        """How many tokens the runs under way have produced so far."""
        return self._turns.generated

    async def ledgers(self) -> list[array[int]]:
        """Returns the prompts, as token ids, for which the session's KV is worth keeping: one for each open response
        that this replica's model writes (a smaller model's KV stays where it is), or, if there is none, that of the
        newest branch. Raises BadInput if one does not fit the context window."""
        state = self._machine.state
        written = [open_ for open_ in state.open.values() if not self._machine.other_model(open_)]
        if written:
            return [(await self._ledger.plan(open_)).prompt for open_ in written]
        return [await self._ledger.whole(state.newest)] if state.info is not None else []

    @property
    def user(self) -> str | None:
        return self._machine.state.user

    async def execute(self, request: Request, *, keep_model: str = "") -> cm.Ok:
        """Runs a command and returns its journaled answer. Raises the command's error, ActorStopped when the actor is
        leaving, and ModelSwitch if the session must go to another model first. `keep_model`, if not empty, is the
        reason why it could not go; then no switch is tried.

        Cancelling this call does not take the command back (I5: repeat it by its id).
        """
        if self.phase is not Phase.WARM:
            raise ActorStopped
        if self._appending.away:
            raise journal_unavailable_error()
        envelope = Envelope(request, self._loop.create_future(), keep_model)
        self._mailbox.put(envelope)
        self._wake()
        try:
            return await envelope.answer
        finally:
            del envelope  # holds its error, whose traceback holds this frame

    async def seal(self) -> None:
        """Takes no more commands, finishes those that are here, and stops turns where they are; does nothing if the
        actor is leaving already.

        Afterwards nothing more is appended under this fence; the log has everything that turns had released, and open
        responses are still open in it. Inputs from turns, timers and readers wait meanwhile. The caller must then call
        `unseal`, or end the actor.
        """
        if self.phase is Phase.WARM:
            self.phase = Phase.SEALED
            self._compactor.leave()
            await self._stop_writing()

    async def _stop_writing(self) -> None:
        """Stops the turns of an actor that is no longer WARM; returns when everything that they released is durable."""
        self._stop_extras()
        self._turns.stop_all()
        await self._turns.join()
        await self._come_to_rest()
        await self._tools.leave(TOOL_PATIENCE_S)
        await self._come_to_rest()
        self._at_rest = self.phase in (Phase.SEALED, Phase.PARKING)

    async def _come_to_rest(self) -> None:
        self._wake_to_leave()
        while self._drain is not None:
            await asyncio.wait((self._drain,))
            self._turns.stop_all()
            await self._turns.join()

    def unseal(self) -> None:
        """Goes on after a seal: open responses are continued from the end of the log."""
        if self.phase is Phase.SEALED:
            self.phase = Phase.WARM
            self._at_rest = False
            self.post(inputs_and_effects.ResponsesPaused())
            self.post(inputs_and_effects.ResponsesResumed())
            self._tools.come_back()
            self._compactor.come_back()
            self._settle()

    async def settled(self) -> None:
        """Waits until a sealed actor goes on here or has ended, or a parking one has ended; returns at once for others.
        Raises Overloaded when too many callers wait."""
        if self.phase in (Phase.SEALED, Phase.PARKING):
            if len(self._sealed_off) >= self._context.limits.mailbox_commands:
                raise mailbox_full_error()
            decided = self._loop.create_future()
            self._sealed_off.append(decided)
            await decided

    def _settle(self) -> None:
        for decided in self._sealed_off:
            if not decided.done():
                decided.set_result(None)
        self._sealed_off.clear()

    def hand_over(self) -> None:
        """Ends this actor after a seal, once another replica has been granted the session."""
        self._end(Phase.GONE)

    def lost(self) -> None:
        """Ends this actor as fenced: the journal says that another owner holds the session."""
        self._log.warning("actor_fenced", error="found out by reading")
        self._end(Phase.FENCED)

    async def written(self) -> None:
        """Waits until no answer is being written here and everything written is durable."""
        while tasks := [*self._turns.tasks(), *([self._drain] if self._drain is not None else [])]:
            await asyncio.wait(tasks)

    async def passivate(self) -> None:
        """Leaves memory with everything durable; writes a snapshot when the log has grown. If a hand-off is under way
        the call waits for its outcome first, and writes no snapshot if it succeeds. A second call waits for the first
        one to end; cancelling a call does not undo it."""
        if self._passivation is None:
            self._passivation = self._loop.create_task(self._passivate())
        await asyncio.shield(self._passivation)

    async def _passivate(self) -> None:
        try:
            await self._park()
            while self.phase is Phase.WARM:  # a hand-off that had sealed it has failed meanwhile
                await self._park()
            if self.phase is Phase.PARKING:
                await self._appending.leave(self._machine.state)
        finally:
            self._end(Phase.GONE)

    async def _park(self) -> None:
        if self.phase is Phase.WARM:
            self.phase = Phase.PARKING
            self._compactor.leave()
        await self._stop_writing()

    def leaves_soon(self) -> None:
        """Has the next append carry a snapshot, since another replica is about to load the log."""
        self._appending.snapshots.soon()

    def readers_left(self, *, cancel: bool) -> None:
        """Cancels the open responses, or pauses them, because nobody has read them for as long as the orphan policy
        allows."""
        self.post(inputs_and_effects.Orphaned() if cancel else inputs_and_effects.ResponsesPaused())

    def client_left(self) -> None:
        """Cancels the open responses that a client waited for, because nobody reads them and the client's gateway is
        gone."""
        self.post(inputs_and_effects.Orphaned(attended_only=True))

    def readers_back(self) -> None:
        self.post(inputs_and_effects.ResponsesResumed())

    # -- from turns ------------------------------------------------------------------------------------------

    def ready(self, output: OutputAccumulator) -> None:
        self._released.append(output)
        self._wake()

    def post(self, input: inputs_and_effects.Input) -> None:
        self._released.append(input)
        self._wake()

    def prompted(self, response_id: ResponseId, input_tokens: int, cached_tokens: int) -> None:
        self._machine.prompted(response_id, input_tokens, cached_tokens)

    # -- the drain -----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._drain is None:
            if self.phase in (Phase.WARM, Phase.SEALED, Phase.PARKING) and not self._at_rest:
                self._drain = self._context.spawn(self._work())
        elif self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _wake_to_leave(self) -> None:
        """Wakes the drain task, if there is one, so that it ends when nothing is left to do."""
        if self._drain is not None:
            self._wake()

    async def _work(self) -> None:
        mailbox = self._mailbox
        try:
            while True:
                if mailbox.control:
                    await self._command(mailbox.control.pop(0))
                elif self._released:
                    await self._advance_engines()
                    if mailbox.data:  # an answer that always has something to say leaves room for commands
                        await self._command(mailbox.data.pop(0))
                elif mailbox.data:
                    await self._command(mailbox.data.pop(0))
                elif self._turns.running and self.phase is Phase.WARM:
                    self._wakeup = self._loop.create_future()  # more will come: cheaper than a task for each of it
                    await self._wakeup
                else:
                    return
        except Fenced as error:
            self._log.warning("actor_fenced", error=error.public_message)
            self._end(Phase.FENCED)
        except (Unavailable, Overloaded) as error:
            self._log.error("journal_abandoned", error=error.public_message)
            self._end(Phase.FENCED)
        except asyncio.CancelledError:
            self._end(Phase.FENCED)
            raise
        except Exception:  # noqa: BLE001 - the boundary of a task: one session fails, not the replica
            self._log.exception("actor_failed")
            self._end(Phase.FENCED)
        finally:
            self._drain = None
            self.active_at = self._loop.time()

    async def _advance_engines(self) -> None:
        """Commits everything that engines have released so far as one atomic write."""
        step = self._take_released(None)
        if step is not None:
            await self._commit(step)
            if not self._machine.state.open and self.phase is Phase.WARM:
                self._compactor.resume()

    def _take_released(self, step: Step | None) -> Step | None:
        """Returns `step`, extended by everything that engines have released so far; None if there is no step and
        nothing was released."""
        now = self._context.now_ms()
        while self._released:
            item = self._released.pop(0)
            input = item.take() if isinstance(item, OutputAccumulator) else item
            if input is not None:
                later = observed_step(input, self._machine, self._context, self._log, now)
                if step is None:
                    step = later
                else:
                    step.then(later)
        return step

    async def _command(self, envelope: Envelope) -> None:
        step: Step | None = None
        try:
            step = await self._step_command(envelope.request, envelope.keep_model)
            await self._commit(step, envelope)
        except BaseException as error:
            envelope.reply(error_for_sender(error))
            if step is None and isinstance(error, Unavailable | Overloaded | ModelSwitch):
                self._after_command(envelope.request, None)
                return  # nothing was decided yet
            raise
        self._after_command(envelope.request, step)
        if step.answer is not None:
            envelope.reply(step.answer)

    def _after_command(self, request: Request, step: Step | None) -> None:
        """Starts or stops the background work (warming, summaries) that a finished command calls for."""
        answer = step.answer if step is not None else None
        if isinstance(request.command, cm.SessionWarm) and isinstance(answer, cm.Ok):
            self._hints.turn_expected()
        if self.phase is Phase.WARM:
            if isinstance(request.command, cm.ItemDelete | cm.ResponseErase) and isinstance(answer, cm.Ok):
                self._compactor.consider(request.principal)
                return
            if isinstance(request.command, cm.CompactionUndo) and step is not None:
                self._after_undo(request.command, step)
            self._compactor.resume()

    def _after_undo(self, command: cm.CompactionUndo, step: Step) -> None:
        if isinstance(step.answer, SessileError):
            if step.answer.code == "compaction_not_found":
                self._compactor.undone(command.compaction_id)
        elif step.commands:  # else it is a repeat
            self._compactor.undone(None)

    async def _step_command(self, request: Request, keep_model: str) -> Step:
        """Prepares a command (filters, tokens) and has the machine apply it. A repeated command is answered without
        preparing anything."""
        machine, principal, command = self._machine, request.principal, request.command
        input = inputs_and_effects.Command(principal, command, request.digest)
        if not machine.is_visible_to(principal):  # nothing of it is looked at
            return observed_step(input, machine, self._context, self._log, self._context.now_ms())
        if isinstance(command, _STOPS_EXTRAS):
            self._stop_extras()  # they have read what is taken back
        elif isinstance(command, cm.CompactionUndo) or _sets_policy(command):
            self._compactor.stop()  # what it writes may have read what is undone, or not be due any more
        if machine.known(principal, command.id) is None and machine.forgetful:
            answered = await self._context.journal.find_command(self.key, principal.id, command.id)
            if answered is not None:
                machine.remember(answered)
        if machine.known(principal, command.id) is None:
            router = self._context.router
            directed = None if router is None else router.direct(machine, request, keep_model=keep_model)
            if directed is not None and directed.switch is not None:
                raise ModelSwitch(directed.switch)
            input = with_receipt(input, directed)
            if input.refused is None:
                input = await prepare_input(input, ledger=self._ledger, context=self._context)
            if not machine.continues_turn(command):
                expected = self._results is None or not self._results.may_find(command)
                input = admitted(self._context.limits.admission, self.key, input, expected=expected)
        return observed_step(input, machine, self._context, self._log, self._context.now_ms())

    def _stop_extras(self) -> None:
        """Stops the summaries and titles that are being written. (They are extras: the turns do not need them.)"""
        self._compactor.stop()
        self._titles.stop()

    async def _erase(self) -> None:
        try:
            await self._context.erase(self.key)
        except Exception:  # noqa: BLE001 - the purge asks again
            self._log.exception("kv_erasure_failed")

    # -- writing ---------------------------------------------------------------------------------------------------

    async def _commit(self, step: Step, envelope: Envelope | None = None) -> None:
        """Makes a step durable, publishes it, then performs its effects.

        If nothing has to be stopped first, engines already start while the append is under way. Their output waits
        until the step is durable (I2), and is thrown away with the actor if the append is refused.
        """
        await self._take_back_deleted(step)
        effects = step.effects
        if effects:
            cached = [] if self._results is None else await self._results.look_up(step)
            if all(isinstance(effect, inputs_and_effects.Start) for effect in effects):
                self._perform_all(effects)
                effects = await self._join_cached(step, cached) if cached else []
        if step.durable:
            begun_at = self._loop.time()
            if self._context.unread is not None and concerns_user(step) and self._context.unread(self.key):
                step.push = push_notice(step, self._machine.state)
            await self._appending.step(step, self._machine.state, on_away=lambda: self._fail_waiting(envelope))
            if step.reviews:
                record_cases(step.reviews, self._context.metrics, self._log)
            if step.usage:
                count_ended(self._context.metrics, self.key.tenant, step, self._loop.time() - begun_at)
            if step.records:
                self._context.publish(Published(self.key, self.epoch, tuple(step.records)))
            if self._results is not None and (step.usage or step.audit):  # a delta has neither
                self._results.after(step)
            if step.usage and self.phase is Phase.WARM:
                self._titles.consider(step)
                self._compactor.consider(step.usage[-1].principal)
        if effects:
            self._perform_all(effects)

    async def _take_back_deleted(self, step: Step) -> None:
        """Extends a step that begins an answer by the retraction of passages whose documents are deleted by now. The
        answer's prompt is made afterwards, whatever has begun it: a command, a tool's output, a place in the queue."""
        deleted = await deleted_documents(self._context.knowledge, self._machine.state, step)
        if deleted is not None:
            later = observed_step(deleted, self._machine, self._context, self._log, self._context.now_ms())
            later.answer = step.answer
            step.then(later)

    async def _join_cached(self, step: Step, responses: list[ResponseId]) -> list[inputs_and_effects.Effect]:
        """Adds the outputs of cached answers to the step that begins their responses, as far as they are ready within
        CACHED_PATIENCE_S. Returns the effects that these outputs ask for."""
        if tasks := self._turns.tasks(responses):
            await asyncio.wait(tasks, timeout=CACHED_PATIENCE_S)
        answer, step.answer, step.effects = step.answer, None, []
        self._take_released(step)
        step.answer = answer
        return step.effects

    def _fail_waiting(self, envelope: Envelope | None) -> None:
        if envelope is not None:
            envelope.reply(journal_unavailable_error())
        self._mailbox.answer_all(journal_unavailable_error())

    # -- effects -----------------------------------------------------------------------------------------------------

    def _perform_all(self, effects: list[inputs_and_effects.Effect]) -> None:
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: inputs_and_effects.Effect) -> None:
        match effect:
            case inputs_and_effects.Start():
                self._start(effect)
            case inputs_and_effects.Stop():
                self._turns.stop(effect.response_id)
            case inputs_and_effects.ArmToolDeadline():
                self._tools.arm_deadline(effect)
                self._hints.tools_called(effect.response_id)
            case inputs_and_effects.RunTools():
                self._tools.run(effect.response_id)
            case inputs_and_effects.SendToolCall():
                self._tools.send(effect.response_id, effect.call_id)
            case inputs_and_effects.StopTools():
                self._tools.stop(effect.response_id)
            case inputs_and_effects.Compact():
                self._compactor.request(effect)
            case inputs_and_effects.ShortenedContext():
                if self.phase is Phase.WARM:
                    self._compactor.consider(prefill=True)
            case inputs_and_effects.Erase():
                self._end(Phase.GONE)
                self._context.spawn(self._erase())

    def _start(self, start: inputs_and_effects.Start) -> None:
        open_ = self._machine.state.open.get(start.response_id)
        if open_ is None or self.phase is not Phase.WARM:
            return
        self._hints.cancel()
        context = self._context
        run = GenerationRun(
            key=self.key,
            open_=open_,
            generation=start.generation,
            model=self._machine.other_model(open_),
            share=context.limits.share(open_.principal),
            lookup=self._results.lookup_of(start) if self._results is not None else None,
        )
        turn = GenerationTask(
            run,
            self._ledger,
            engine=context.engine,
            schemas=context.schemas,
            filters=context.filters,
            inbox=self,
            limits=context.limits.turn,
            metrics=context.metrics,
        )
        behind = None if start.behind is None else self._turns.running.get(start.behind)
        self._turns.add(turn, context.spawn(turn.run(behind)))

    def _end(self, phase: Phase) -> None:
        """Ends the actor for good: turns stop, and senders whose commands wait get ActorStopped, so that they look the
        session up again."""
        if self.phase in (Phase.GONE, Phase.FENCED):
            return
        self.phase = phase
        if phase is Phase.FENCED:
            self._context.metrics.fenced.add()
        self._stop_extras()
        self._tools.stop_all()
        self._turns.stop_all()
        self._wake_to_leave()
        self._hints.cancel()
        self._mailbox.answer_all(ActorStopped())
        self._released.clear()
        self._on_end(self)
        self._settle()


def _sets_policy(command: cm.ActorCommand) -> bool:
    return isinstance(command, cm.SessionUpdate) and command.context_policy is not UNSET
