"""The life of a response: how it begins, is written, ends, and lets the next one begin.

Functions over a `StepBuilder`, for the reports of engines and for what the log shows as unfinished. Invariants: a
response ends in exactly one terminal event; a run that is not the response's present one writes nothing; the end of a
response starts the first of those that waited for it, in the same step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from sessions.machine import event_writer, item_tree
from sessions.machine.inputs_and_effects import (
    Activated,
    ArmToolDeadline,
    GenerationFailed,
    GenerationFinished,
    GenerationStopped,
    Output,
    Prepared,
    RunTools,
    Start,
    Step,
    Stop,
    StopTools,
)
from sessions.machine.model_routing import ROUTING_NOTE, arrive_at_model, routing_note
from sessions.machine.routed_turns import ROUTING
from sessions.machine.state import Awaiting, Open, Queued, State
from sessions.machine.step_builder import StepBuilder
from sessions.machine.tool_turns import ServerCalls
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import EngineLost, NotFound, SessileError
from sessions.model.generation import CONTINUOUS_USAGE, ITEMS_LEFT_OUT, RETRIEVAL_SKIPPED, drawn_seed
from sessions.model.journal_types import UsageRow
from sessions.model.reviews import Subject, cases_to_open
from sessions.model.types import (
    CallId,
    FunctionCall,
    FunctionCallOutput,
    IncompleteReason,
    ItemId,
    Json,
    Principal,
    ResponseId,
    Sampling,
    SessionKey,
    Usage,
)
from sessions.model.verdicts import Finding, without_text

RECOVERIES_MAX = 2
TOOL_ROUNDS_MAX = 8  # rounds of server tools in one turn, at most
OUTCOME_UNKNOWN = "outcome_unknown: this call was sent, and whether it took effect is not known. It is not sent again."
_OF_THE_QUEUE = ("queue_position", "expected_wait_ms")  # keys of `service` about waiting for an engine
# What stays in `service` when a response that waited begins:
KEPT_SERVICE = ("brownout", "max_output_tokens", "without", ROUTING, ITEMS_LEFT_OUT, RETRIEVAL_SKIPPED)

_DIGITS = "abcdefghijklmnopqrstuvwxyz234567"  # of base 32 (RFC 4648), in lower case
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]  # `base64.b32encode` is Python, and takes twice as long
_SHIFTS = range(110, -1, -10)
_PREFIXES: dict[type[cm.NewItem], str] = {cm.NewMessage: "msg", cm.NewCall: "fc", cm.NewOutput: "fco"}
_TERMINAL: dict[str, type[ev.ResponseCompleted] | type[ev.ResponseIncomplete] | type[ev.ResponseFailed]] = {
    "completed": ev.ResponseCompleted,
    "incomplete": ev.ResponseIncomplete,
    "failed": ev.ResponseFailed,
}


# -- names --------------------------------------------------------------------------------------------------------


def derive(prefix: str, *parts: str) -> str:
    """Returns an id made from `parts`: 120 bits of their hash in base 32, so that no two ids of a tenant are equal by
    chance."""
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()
    number = int.from_bytes(digest[:15], "big")
    return f"{prefix}_{''.join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])}"


def response_id_of(key: SessionKey, principal: Principal, command_id: str) -> ResponseId:
    """Returns the id of the response that a command begins, if it begins one; known before the command is applied."""
    return ResponseId(derive("resp", key.tenant, key.session, principal.id, command_id))


def compaction_id_of(key: SessionKey, principal: Principal, command_id: str) -> ItemId:
    """Returns the id of the summary that a command requests; known before the command is applied."""
    return ItemId(derive("cmp", key.tenant, key.session, principal.id, command_id))


def continuation_id_of(key: SessionKey, response_id: ResponseId) -> ResponseId:
    """Returns the id of the response that goes on with a turn once server tools have answered this response's calls."""
    return ResponseId(derive("resp", key.tenant, key.session, response_id, "continued"))


def item_ids_of(key: SessionKey, principal: Principal, command: cm.ActorCommand) -> tuple[ItemId, ...]:
    """Returns the ids of the items that a command adds to the log, in order."""
    whose = (key.session, principal.id, command.id)
    match command:
        case cm.MessageCreate() | cm.MessageEdit() | cm.ResponseSteer():
            return (ItemId(derive("msg", *whose)),)
        case cm.ToolOutput():
            return (ItemId(derive("fco", *whose)),)
        case cm.TurnCreate():
            prefixes = [_PREFIXES[type(item)] for item in command.items]
            return tuple(ItemId(derive(prefix, *whose, str(index))) for index, prefix in enumerate(prefixes))
        case _:
            return ()


