"""The pure session machine: `step(input) -> Step`, no I/O, no clock, no chance, no await.

Decides everything that happens in a conversation: what a command does to the item tree, when a response may
start, what each engine output becomes in the log, what is left to do after a crash. The shell (sessions.actor.actor)
runs a step in order: first makes its records durable (I2), then gives the answers, then starts and stops engines.

Invariants: every accepted command gets exactly one answer (I5, I7); each response ends in exactly one terminal event;
at most one open response per branch; after a response ended nothing is written for it. `step` advances the
state in place: when its append turns out to be refused, the whole machine is thrown away with it.

Ids are derived from (session, principal, command id), so a command that is applied by two activations in turn makes
the same ids; where one of them stands already, the command was applied once, though nobody remembers its answer, and
is refused. Does not know: tokens' meaning, engines, filters, storage, who reads.
After: etcd/raft's step function; the actor model of Hewitt; OpenAI's Responses for what a response is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec
from msgspec import UNSET

from sessions.billing.prices import PriceBook
from sessions.machine import item_tree
from sessions.machine.appeals import Appeals
from sessions.machine.inputs_effects import (
    Activated,
    Command,
    Erase,
    Fitted,
    GenerationFailed,
    GenerationFinished,
    GenerationStopped,
    Input,
    Orphaned,
    Output,
    Prepared,
    ResponsesPaused,
    ResponsesResumed,
    Step,
    Stop,
    ToolDeadline,
)
from sessions.machine.responses import item_ids_of
from sessions.machine.state import State
from sessions.machine.turn_command import TurnCommands, busy_conflict
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.authorization import deleted, may_see, not_found
from sessions.model.errors import BadInput, Conflict, NotFound, Overloaded, SessileError
from sessions.model.journal_types import COMMANDS_LOADED_MAX, CommandRecord, HeadPatch
from sessions.model.request import answer_of
from sessions.model.types import (
    CommandId,
    FunctionCallOutput,
    Item,
    ItemId,
    Message,
    Principal,
    ResponseId,
    Sampling,
    UnixMs,
    derived_session_id,
)

ITEMS_MAX = 20_000
# What a full session still takes.
_ALWAYS = cm.SessionDelete | cm.ResponseCancel | cm.ResponseErase | cm.ReviewAppeal | cm.ReviewNotify
# What is put into a log under names that follow from its id.
_NAMING = cm.MessageCreate | cm.MessageEdit | cm.ResponseCreate | cm.ToolOutput | cm.TurnCreate
QUEUE_MAX = 8


class Machine(TurnCommands, Appeals):
    """One session's machine. Owned by its actor; not thread-safe; see the module's docstring."""

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
    ) -> None:
        super().__init__(
            state, fingerprint=fingerprint, default_model=default_model, smaller_model=smaller_model, prices=prices
        )
        self.forgetful = forgetful  # the journal knows of applied commands that this machine does not
        self._applied = {(record.principal_id, record.command_id): record for record in commands}
        self._head: HeadPatch | None = None

    def step(self, input: Input, now: UnixMs) -> Step:
        """Advances the state and says what must be done about it. Never raises for what the world did."""
        self._now = UnixMs(max(now, self.state.at))
        self._service, self._model = None, ""
        self._out = out = Step()
        self._take(input)
        del self._out  # an error that it answers with would otherwise hold us, by its traceback, and we it
        return out

    def _take(self, input: Input) -> None:
        match input:
            case Output():
                self._output(input)
                return
            case Command():
                self._command(input)
            case GenerationFinished():
                self._finished(input)
            case GenerationFailed():
                self._broke(input)
            case GenerationStopped():
                self._review(input)
            case Fitted():
                if self._current(input.response_id, input.generation) is not None:
                    self._put(
                        ev.ContextFitted(response_id=input.response_id, dropped=input.dropped),
                        ev.Private(cut=input.cut),
                    )
            case Activated():
                self._activated(input)
            case ToolDeadline():
                self._tool_deadline(input.response_id)
            case Orphaned():
                for open_ in list(self.state.open.values()):
                    self._end_incomplete(open_, "orphaned")
            case ResponsesPaused():
                self._paused = frozenset(self.state.open)
                for open_ in self.state.open.values():
                    self._generations.pop(open_.id, None)
                    self._out.effects.append(Stop(open_.id))
            case ResponsesResumed():
                self._start_all()
            case _:
                assert_never(input)
        self._patch_head()

    def known(self, principal: Principal, command_id: CommandId) -> CommandRecord | None:
        """The record of a command that was applied before."""
        return self._applied.get((principal.id, command_id))

    def remember(self, record: CommandRecord) -> None:
        """Adds a record: just applied, or found among the journal's older ones. The oldest is forgotten."""
        self._applied[(record.principal_id, record.command_id)] = record
        if len(self._applied) > COMMANDS_LOADED_MAX:
            del self._applied[next(iter(self._applied))]
            self.forgetful = True

    def _patch_head(self) -> None:
        """Adds the head's descriptive columns to the step when they changed."""
        state = self.state
        if state.info is None:
            return
        patch = HeadPatch(
            open=state.busy,
            user=state.user,
            model=state.info.model,
            title=state.info.title,
            metadata=state.info.metadata,
            listed=state.listed,
            deleted_at=state.at if state.deleted else None,
        )
        if patch != self._head and self._out.records:
            self._out.head = self._head = patch

    def _command(self, input: Command) -> None:
        principal, command = input.principal, input.command
        known = self.known(principal, command.id)
        if known is not None:
            self._out.answer = answer_of(known, input.digest)
            return
        try:
            if input.refused is not None:
                raise input.refused
            self._service, self._model = input.service, input.model
            answer = self._apply_command(principal, input)
        except SessileError as error:
            if self._out.records:
                raise AssertionError("a refused command has written something") from error
            self._out.answer = error.with_traceback(None)  # an answer, and its frames would hold it
            self._review_message(input, None)
            return
        self._out.answer = answer
        self._review_message(input, answer.item_id)
        if isinstance(command, cm.SessionWarm):
            return
        record = CommandRecord(
            principal_id=principal.id, command_id=command.id, digest=input.digest, answer=answer, at=self._now
        )
        self.remember(record)
        self._out.commands.append(record)

    def _apply_command(self, principal: Principal, input: Command) -> cm.Ok:
        state, command, prepared = self.state, input.command, input.prepared
        if isinstance(command, cm.SessionCreate):
            return self._create(principal, command)
        if state.info is None and cm.session_settings_of(command) is not None:
            assert isinstance(command, cm.TurnCreate)
            return self._turn(principal, command, input.prepared_items)
        if state.info is None or not may_see(principal, state.key, state.user):
            raise not_found(state.key)
        if state.deleted:
            raise deleted(state.key)
        if len(state.items) >= ITEMS_MAX and not isinstance(command, _ALWAYS):
            raise Conflict("session_full", f"A session holds at most {ITEMS_MAX} items; start a new one.")
        if isinstance(command, _NAMING) and self._stands(principal, command):
            raise Conflict("idempotency_conflict", "This command id was used more than a day ago.", param="id")
        match command:
            case cm.MessageCreate():
                return self._message(principal, command, self._parent(command.parent_id), prepared)
            case cm.MessageEdit():
                return self._edit(principal, command, prepared)
            case cm.ResponseCreate():
                return self._respond(principal, command)
            case cm.TurnCreate():
                return self._turn(principal, command, input.prepared_items)
            case cm.ResponseCancel():
                return self._cancel(command)
            case cm.ToolOutput():
                return self._tool_output(principal, command, prepared)
            case cm.ResponseErase():
                return self._erase(command)
            case cm.ReviewAppeal():
                return self._appeal(command, input)
            case cm.ReviewNotify():
                return self._record_decision(command)
            case cm.SessionUpdate():
                return self._update(command)
            case cm.SessionDelete():
                return self._delete(command)
            case cm.SessionWarm():
                return cm.Ok(id=command.id, offset=state.top)
            case _:
                assert_never(command)

    def _stands(self, principal: Principal, command: cm.ActorCommand) -> bool:
        """Something in the log, or the session itself, has its name by this command's id."""
        state, response_id = self.state, self._response_id(principal, command.id)
        if response_id in state.open or response_id in state.answers:
            return True
        if any(waiting.body.id == response_id for waiting in state.queue):
            return True
        if any(item_id in state.items for item_id in item_ids_of(state.key, principal, command)):
            return True
        return cm.session_settings_of(command) is not None and state.key.session == derived_session_id(
            principal, command.id
        )

    def _create(self, principal: Principal, command: cm.SessionCreate) -> cm.Ok:
        state = self.state
        if state.info is not None:
            if not may_see(principal, state.key, state.user):
                raise not_found(state.key)
            raise Conflict("session_exists", f"The session {state.key.session!r} exists already.", param="session")
        self._make_session(principal, command)
        return cm.Ok(id=command.id, session=state.key.session, offset=state.top)

    def _update(self, command: cm.SessionUpdate) -> cm.Ok:
        assert self.state.info is not None
        changes = {
            name: value
            for name in ("title", "metadata", "instructions", "tools")
            if (value := getattr(command, name)) is not UNSET
        }
        for name, nothing in (("metadata", {}), ("tools", ())):
            if changes.get(name, UNSET) is None:
                changes[name] = nothing
        self._put(ev.SessionUpdated(info=msgspec.structs.replace(self.state.info, **changes)))
        return cm.Ok(id=command.id, session=self.state.key.session, offset=self.state.top)

    def _delete(self, command: cm.SessionDelete) -> cm.Ok:
        state = self.state
        for waiting in list(state.queue):
            self._end_queued(waiting, "session_deleted")
        for open_ in list(state.open.values()):
            self._end_incomplete(open_, "session_deleted", go_on=False)
        self._put(ev.SessionDeleted())
        self._out.effects.append(Erase())
        return cm.Ok(id=command.id, session=state.key.session, offset=state.top)

    def _message(
        self, principal: Principal, command: cm.MessageCreate, parent: ItemId | None, prepared: Prepared | None
    ) -> cm.Ok:
        if command.queue and not command.respond:
            raise BadInput("invalid_request", "`queue` needs `respond`: only responses wait.", param="queue")
        item = Message(
            id=self._item_id(principal, command),
            parent_id=parent,
            role=command.role,
            content=cm.content_parts(command.content),
            status="completed",
            created_at=self._now,
        )
        blocked = item_tree.blocker(self.state, parent, implied=command.parent_id is UNSET)
        if blocked is not None:
            return self._wait(principal, command, blocked, item, prepared)
        self._item(item, prepared)
        return self._answered(principal, command, item, respond=command.respond)

    def _edit(self, principal: Principal, command: cm.MessageEdit, prepared: Prepared | None) -> cm.Ok:
        edited = self.state.items.get(command.item_id)
        if edited is None:
            raise NotFound("item_not_found", f"There is no item {command.item_id!r} in this session.", param="item_id")
        if not isinstance(edited, Message) or edited.role == "assistant":
            raise BadInput("invalid_request", "Only messages that were sent can be edited.", param="item_id")
        blocked = item_tree.blocker(self.state, edited.parent_id, implied=False)
        if blocked is not None:
            raise busy_conflict(blocked[1])
        item = Message(
            id=self._item_id(principal, command),
            parent_id=edited.parent_id,
            role=edited.role,
            content=cm.content_parts(command.content),
            status="completed",
            created_at=self._now,
        )
        self._item(item, prepared)
        return self._answered(principal, command, item, respond=command.respond)

    def _respond(self, principal: Principal, command: cm.ResponseCreate) -> cm.Ok:
        parent = self._parent(command.parent_id)
        if command.parent_id is UNSET and parent is not None:
            parent = item_tree.question(self.state, parent)
        blocked = item_tree.blocker(self.state, parent, implied=command.parent_id is UNSET)
        if blocked is not None:
            return self._wait(principal, command, blocked, None, None)
        return self._answered(principal, command, None, parent=parent)

    def _item_id(self, principal: Principal, command: cm.MessageCreate | cm.MessageEdit | cm.ToolOutput) -> ItemId:
        return item_ids_of(self.state.key, principal, command)[0]

    def _answered(
        self,
        principal: Principal,
        command: cm.MessageCreate | cm.MessageEdit | cm.ResponseCreate,
        item: Item | None,
        *,
        respond: bool = True,
        parent: ItemId | None = None,
    ) -> cm.Ok:
        offset = self.state.top
        response_id = None
        if respond:
            response_id = self._response_id(principal, command.id)
            self._begin(response_id, item.id if item is not None else parent, principal, cm.sampling_of(command))
            offset = offset if item is not None else self.state.top - 1
        return cm.Ok(
            id=command.id, item_id=item.id if item is not None else None, response_id=response_id, offset=offset
        )

    def _wait(
        self,
        principal: Principal,
        command: cm.MessageCreate | cm.ResponseCreate,
        blocked: tuple[ResponseId, str],
        item: Item | None,
        prepared: Prepared | None,
    ) -> cm.Ok:
        after, code = blocked
        if not command.queue:
            raise busy_conflict(code)
        if len(self.state.queue) >= QUEUE_MAX:
            raise Overloaded("queue_full", f"{QUEUE_MAX} responses wait in this session already.", retry_after_ms=1_000)
        response_id = self._response_id(principal, command.id)
        if item is not None:
            item = msgspec.structs.replace(item, parent_id=None, status="queued")
        self._put(
            ev.ResponseQueued(
                response_id=response_id,
                sequence_number=0,
                response=self._body(response_id, None, "queued", self._model, self._service),
                item=item,
            ),
            ev.Private(
                after=after,
                principal=principal,
                sampling=cm.sampling_of(command),
                tokens=prepared.tokens if prepared else b"",
                fingerprint=prepared.fingerprint if prepared else "",
            ),
        )
        return cm.Ok(
            id=command.id,
            item_id=item.id if item is not None else None,
            response_id=response_id,
            offset=self.state.top,
        )

    def _cancel(self, command: cm.ResponseCancel) -> cm.Ok:
        state = self.state
        open_ = state.open.get(command.response_id)
        queued = next((waiting for waiting in state.queue if waiting.body.id == command.response_id), None)
        if open_ is not None:
            self._end_incomplete(open_, "cancelled")
        elif queued is not None:
            self._end_queued(queued, "cancelled")
        elif command.response_id in state.awaiting:
            self._tools_missing(state.awaiting[command.response_id], "cancelled")
        elif command.response_id in state.answers:
            return cm.Ok(id=command.id, response_id=command.response_id, offset=state.top, noop=True)
        else:
            raise NotFound(
                "response_not_found", f"There is no response {command.response_id!r} here.", param="response_id"
            )
        return cm.Ok(id=command.id, response_id=command.response_id, offset=state.top)

    def _tool_output(self, principal: Principal, command: cm.ToolOutput, prepared: Prepared | None) -> cm.Ok:
        state = self.state
        waiting = next((turn for turn in state.awaiting.values() if command.call_id in turn.missing), None)
        if waiting is None:
            answered = any(
                isinstance(item, FunctionCallOutput) and item.call_id == command.call_id
                for item in state.items.values()
            )
            if answered:
                raise Conflict("call_answered", f"The call {command.call_id!r} has its output.", param="call_id")
            raise NotFound("call_not_found", f"No call {command.call_id!r} waits for an output.", param="call_id")
        item = FunctionCallOutput(
            id=self._item_id(principal, command),
            parent_id=waiting.last,
            call_id=command.call_id,
            output=command.output,
            is_error=command.is_error,
            created_at=self._now,
        )
        self._item(item, prepared)
        offset, response_id = state.top, None
        if not waiting.missing:
            response_id = self._response_id(principal, command.id)
            self._begin(
                response_id,
                item.id,
                principal,
                _freed(waiting.sampling),
                after=waiting.response_id,
                model=waiting.model,
            )
        return cm.Ok(id=command.id, item_id=item.id, response_id=response_id, offset=offset)

    def _tool_deadline(self, response_id: ResponseId) -> None:
        waiting = self.state.awaiting.get(response_id)
        if waiting is not None:
            self._tools_missing(waiting, "tool_timeout")


def _freed(sampling: Sampling) -> Sampling:
    """A call that was asked for has been made: what follows its output is up to the model."""
    if sampling.tool_choice in (None, "none", "auto"):
        return sampling
    return msgspec.structs.replace(sampling, tool_choice=None)
