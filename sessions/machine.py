"""The pure session machine: `step(input) -> Step`, no I/O, no clock, no chance, no await.

Decides everything that happens in a conversation: what a command does to the item tree, when a response may
start, what each engine output becomes in the log, what is left to do after a crash. The shell (sessions.actor) runs a
step in order: first makes its records durable (I2), then gives the answers, then starts and stops engines.

Invariants: every accepted command gets exactly one answer (I5, I7); each response ends in exactly one terminal event;
at most one open response per branch; after a response ended nothing is written for it. `step` advances the
state in place: when its append turns out to be refused, the whole machine is thrown away with it.

Ids are derived from (session, principal, command id), so a command that is applied by two activations in turn makes
the same ids. Does not know: tokens' meaning, engines, filters, storage, who reads.
After: etcd/raft's step function; the actor model of Hewitt; OpenAI's Responses for what a response is.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Iterable
from typing import Literal, assert_never

import msgspec
from msgspec import UNSET

from sessions import commands as cm
from sessions import events as ev
from sessions import tree, writer
from sessions.access import may_see, not_found
from sessions.errors import BadInput, Conflict, Gone, NotFound, Overloaded, SessileError
from sessions.ports import COMMANDS_LOADED_MAX, CommandRecord, HeadPatch, UsageRow
from sessions.state import Awaiting, Open, Queued, State, apply
from sessions.steps import (
    Activated,
    ArmToolDeadline,
    Broke,
    Command,
    Erase,
    Finished,
    Fitted,
    Input,
    Orphaned,
    Output,
    Paused,
    Prepared,
    Resumed,
    Start,
    Step,
    Stop,
    ToolDeadline,
)
from sessions.types import (
    CommandId,
    FunctionCallOutput,
    IncompleteReason,
    Item,
    ItemId,
    Message,
    Principal,
    ResponseId,
    Sampling,
    UnixMs,
    Usage,
)

ITEMS_MAX = 20_000
QUEUE_MAX = 8
RECOVERIES_MAX = 2

_TERMINAL: dict[str, type[ev.ResponseCompleted] | type[ev.ResponseIncomplete] | type[ev.ResponseFailed]] = {
    "completed": ev.ResponseCompleted,
    "incomplete": ev.ResponseIncomplete,
    "failed": ev.ResponseFailed,
}


def derive(prefix: str, *parts: str) -> str:
    """An id that follows from what it is made of; 80 bits, so that no two of a tenant's meet by chance."""
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()
    return f"{prefix}_{b32encode(digest).decode()[:24].lower()}"