# -- errors -------------------------------------------------------------------------------------------------------


def quarantined_error() -> SessileError:
    return SessileError(
        "quarantined", "This response was given up: its server ended several times while working on it."
    )


def response_not_found(response_id: ResponseId, *, param: str = "response_id") -> NotFound:
    return NotFound("response_not_found", f"There is no response {response_id!r} here.", param=param)


# -- beginning ----------------------------------------------------------------------------------------------------


class NewResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response that is about to begin. `model` and `service` are what admission chose when it let the turn in."""

    id: ResponseId
    parent: ItemId | None
    principal: Principal
    sampling: Sampling
    model: str = ""
    service: dict[str, Json] | None = None
    sequence: int = 0
    after: ResponseId | None = None
    metadata: dict[str, Json] | None = None
    request: dict[str, Json] | UnsetType = UNSET
    behind: ResponseId | None = None  # the response whose generation ends in the same step
    round: int = 0  # how often its turn has called server tools before it


def begin(build: StepBuilder, new: NewResponse) -> None:
    """Creates a response and starts its first generation."""
    create(build, new)
    _start(build, build.state.open[new.id], behind=new.behind)


def create(build: StepBuilder, new: NewResponse) -> None:
    """Creates a response without a generation; draws the seed if the client gave none. The caller decides whether an
    engine writes it."""
    sampling = _with_defaults(new, build.state)
    if sampling.seed is None:
        sampling = msgspec.structs.replace(sampling, seed=drawn_seed(new.id))
    body = new_body(build, new, "in_progress")
    metadata = dict(new.metadata or {})
    if body.service and isinstance(receipt := body.service.get(ROUTING), dict):
        metadata[ROUTING_NOTE] = routing_note(receipt)
    if metadata or new.request is not UNSET:
        body = msgspec.structs.replace(body, metadata=metadata, request=new.request)
    build.put(
        ev.ResponseCreated(response_id=new.id, sequence_number=new.sequence, response=body),
        ev.Private(sampling=sampling, principal=new.principal, after=new.after, round=new.round),
    )
    build.put(ev.ResponseInProgress(response_id=new.id, sequence_number=new.sequence + 1))


def _with_defaults(new: NewResponse, state: State) -> Sampling:
    """Returns the response's sampling. Values that the command does not set are the session's. A brownout's limit is
    used only if it is shorter."""
    sampling, info = new.sampling, state.info
    assert info is not None
    if info.temperature is not UNSET and sampling.temperature is None:
        sampling = msgspec.structs.replace(sampling, temperature=info.temperature)
    longest, requested = info.max_output_tokens, sampling.max_output_tokens
    if longest is not UNSET:
        cut = new.service is not None and "max_output_tokens" in new.service
        if requested is None or (cut and longest < requested):
            sampling = msgspec.structs.replace(sampling, max_output_tokens=longest)
    return sampling


def new_body(build: StepBuilder, new: NewResponse, status: Literal["queued", "in_progress"]) -> ev.ResponseBody:
    """Returns the body of a response that begins. `service` names a smaller model as its writer only if this replica
    has that model."""
    info = build.state.info
    assert info is not None
    service, model = dict(new.service or {}), new.model
    if model and model == build.config.smaller_model and model != info.model:
        service["smaller_model"] = model
    else:
        model = info.model
    receipt = service.get(ROUTING)
    if isinstance(receipt, dict) and receipt.get("model") != info.model:
        del service[ROUTING]  # it waited, and the session has gone elsewhere meanwhile
    return ev.ResponseBody(
        service=service or UNSET,
        id=new.id,
        created_at=build.now,
        status=status,
        model=model,
        parent_id=new.parent,
    )


def _start(build: StepBuilder, open_: Open, *, behind: ResponseId | None = None) -> None:
    runs = build.runs
    runs.num_begun += 1
    runs.current[open_.id] = runs.num_begun
    runs.paused.discard(open_.id)
    build.out.effects.append(Start(open_.id, runs.num_begun, behind))


def pause_all(build: StepBuilder) -> None:
    """Stops every run; the responses stay open."""
    build.runs.paused = set(build.state.open)
    for response_id in build.state.open:
        build.runs.current.pop(response_id, None)
        build.out.effects.append(Stop(response_id))


def start_all(build: StepBuilder) -> None:
    """Starts a run for every open response that has none."""
    for open_ in build.state.open.values():
        if open_.id not in build.runs.current:
            _start(build, open_)


def note_lookup(state: State, step: Step, response_id: ResponseId, outcome: str) -> None:
    """Writes into `service` of a response that a step begins whether the result cache had its answer. `step` is not
    appended yet; the state gets the same body as its `response.created`."""
    for index, record in enumerate(step.records):
        if isinstance(record.event, ev.ResponseCreated) and record.event.response_id == response_id:
            service = {**(record.event.response.service or {}), "cache": outcome}
            if outcome == "hit":  # it waits for no engine
                service = {name: value for name, value in service.items() if name not in _OF_THE_QUEUE}
            body = msgspec.structs.replace(record.event.response, service=service)
            event = msgspec.structs.replace(record.event, response=body)
            step.records[index] = msgspec.structs.replace(record, event=event)
            state.open[response_id].body = body


def other_model(state: State, open_: Open) -> str:
    """Returns the model that writes a response if it is not the session's own; else ""."""
    assert state.info is not None
    return "" if open_.body.model == state.info.model else open_.body.model


