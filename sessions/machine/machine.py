"""The pure session machine: `step(input) -> Step`, no I/O, no clock, no chance, no await.

Decides everything that happens in a conversation: what a command does to the item tree, when a response may start, what
each engine output becomes in the log, what is left to do after a crash. The shell (sessions.actor.actor) runs a step in
order: first makes its records durable (I2), then gives the answers, then starts and stops engines.

Invariants: every accepted command gets exactly one answer (I5, I7); each response ends in exactly one terminal event;
at most one open response per branch; after a response ended nothing is written for it. `step` advances the state in
place: when its append turns out to be refused, the whole machine is thrown away with it.

Ids are derived from (session, principal, command id), so a command that is applied by two activations one after the
other makes the same ids. If one of them exists already, the command was applied before, though its answer is forgotten,
and it is refused. Does not know: tokens' meaning, engines, filters, storage, who reads. After: etcd/raft's step
function; the actor model of Hewitt; OpenAI's Responses for what a response is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from sessions.billing.prices import PriceBook
from sessions.machine import (
    appeals,
    compaction,
    feedback,
    message_commands,
    model_routing,
    responses,
    server_tools,
    session_commands,
    steering,
    turn_commands,
)
from sessions.machine.inputs_and_effects import (
    Activated,
    Command,
    CompactionGivenUp,
    CompactionWritten,
    DocumentsDeleted,
    Fitted,
    GenerationFailed,
    GenerationFinished,
    GenerationStopped,
    Input,
    ModelChosen,
    Orphaned,
    Output,
    ResponsesPaused,
    ResponsesResumed,
    Step,
    TitleWritten,
    ToolAnswered,
    ToolApprovalNeeded,
    ToolDeadline,
    ToolProgressed,
    ToolStarting,
)
from sessions.machine.state import Open, State
from sessions.machine.step_builder import ActiveRuns, MachineConfig, StepBuilder
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.authorization import deleted, may_see, not_found
from sessions.model.errors import Conflict, SessileError
from sessions.model.generation import is_attended
from sessions.model.journal_types import COMMANDS_LOADED_MAX, CommandRecord, HeadPatch
from sessions.model.request import answer_of
from sessions.model.types import CommandId, Principal, ResponseId, UnixMs, Usage, derived_session_id

ITEMS_MAX = 20_000
# Commands that a full session still takes.
_ALWAYS = (
    cm.SessionDelete
    | cm.ResponseCancel
    | cm.ResponseErase
    | cm.ToolApprove
    | cm.ItemDelete
    | cm.ReviewAppeal
    | cm.ReviewNotify
    | cm.FeedbackSet
    | cm.SessionCompact
    | cm.CompactionUndo
)
# Commands whose items and responses have ids that follow from the command's id.
_NAMING = cm.MessageCreate | cm.MessageEdit | cm.ResponseCreate | cm.ResponseSteer | cm.ToolOutput | cm.TurnCreate


class Machine:
    """The machine of one session. It belongs to its actor and is not thread-safe; see the module's docstring."""

    def __init__(
        self,
        state: State,
        commands: Iterable[CommandRecord] = (),
        *,
        default_model: str,
        fingerprint: str,
        smaller_model: str = "",
        forgetful: bool = False,
        prices: PriceBook | None = None,
        takes_tools: bool = True,
    ) -> None:
        self.state = state
        self.forgetful = forgetful  # the journal knows of applied commands that this machine does not
        self._config = MachineConfig(
            default_model=default_model,
            fingerprint=fingerprint,
            smaller_model=smaller_model,
            prices=prices,
            takes_tools=takes_tools,
        )
        self._runs = ActiveRuns()
        self._applied = {(record.principal_id, record.command_id): record for record in commands}
        self._head: HeadPatch | None = None

    def step(self, input: Input, now: UnixMs) -> Step:
        """Advances the state and returns what must be done about it. Never raises for bad commands or failed
        engines."""
        build = StepBuilder(self.state, Step(), max(now, self.state.at), self._config, self._runs)
        match input:
            case Output():
                responses.write_output(build, input)
                return build.out
            case Command():
                self._command(build, input)
            case GenerationFinished():
                responses.finish(build, input)
            case GenerationFailed():
                responses.fail(build, input)
            case GenerationStopped():
                responses.open_cases(build, input)
            case Fitted():
                if responses.current(build, input.response_id, input.generation) is not None:
                    fitted = ev.ContextFitted(response_id=input.response_id, dropped=input.dropped)
                    build.put(fitted, ev.Private(cut=input.cut))
            case Activated():
                responses.activate(build, input)
            case ToolDeadline():
                server_tools.time_out(build, input)
            case ToolStarting():
                server_tools.start_call(build, input)
            case ToolApprovalNeeded():
                server_tools.request_approval(build, input)
            case ToolAnswered():
                server_tools.answer_call(build, input)
            case ToolProgressed():
                server_tools.note_progress(build, input)
            case Orphaned():
                for open_ in list(self.state.open.values()):
                    if not input.attended_only or is_attended(open_.body.request):
                        responses.end_incomplete(build, open_, "orphaned")
            case ResponsesPaused():
                responses.pause_all(build)
            case ResponsesResumed():
                responses.start_all(build)
            case TitleWritten():
                session_commands.set_title(build, input)
            case ModelChosen():
                model_routing.leave_for_model(build, input.routing)
            case DocumentsDeleted():
                session_commands.take_back_passages(build, input.documents)
            case CompactionWritten():
                compaction.write_summary(build, input)
            case CompactionGivenUp():
                compaction.give_up(build, input)
            case _:
                assert_never(input)
        self._patch_head(build.out)
        return build.out

    @property
    def at_work(self) -> bool:
        """Whether at least one turn is open that has something to do, which an answer paused by the orphan policy has
        not."""
        state = self.state
        paused = state.open and self._runs.paused.issuperset(state.open)
        return state.busy and (bool(state.awaiting) or not paused)

    def prompted(self, response_id: ResponseId, input_tokens: int, cached_tokens: int) -> None:
        """Keeps the size of a response's prompt, in tokens, for the usage of a response that ends early."""
        self._runs.prompts[response_id] = Usage(input_tokens, 0, cached_tokens)

    def other_model(self, open_: Open) -> str:
        """Returns the model that writes a response if it is not the session's own; else ""."""
        return responses.other_model(self.state, open_)

    # -- applied commands ----------------------------------------------------------------------------------------

    def known(self, principal: Principal, command_id: CommandId) -> CommandRecord | None:
        """Returns the record of a command if it was applied before; else None."""
        return self._applied.get((principal.id, command_id))

    def remember(self, record: CommandRecord) -> None:
        """Adds the record of a command that was just applied, or that was read from the journal. Beyond the bound the
        oldest is dropped."""
        self._applied[(record.principal_id, record.command_id)] = record
        if len(self._applied) > COMMANDS_LOADED_MAX:
            del self._applied[next(iter(self._applied))]
            self.forgetful = True

    def continues_turn(self, command: cm.ActorCommand) -> bool:
        """Returns whether a command only continues a turn that was admitted when it began."""
        return turn_commands.continues_turn(self.state, command)

    def is_visible_to(self, principal: Principal) -> bool:
        """Returns whether the session exists for this principal."""
        return self.state.info is None or may_see(principal, self.state.key, self.state.user)

    def _command(self, build: StepBuilder, input: Command) -> None:
        principal, command, out = input.principal, input.command, build.out
        if not self.is_visible_to(principal):
            out.answer = not_found(self.state.key)
            return
        known = self.known(principal, command.id)
        if known is not None:
            out.answer = answer_of(known, input.digest)
            return
        try:
            if input.refused is not None:
                raise input.refused
            answer = apply_command(build, input)
        except SessileError as error:
            if out.records:
                raise AssertionError("a refused command has written something") from error
            out.answer = error.with_traceback(None)  # an answer, and its frames would hold it
            appeals.open_message_cases(build, input, None)
            return
        out.answer = answer
        appeals.open_message_cases(build, input, answer.item_id)
        if isinstance(command, cm.SessionWarm):
            return
        record = CommandRecord(
            principal_id=principal.id, command_id=command.id, digest=input.digest, answer=answer, at=build.now
        )
        self.remember(record)
        out.commands.append(record)

    def _patch_head(self, out: Step) -> None:
        """Adds the head's descriptive columns to the step if they have changed."""
        state = self.state
        if state.info is None:
            return
        patch = HeadPatch(
            open=state.busy,
            user=state.user,
            model=model_routing.head_model_of(state.info),
            title=state.info.title,
            metadata=state.info.metadata,
            listed=state.listed,
            deleted_at=state.at if state.deleted else None,
        )
        if patch != self._head and out.records:
            out.head = self._head = patch