class Machine:
    """One session's machine. Owned by its actor; not thread-safe; see the module's docstring."""

    def __init__(
        self,
        state: State,
        commands: Iterable[CommandRecord] = (),
        *,
        default_model: str,
        fingerprint: str,
        forgetful: bool = False,
    ) -> None:
        self.state = state
        self._applied = {(record.principal_id, record.command_id): record for record in commands}
        self.forgetful = forgetful  # the journal knows of applied commands that this machine does not
        self._default_model = default_model
        self._fingerprint = fingerprint  # of the tokenizer whose ids `Output` carries
        self._generations: dict[ResponseId, int] = {}  # the present run of each response that has one
        self._runs = 0  # begun by this activation; numbers them
        self._prompts: dict[ResponseId, Usage] = {}  # what the present run's prompt cost, as far as is known
        self._billed_to: dict[ResponseId, Principal] = {}
        self._head: HeadPatch | None = None
        self._now = UnixMs(0)
        self._out = Step()

    # -- the step ------------------------------------------------------------------------------------------------

    def step(self, input: Input, now: UnixMs) -> Step:
        """Advances the state and says what must be done about it. Never raises for what the world did."""
        self._now = UnixMs(max(now, self.state.at))
        self._out = out = Step()
        match input:
            case Output():
                self._output(input)
                return out
            case Command():
                self._command(input)
            case Finished():
                self._finished(input)
            case Broke():
                self._broke(input)
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
            case Paused():
                for open_ in self.state.open.values():
                    self._generations.pop(open_.id, None)
                    out.effects.append(Stop(open_.id))
            case Resumed():
                self._start_all()
            case _:
                assert_never(input)
        self._patch_head()
        return out

    def known(self, principal: Principal, command_id: CommandId) -> CommandRecord | None:
        """The record of a command that was applied before."""
        return self._applied.get((principal.id, command_id))

    def remember(self, record: CommandRecord) -> None:
        """Adds a record: just applied, or found among the journal's older ones. The oldest is forgotten."""
        self._applied[(record.principal_id, record.command_id)] = record
        if len(self._applied) > COMMANDS_LOADED_MAX:
            del self._applied[next(iter(self._applied))]
            self.forgetful = True

    def prompted(self, response_id: ResponseId, input_tokens: int, cached_tokens: int) -> None:
        """Notes what a response's prompt is made of, for the usage of one that is cut short."""
        self._prompts.setdefault(response_id, Usage(input_tokens, 0, cached_tokens))

    def _put(self, event: ev.AnyEvent, private: ev.Private | None = None) -> None:
        record = ev.Record(self.state.top + 1, self._now, event, private)
        apply(self.state, record)
        self._out.records.append(record)

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

    # -- commands -----------------------------------------------------------------------------------------------

    def _command(self, input: Command) -> None:
        principal, command = input.principal, input.command
        known = self.known(principal, command.id)
        if known is not None:
            self._out.answer = known.answer if known.digest == input.digest else idempotency_conflict()
            return
        try:
            if input.refused is not None:
                raise input.refused
            answer = self._apply_command(principal, command, input.prepared)
        except SessileError as error:
            if self._out.records:
                raise AssertionError("a refused command has written something") from error
            self._out.answer = error
            return
        self._out.answer = answer
        if isinstance(command, cm.SessionWarm):
            return
        record = CommandRecord(
            principal_id=principal.id, command_id=command.id, digest=input.digest, answer=answer, at=self._now
        )
        self.remember(record)
        self._out.commands.append(record)

    def _apply_command(self, principal: Principal, command: cm.ActorCommand, prepared: Prepared | None) -> cm.Ok:
        state = self.state
        if isinstance(command, cm.SessionCreate):
            return self._create(principal, command)
        if state.info is None or not may_see(principal, state.key, state.user):
            raise not_found(state.key)
        if state.deleted:
            raise Gone("session_deleted", f"The session {state.key.session!r} is deleted.", param="session")
        if len(state.items) >= ITEMS_MAX and not isinstance(command, cm.SessionDelete | cm.ResponseCancel):
            raise Conflict("session_full", f"A session holds at most {ITEMS_MAX} items; start a new one.")
        match command:
            case cm.MessageCreate():
                return self._message(principal, command, self._parent(command.parent_id), prepared)
            case cm.MessageEdit():
                return self._edit(principal, command, prepared)
            case cm.ResponseCreate():
                return self._respond(principal, command)
            case cm.ResponseCancel():
                return self._cancel(command)
            case cm.ToolOutput():
                return self._tool_output(principal, command, prepared)
            case cm.SessionUpdate():
                return self._update(command)
            case cm.SessionDelete():
                return self._delete(command)
            case cm.SessionWarm():
                return cm.Ok(id=command.id, offset=state.top)
            case _:
                assert_never(command)

    def _create(self, principal: Principal, command: cm.SessionCreate) -> cm.Ok:
        state = self.state
        if state.info is not None:
            if not may_see(principal, state.key, state.user):
                raise not_found(state.key)
            raise Conflict("session_exists", f"The session {state.key.session!r} exists already.", param="session")
        state.user = principal.user
        info = ev.SessionInfo(
            model=command.model or self._default_model,
            instructions=command.instructions,
            tools=command.tools,
            metadata=command.metadata,
            title=command.title,
            created_at=self._now,
        )
        self._put(ev.SessionCreated(info=info))
        return cm.Ok(id=command.id, session=state.key.session, offset=state.top)

    def _update(self, command: cm.SessionUpdate) -> cm.Ok:
        assert self.state.info is not None
        changes = {
            name: value
            for name in ("title", "metadata", "instructions", "tools")
            if (value := getattr(command, name)) is not UNSET
        }
        if changes.get("metadata", UNSET) is None:
            changes["metadata"] = {}
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

    # -- the item tree -------------------------------------------------------------------------------------------

    def _parent(self, wanted: ItemId | None | msgspec.UnsetType) -> ItemId | None:
        if wanted is UNSET:
            return self.state.newest
        if wanted is not None and wanted not in self.state.items:
            raise NotFound("item_not_found", f"There is no item {wanted!r} in this session.", param="parent_id")
        return wanted

    def _message(
        self, principal: Principal, command: cm.MessageCreate, parent: ItemId | None, prepared: Prepared | None
    ) -> cm.Ok:
        if command.queue and not command.respond:
            raise BadInput("invalid_request", "`queue` needs `respond`: only responses wait.", param="queue")
        item = Message(
            id=self._item_id(principal, command.id),
            parent_id=parent,
            role=command.role,
            content=cm.content_parts(command.content),
            status="completed",
            created_at=self._now,
        )
        blocked = tree.blocker(self.state, parent, implied=command.parent_id is UNSET)
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
        blocked = tree.blocker(self.state, edited.parent_id, implied=False)
        if blocked is not None:
            raise busy(blocked[1])
        item = Message(
            id=self._item_id(principal, command.id),
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
            parent = tree.question(self.state, parent)
        blocked = tree.blocker(self.state, parent, implied=command.parent_id is UNSET)
        if blocked is not None:
            return self._wait(principal, command, blocked, None, None)
        return self._answered(principal, command, None, parent=parent)

    def _item(self, item: Item, prepared: Prepared | None) -> None:
        private = ev.Private(tokens=prepared.tokens, fingerprint=prepared.fingerprint) if prepared else None
        self._put(ev.ItemCreated(item=item), private)

    def _item_id(self, principal: Principal, command_id: CommandId) -> ItemId:
        return ItemId(derive("msg", self.state.key.session, principal.id, command_id))

    def _response_id(self, principal: Principal, command_id: CommandId) -> ResponseId:
        return ResponseId(derive("resp", self.state.key.tenant, self.state.key.session, principal.id, command_id))

    # -- responses -------------------------------------------------------------------------------------------------

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
            self._billed_to[response_id] = principal
            self._begin(response_id, item.id if item is not None else parent, cm.sampling_of(command))
            offset = offset if item is not None else self.state.top - 1
        return cm.Ok(
            id=command.id, item_id=item.id if item is not None else None, response_id=response_id, offset=offset
        )

    def _begin(
        self,
        response_id: ResponseId,
        parent: ItemId | None,
        sampling: Sampling,
        *,
        sequence: int = 0,
        after: ResponseId | None = None,
    ) -> None:
        """Creates a response and asks for its first generation. The seed is drawn here if nobody gave one."""
        if sampling.seed is None:
            seed = int.from_bytes(hashlib.blake2b(response_id.encode(), digest_size=4).digest(), "big")
            sampling = msgspec.structs.replace(sampling, seed=seed)
        body = self._body(response_id, parent, "in_progress")
        self._put(
            ev.ResponseCreated(response_id=response_id, sequence_number=sequence, response=body),
            ev.Private(sampling=sampling, after=after),
        )
        self._put(ev.ResponseInProgress(response_id=response_id, sequence_number=sequence + 1))
        self._start(self.state.open[response_id])

    def _body(
        self, response_id: ResponseId, parent: ItemId | None, status: Literal["queued", "in_progress"]
    ) -> ev.ResponseBody:
        assert self.state.info is not None
        return ev.ResponseBody(
            id=response_id, created_at=self._now, status=status, model=self.state.info.model, parent_id=parent
        )

    def _start(self, open_: Open) -> None:
        self._runs += 1
        self._generations[open_.id] = self._runs
        self._out.effects.append(Start(open_.id, self._runs))

    def _current(self, response_id: ResponseId, generation: int) -> Open | None:
        """The response, if it is open and this generation is its present one; what others say is too late."""
        if self._generations.get(response_id) != generation:
            return None
        return self.state.open.get(response_id)

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
            raise busy(code)
        if len(self.state.queue) >= QUEUE_MAX:
            raise Overloaded("queue_full", f"{QUEUE_MAX} responses wait in this session already.", retry_after_ms=1_000)
        response_id = self._response_id(principal, command.id)
        self._billed_to[response_id] = principal
        if item is not None:
            item = msgspec.structs.replace(item, parent_id=None, status="queued")
        self._put(
            ev.ResponseQueued(
                response_id=response_id,
                sequence_number=0,
                response=self._body(response_id, None, "queued"),
                item=item,
            ),
            ev.Private(
                after=after,
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

    # -- endings ---------------------------------------------------------------------------------------------------

    def _end_incomplete(self, open_: Open, reason: IncompleteReason, *, go_on: bool = True) -> None:
        """Ends an open response with what was released; its generation, if one runs, is aborted."""
        self._out.effects.append(Stop(open_.id))
        self._end(open_, "incomplete", self._used(open_), incomplete=reason, go_on=go_on)

    def _used(self, open_: Open) -> Usage:
        """The usage of a response that did not end by itself."""
        prompt = self._prompts.get(open_.id, Usage(0, 0))
        return msgspec.structs.replace(prompt, output_tokens=len(open_.tokens) // 4)

    def _end_queued(self, waiting: Queued, reason: IncompleteReason) -> None:
        body = msgspec.structs.replace(
            waiting.body, status="incomplete", incomplete_details={"reason": reason}, usage=Usage(0, 0).public()
        )
        for other in self.state.queue:
            if other.after == waiting.body.id:
                other.after = waiting.after
        self._put(ev.ResponseIncomplete(response_id=body.id, sequence_number=waiting.sequence, response=body))

    def _end(
        self,
        open_: Open,
        status: Literal["completed", "incomplete", "failed"],
        usage: Usage,
        *,
        incomplete: IncompleteReason | None = None,
        error: SessileError | None = None,
        recomputed: int = 0,
        withheld: int = 0,
        go_on: bool = True,
    ) -> None:
        """Writes the endings of the drafts and the one terminal event, with its usage; lets the next one begin."""
        state = self.state
        for event in writer.close_drafts(open_, "completed" if status == "completed" else "incomplete"):
            self._put(event)
        body = msgspec.structs.replace(
            open_.body,
            status=status,
            output=tuple(draft.item for draft in open_.drafts),
            usage=usage.public(),
            incomplete_details={"reason": incomplete} if incomplete is not None else None,
            error={"code": error.code, "message": error.public_message} if error is not None else None,
        )
        private = ev.Private(tokens=bytes(open_.tokens), tail=open_.tail, fingerprint=self._fingerprint)
        self._put(_TERMINAL[status](response_id=open_.id, sequence_number=open_.sequence, response=body), private)
        self._generations.pop(open_.id, None)
        self._prompts.pop(open_.id, None)
        billed_to = self._billed_to.pop(open_.id, None)
        self._out.usage.append(
            UsageRow(
                response_id=open_.id,
                principal=billed_to or Principal(tenant=state.key.tenant, key_id="", user=state.user),
                model=body.model,
                usage=usage,
                status=status,
                recomputed_tokens=recomputed,
                withheld_tokens=withheld,
                at=self._now,
            )
        )
        if open_.id in state.awaiting:
            self._out.effects.append(ArmToolDeadline(open_.id, self._now))
        elif go_on:
            self._next_in_line(open_.id, open_.last_item)

    def _next_in_line(self, ended: ResponseId, last: ItemId | None) -> None:
        """Starts what waited for `ended`, on the branch as it is now; what waited beside it waits on."""
        followers = [waiting for waiting in self.state.queue if waiting.after == ended]
        if not followers:
            return
        first = followers[0]
        if first.item is not None:
            item = msgspec.structs.replace(first.item, parent_id=last, status="completed", created_at=self._now)
            self._item(item, Prepared(first.tokens, first.fingerprint) if first.fingerprint else None)
            last = item.id
        else:
            last = tree.question(self.state, last) if last is not None else None
        self._begin(first.body.id, last, first.sampling, sequence=first.sequence)

    # -- engine ----------------------------------------------------------------------------------------------------

    def _output(self, input: Output) -> None:
        open_ = self._current(input.response_id, input.generation)
        if open_ is None:
            return
        for index, piece in enumerate(input.pieces, 1):
            for event in writer.write(open_, piece, self._now):
                last = index == len(input.pieces) and writer.carries(piece, event)
                self._put(event, ev.Private(tokens=input.tokens, tail=input.tail) if last else None)

    def _finished(self, input: Finished) -> None:
        open_ = self._current(input.response_id, input.generation)
        if open_ is None:
            return
        if input.refusal is not None:
            for event in writer.write(open_, writer.RefusalText(input.refusal), self._now):
                self._put(event)
        reason: IncompleteReason | None = None if input.reason == "stop" else input.reason
        self._end(
            open_,
            "completed" if reason is None else "incomplete",
            input.usage,
            incomplete=reason,
            recomputed=input.recomputed_tokens,
            withheld=input.withheld_tokens,
        )

    def _broke(self, input: Broke) -> None:
        open_ = self._current(input.response_id, input.generation)
        if open_ is not None:
            self._end(open_, "failed", input.usage, error=input.error)

    # -- recovery --------------------------------------------------------------------------------------------------

    def _activated(self, input: Activated) -> None:
        """Goes on with whatever the log says is unfinished; a session that keeps killing its replica is put away."""
        state = self.state
        if state.info is None or state.deleted:
            return
        if state.open:
            if state.recoveries >= RECOVERIES_MAX:
                error = SessileError(
                    "quarantined",
                    "This response was given up: its server ended several times while working on it.",
                )
                for open_ in list(state.open.values()):
                    self._end(open_, "failed", self._used(open_), error=error)
            else:
                cause = "restart" if input.cause == "activation" else input.cause
                self._put(ev.SessionMigrated(replica=input.replica, cause=cause))
        self._start_all()
        for waiting in state.awaiting.values():
            self._out.effects.append(ArmToolDeadline(waiting.response_id, waiting.since))

    def _start_all(self) -> None:
        for open_ in self.state.open.values():
            if open_.id not in self._generations:
                self._start(open_)

    # -- tools -----------------------------------------------------------------------------------------------------

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
            id=ItemId(derive("fco", state.key.session, principal.id, command.id)),
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
            self._billed_to[response_id] = principal
            self._begin(response_id, item.id, waiting.sampling, after=waiting.response_id)
        return cm.Ok(id=command.id, item_id=item.id, response_id=response_id, offset=offset)

    def _tool_deadline(self, response_id: ResponseId) -> None:
        waiting = self.state.awaiting.get(response_id)
        if waiting is not None:
            self._tools_missing(waiting, "tool_timeout")

    def _tools_missing(self, waiting: Awaiting, why: str) -> None:
        """Ends a turn whose tools did not answer: each missing output is an error that says why."""
        for call_id in list(waiting.missing):
            self._item(
                FunctionCallOutput(
                    id=ItemId(derive("fco", self.state.key.session, waiting.response_id, call_id)),
                    parent_id=waiting.last,
                    call_id=call_id,
                    output=why,
                    is_error=True,
                    status="incomplete",
                    created_at=self._now,
                ),
                None,
            )
        self._next_in_line(waiting.response_id, waiting.last)


def idempotency_conflict() -> Conflict:
    return Conflict("idempotency_conflict", "This command id was used for another command.", param="id")


def busy(code: str) -> Conflict:
    text = {
        "response_in_progress": "A response on this branch is in progress; wait for its end, or send `queue: true`.",
        "tools_pending": "A turn on this branch waits for tool outputs; send them, or send `queue: true`.",
    }[code]
    return Conflict(code, text, retryable=True, retry_after_ms=250)