# -- ending -------------------------------------------------------------------------------------------------------


class Ending(msgspec.Struct, frozen=True):
    """How a response ends: incomplete if it has a `reason`, failed if it has an `error`, else completed. `successor` is
    the response that goes on in its place."""

    usage: Usage
    reason: IncompleteReason | None = None
    successor: ResponseId | None = None
    error: SessileError | None = None
    recomputed: int = 0
    withheld: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def status(self) -> Literal["completed", "incomplete", "failed"]:
        if self.error is not None:
            return "failed"
        return "completed" if self.reason is None else "incomplete"


def end_incomplete(
    build: StepBuilder,
    open_: Open,
    reason: IncompleteReason,
    *,
    go_on: bool = True,
    successor: ResponseId | None = None,
) -> None:
    """Ends an open response as incomplete, with what was released. Its generation, if one runs, is stopped. `go_on`:
    the next response in the queue begins; `successor`: the response that goes on in its place."""
    build.out.effects.append(Stop(open_.id))
    end(build, open_, Ending(_used(build, open_), reason, successor), go_on=go_on)


def _shown_error(error: SessileError) -> dict[str, Json]:
    """Returns the `error` object that a failed response shows for an error."""
    shown: dict[str, Json] = {"code": error.code, "message": error.public_message}
    return shown if error.retry_after_ms is None else {**shown, "retry_after_ms": error.retry_after_ms}


def _details(reason: IncompleteReason, successor: ResponseId | None) -> dict[str, Json]:
    return {"reason": reason} if successor is None else {"reason": reason, "response_id": successor}


def _used(build: StepBuilder, open_: Open) -> Usage:
    """Returns the usage of a response that did not end by itself."""
    prompt, output = build.runs.prompts.get(open_.id, Usage(0, 0)), len(open_.tokens) // 4
    service = open_.body.service
    cached_output = output if service and service.get("cache") == "hit" else 0
    return msgspec.structs.replace(
        prompt, output_tokens=output, reasoning_tokens=open_.reasoning_tokens, cached_output_tokens=cached_output
    )


def end_queued(
    build: StepBuilder, waiting: Queued, reason: IncompleteReason, *, successor: ResponseId | None = None
) -> None:
    details, usage = _details(reason, successor), Usage(0, 0).public()
    body = msgspec.structs.replace(waiting.body, status="incomplete", incomplete_details=details, usage=usage)
    for other in build.state.queue:
        if other.after == waiting.body.id:
            other.after = waiting.after
    build.put(ev.ResponseIncomplete(response_id=body.id, sequence_number=waiting.sequence, response=body))