def apply_command(build: StepBuilder, input: Command) -> cm.Ok:
    """Applies a new command (repeats were answered before). Raises the error that refuses it; then nothing was
    written."""
    state, principal, command = build.state, input.principal, input.command
    if isinstance(command, cm.SessionCreate):
        return session_commands.create_session(build, input, command)
    if state.info is None and cm.session_settings_of(command) is not None:
        assert isinstance(command, cm.TurnCreate)
        return turn_commands.create_turn(build, input, command)
    if state.info is None:
        raise not_found(state.key)
    if state.deleted:
        raise deleted(state.key)
    if len(state.items) >= ITEMS_MAX and not isinstance(command, _ALWAYS):
        raise Conflict("session_full", f"A session holds at most {ITEMS_MAX} items; start a new one.")
    if isinstance(command, _NAMING) and _stands(state, principal, command):
        raise Conflict("idempotency_conflict", "This command id was used more than a day ago.", param="id")
    match command:
        case cm.MessageCreate():
            return message_commands.create_message(build, input, command)
        case cm.MessageEdit():
            return message_commands.edit_message(build, input, command)
        case cm.ResponseCreate():
            return message_commands.create_response(build, input, command)
        case cm.TurnCreate():
            return turn_commands.create_turn(build, input, command)
        case cm.ResponseCancel():
            return message_commands.cancel_response(build, command)
        case cm.ResponseSteer():
            return steering.steer_response(build, input, command)
        case cm.ToolOutput():
            return message_commands.add_tool_output(build, input, command)
        case cm.ToolApprove():
            return server_tools.approve_call(build, principal, command)
        case cm.ResponseErase():
            return session_commands.erase_response(build, command)
        case cm.ItemDelete():
            return session_commands.delete_item(build, command)
        case cm.ReviewAppeal():
            return appeals.appeal(build, input, command)
        case cm.ReviewNotify():
            return appeals.record_decision(build, command)
        case cm.FeedbackSet():
            return feedback.set_feedback(build, principal, command)
        case cm.SessionUpdate():
            return session_commands.update_session(build, command)
        case cm.SessionCompact():
            return compaction.request(build, principal, command)
        case cm.CompactionUndo():
            return compaction.undo(build, command)
        case cm.ItemPin():
            return compaction.pin(build, command)
        case cm.SessionDelete():
            return session_commands.delete_session(build, command)
        case cm.SessionWarm():
            return cm.Ok(id=command.id, offset=state.top)
        case _:
            assert_never(command)


def _stands(state: State, principal: Principal, command: cm.ActorCommand) -> bool:
    """Returns whether the log already has a response, item or session whose id is derived from this command's id."""
    response_id = responses.response_id_of(state.key, principal, command.id)
    if response_id in state.open or response_id in state.answers:
        return True
    if any(waiting.body.id == response_id for waiting in state.queue):
        return True
    if any(item_id in state.items for item_id in responses.item_ids_of(state.key, principal, command)):
        return True
    return cm.session_settings_of(command) is not None and state.key.session == derived_session_id(
        principal, command.id
    )