def end(build: StepBuilder, open_: Open, ending: Ending, *, go_on: bool = True) -> None:
    """Closes an open response: writes the ends of its drafts, its one terminal event and its usage, and with `go_on`
    starts the next response in the queue."""
    status, usage, config = ending.status, ending.usage, build.config
    for event in event_writer.close_drafts(open_, "completed" if status == "completed" else "incomplete"):
        build.put(event)
    cost = config.prices.cost(open_.body.model, usage, build.now) if config.prices is not None else None
    error, service = ending.error, open_.body.service
    if service and service.get("cache") == "hit" and not usage.cached_output_tokens:
        service = {**service, "cache": "miss"}  # its replica died, and an engine wrote it
    body = msgspec.structs.replace(
        open_.body,
        service=service,
        status=status,
        output=tuple(draft.item for draft in open_.drafts),
        usage=usage.public() if cost is None else {**usage.public(), "cost": cost.public()},
        incomplete_details=None if ending.reason is None else _details(ending.reason, ending.successor),
        error=_shown_error(error) if error is not None else None,
    )
    calls = [item for item in body.output if isinstance(item, FunctionCall)]
    if status == "completed" and calls and all(call.server is True for call in calls):
        body = msgspec.structs.replace(body, continued_by=continuation_id_of(build.state.key, open_.id))
    private = ev.Private(
        tokens=bytes(open_.tokens),
        tail=open_.tail,
        fingerprint=open_.fingerprint or config.fingerprint,
        findings=without_text(ending.findings),
    )
    build.put(_TERMINAL[status](response_id=open_.id, sequence_number=open_.sequence, response=body), private)
    build.runs.current.pop(open_.id, None)
    build.runs.prompts.pop(open_.id, None)
    build.out.usage.append(
        UsageRow(
            response_id=open_.id,
            principal=open_.principal,
            model=body.model,
            usage=usage,
            status=status,
            recomputed_tokens=ending.recomputed,
            withheld_tokens=ending.withheld,
            at=build.now,
            price_version=cost.version if cost is not None else "",
            currency=cost.currency if cost is not None else "",
            cost=cost.picos if cost is not None else 0,
        )
    )
    waiting = build.state.awaiting.get(open_.id)
    if waiting is not None:
        build.out.effects.append(ArmToolDeadline(open_.id, build.now))
        if waiting.server is not None:
            build.out.effects.append(RunTools(open_.id))
    elif go_on:
        next_in_line(build, open_.id, open_.last_item)


def next_in_line(build: StepBuilder, ended: ResponseId, last: ItemId | None) -> None:
    """Starts the first response that waited for `ended`, below the item `last`. The others that waited for `ended` then
    wait for that response."""
    first = next((waiting for waiting in build.state.queue if waiting.after == ended), None)
    if first is None:
        return
    if first.item is not None:
        last = _put_waiting(build, first, last)
    else:
        last = item_tree.question(build.state, last) if last is not None else None
    service = first.body.service or {}
    begin(
        build,
        NewResponse(
            id=first.body.id,
            parent=last,
            principal=first.principal,
            sampling=first.sampling,
            sequence=first.sequence,
            model=first.body.model,
            service={name: service[name] for name in service if name in KEPT_SERVICE},
        ),
    )


def _put_waiting(build: StepBuilder, waiting: Queued, parent: ItemId | None) -> ItemId:
    """Adds the message of a response that waited, below `parent`; returns its id."""
    assert waiting.item is not None
    item = msgspec.structs.replace(waiting.item, parent_id=parent, status="completed", created_at=build.now)
    build.put_item(item, Prepared(waiting.tokens, waiting.fingerprint) if waiting.fingerprint else None)
    return item.id


def take_up(build: StepBuilder, turn: ResponseId, last: ItemId, successor: ResponseId) -> ItemId:
    """Adds the messages that steer a turn below `last`, the last of its tools' outputs. The response `successor`
    answers them. Returns the id of the last item that was added, or `last`."""
    while (waiting := item_tree.steering_behind(build.state, turn)) is not None:
        end_queued(build, waiting, "steered", successor=successor)
        last = _put_waiting(build, waiting, last)
    return last


def inherited(sampling: Sampling, response_id: ResponseId) -> Sampling:
    """Returns the sampling of a response that goes on with `response_id`: the same, but without a seed that was drawn
    for that response, since nobody chose it."""
    if sampling.seed == drawn_seed(response_id):
        sampling = msgspec.structs.replace(sampling, seed=None)
    return sampling


def free_tool_choice(sampling: Sampling) -> Sampling:
    """Returns sampling without a required tool call: that call was made, so what follows its output is up to the
    model."""
    if sampling.tool_choice in (None, "none", "auto"):
        return sampling
    return msgspec.structs.replace(sampling, tool_choice=None)


def end_tool_turn(build: StepBuilder, waiting: Awaiting, why: str, reason: IncompleteReason = "cancelled") -> None:
    """Ends a turn whose tools did not answer: each missing output becomes an error that says why. If they were server
    tools, the response that would go on begins and ends at once, so that its readers see an end."""
    for call_id in list(waiting.missing):
        put_missing_output(build, waiting, call_id, why)
    answer = build.state.answers[waiting.response_id]
    if waiting.server is None:
        next_in_line(build, waiting.response_id, waiting.last)
        return
    build.out.effects.append(StopTools(waiting.response_id))
    if answer.continued_by is None:
        next_in_line(build, waiting.response_id, waiting.last)
        return
    create(build, continuation(waiting, waiting.server, answer.continued_by, waiting.last))
    open_ = build.state.open[answer.continued_by]
    end(build, open_, Ending(Usage(0, 0), reason))


def put_missing_output(build: StepBuilder, waiting: Awaiting, call_id: CallId, why: str) -> None:
    """Adds an error in place of a tool's missing output; if the call was sent, it says that the outcome is unknown."""
    call = waiting.server.calls.get(call_id) if waiting.server is not None else None
    build.put_item(
        FunctionCallOutput(
            id=ItemId(derive("fco", build.state.key.session, waiting.response_id, call_id)),
            parent_id=waiting.last,
            call_id=call_id,
            output=f"{OUTCOME_UNKNOWN} ({why})" if call is not None and call.execution_id else why,
            is_error=True,
            status="incomplete",
            created_at=build.now,
        ),
        None,
    )


def continuation(waiting: Awaiting, server: ServerCalls, response_id: ResponseId, parent: ItemId) -> NewResponse:
    """Returns the response that continues a turn once the outputs of its server tools are there. After TOOL_ROUNDS_MAX
    rounds it may call no tools."""
    sampling = free_tool_choice(inherited(waiting.sampling, waiting.response_id))
    if server.round + 1 >= TOOL_ROUNDS_MAX:
        sampling = msgspec.structs.replace(sampling, tool_choice="none")
    return NewResponse(
        id=response_id,
        parent=parent,
        principal=server.principal,
        sampling=sampling,
        after=waiting.response_id,
        model=waiting.model,
        metadata={name: value for name, value in server.metadata.items() if name != ROUTING_NOTE},
        request=server.request,
        round=server.round + 1,
    )


# -- what engines report ------------------------------------------------------------------------------------------


def current(build: StepBuilder, response_id: ResponseId, generation: int) -> Open | None:
    """Returns the response if it is open and `generation` is its present run; None if it has ended, or the report is by
    an earlier run."""
    if build.runs.current.get(response_id) != generation:
        return None
    return build.state.open.get(response_id)


def write_output(build: StepBuilder, input: Output) -> None:
    """Writes the events for what a generation released; nothing if the generation is not the response's present one."""
    if input.findings:
        open_cases(build, input)
    open_ = current(build, input.response_id, input.generation)
    if open_ is None:
        return
    fingerprint = build.config.fingerprint if input.tokens and not open_.tokens else ""
    findings = without_text(input.findings) if input.findings else ()
    private = ev.Private(tokens=input.tokens, tail=input.tail, fingerprint=fingerprint, findings=findings)
    counted = isinstance(open_.body.request, dict) and CONTINUOUS_USAGE in open_.body.request
    if input.retracted is None and not counted:
        delta = event_writer.going_on(open_, input.pieces)
        if delta is not None:
            build.put(delta, private)
            return
    for index, piece in enumerate(input.pieces, 1):
        for event in event_writer.write(open_, piece, build.now, build.tools):
            last = index == len(input.pieces) and event_writer.carries(piece, event)
            if counted and last and isinstance(event, ev.Delta):
                used = _used(build, open_)
                output_tokens = used.output_tokens + len(input.tokens) // 4
                usage = ev.DeltaUsage(used.input_tokens, used.cached_tokens, output_tokens)
                event = msgspec.structs.replace(event, usage=usage)
            build.put(event, private if last else None)
    if input.retracted is not None and open_.drafts:
        build.put(
            ev.ContentRetracted(
                response_id=open_.id,
                item_id=open_.drafts[-1].item.id,
                content_index=open_.drafts[-1].text_index,
                start=input.retracted.start,
                end=input.retracted.end,
                replacement=input.retracted.replacement,
                category=input.retracted.category,
            ),
            ev.Private(findings=findings) if findings and not input.pieces else None,
        )


def open_cases(build: StepBuilder, input: Output | GenerationFinished | GenerationFailed | GenerationStopped) -> None:
    """Opens the review cases that an answer's findings require, even if its run is no longer the present one."""
    if not input.findings or not any(finding.review for finding in input.findings):
        return
    state, name = build.state, input.response_id
    of = state.open.get(name) or state.answers.get(name)
    if of is None:
        return
    answer = Subject(
        key=state.key,
        name=name,
        direction="output",
        user=state.user,
        offset=state.top,
        now=build.now,
        response_id=name,
    )
    build.out.reviews += cases_to_open(input.findings, answer, known=of.findings)


def finish(build: StepBuilder, input: GenerationFinished) -> None:
    """Ends a response whose generation has ended by itself."""
    open_cases(build, input)
    open_ = current(build, input.response_id, input.generation)
    if open_ is None:
        return
    if input.refusal is not None:
        for event in event_writer.write(open_, event_writer.RefusalText(input.refusal), build.now):
            build.put(event)
    ending = Ending(
        input.usage,
        None if input.reason == "stop" else input.reason,
        recomputed=input.recomputed_tokens,
        withheld=input.withheld_tokens,
        findings=input.findings,
    )
    end(build, open_, ending)


def fail(build: StepBuilder, input: GenerationFailed) -> None:
    """Ends a response whose generation failed. If the engine was lost it starts another run, at most RECOVERIES_MAX
    times. A response that cannot be continued from its text ends as incomplete."""
    open_cases(build, input)
    open_ = current(build, input.response_id, input.generation)
    if open_ is None:
        return
    runs = build.runs
    if input.error.code == "recovery_incompatible":
        end(build, open_, Ending(input.usage, "recovery_incompatible", findings=input.findings))
    elif not isinstance(input.error, EngineLost):
        end(build, open_, Ending(input.usage, error=input.error, findings=input.findings))
    elif input.generation > runs.num_lost and build.state.recoveries >= RECOVERIES_MAX:
        rest = [other for other in build.state.open.values() if other is not open_]
        end(build, open_, Ending(input.usage, error=quarantined_error(), findings=input.findings))
        build.out.effects += [Stop(other.id) for other in rest]
        _quarantine(build, rest)
    else:
        if input.generation > runs.num_lost:  # one death, however many runs it ended
            runs.num_lost = runs.num_begun
            build.put(ev.SessionMigrated(replica=runs.replica, cause="restart"))
        _start(build, open_)


def _quarantine(build: StepBuilder, all_open: Iterable[Open]) -> None:
    """Ends open responses as failed, because one of them keeps ending the replica that works on it."""
    for open_ in all_open:
        end(build, open_, Ending(_used(build, open_), error=quarantined_error()))


def activate(build: StepBuilder, input: Activated) -> None:
    """Continues what the log shows as unfinished. A session that keeps ending its replicas is quarantined."""
    state, config = build.state, build.config
    build.runs.replica = input.replica
    if state.info is None or state.deleted:
        return
    if arrive_at_model(build):
        for waiting in list(state.awaiting.values()):  # nothing goes on with a turn on another model
            end_tool_turn(build, waiting, "model_unavailable", "recovery_incompatible")
    if state.open and state.recoveries >= RECOVERIES_MAX:
        _quarantine(build, list(state.open.values()))
    elif state.open:
        cause = "restart" if input.cause == "activation" else input.cause
        build.put(ev.SessionMigrated(replica=input.replica, cause=cause))
        for open_ in list(state.open.values()):
            foreign = open_.fingerprint and open_.fingerprint != config.fingerprint
            if foreign or other_model(state, open_) not in ("", config.smaller_model):
                end_incomplete(build, open_, "recovery_incompatible")
    start_all(build)
    for waiting in state.awaiting.values():
        build.out.effects.append(ArmToolDeadline(waiting.response_id, waiting.since))
        if waiting.server is not None:
            build.out.effects.append(RunTools(waiting.response_id))
