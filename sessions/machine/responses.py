"""The life of responses in the session machine: how each begins, is written, ends, and lets the next one begin.

The lower half of `sessions.machine.machine`: everything here follows from what engines said or from the log.
Invariants: a response ends in exactly one terminal event; a run that is not the response's present one writes
nothing; ending a response starts the first of those that waited for it, in the same step.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from sessions.billing.prices import PriceBook
from sessions.machine import event_writer, item_tree
from sessions.machine.inputs_effects import (
    Activated,
    ArmToolDeadline,
    GenerationFailed,
    GenerationFinished,
    GenerationStopped,
    Output,
    Prepared,
    Start,
    Step,
    Stop,
)
from sessions.machine.state import Awaiting, Open, Queued, State, apply
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import EngineLost, SessileError
from sessions.model.journal_types import UsageRow
from sessions.model.reviews import Subject, cases_to_open
from sessions.model.types import (
    FunctionCallOutput,
    IncompleteReason,
    Item,
    ItemId,
    Json,
    Principal,
    ResponseId,
    Sampling,
    SessionKey,
    UnixMs,
    Usage,
)
from sessions.model.verdicts import Finding, without_text

RECOVERIES_MAX = 2
_STAYS = ("brownout", "max_output_tokens", "without")  # of `service`, when a response that waited begins

_PREFIXES: dict[type[cm.NewItem], str] = {cm.NewMessage: "msg", cm.NewCall: "fc", cm.NewOutput: "fco"}
_TERMINAL: dict[str, type[ev.ResponseCompleted] | type[ev.ResponseIncomplete] | type[ev.ResponseFailed]] = {
    "completed": ev.ResponseCompleted,
    "incomplete": ev.ResponseIncomplete,
    "failed": ev.ResponseFailed,
}


def derive(prefix: str, *parts: str) -> str:
    """An id that follows from what it is made of; 80 bits, so that no two of a tenant's meet by chance."""
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()
    return f"{prefix}_{b32encode(digest).decode()[:24].lower()}"


def response_id_of(key: SessionKey, principal: Principal, command_id: str) -> ResponseId:
    """The response that a command begins, if it begins one: known before anybody has applied it."""
    return ResponseId(derive("resp", key.tenant, key.session, principal.id, command_id))


def item_ids_of(key: SessionKey, principal: Principal, command: cm.ActorCommand) -> tuple[ItemId, ...]:
    """The items that a command puts into the log, as they are named."""
    whose = (key.session, principal.id, command.id)
    match command:
        case cm.MessageCreate() | cm.MessageEdit():
            return (ItemId(derive("msg", *whose)),)
        case cm.ToolOutput():
            return (ItemId(derive("fco", *whose)),)
        case cm.TurnCreate():
            prefixes = [_PREFIXES[type(item)] for item in command.items]
            return tuple(ItemId(derive(prefix, *whose, str(index))) for index, prefix in enumerate(prefixes))
        case _:
            return ()


def quarantined_error() -> SessileError:
    return SessileError(
        "quarantined", "This response was given up: its server ended several times while working on it."
    )


class Responses:
    """The state of a session, the step being made, and what is done to responses in it."""

    def __init__(
        self, state: State, *, fingerprint: str, smaller_model: str = "", prices: PriceBook | None = None
    ) -> None:
        self.state = state
        self._price_book = prices
        self._smaller_model = smaller_model  # the only other model than the session's that writes here; "": none does
        self._fingerprint = fingerprint  # of the tokenizer whose ids `Output` carries
        self._generations: dict[ResponseId, int] = {}  # the present run of each response that has one
        self._paused: frozenset[ResponseId] = frozenset()  # for nobody reads them
        self._runs = 0  # begun by this activation; numbers them
        self._runs_lost = 0  # those begun when the engine last ended under one
        self._prompts: dict[ResponseId, Usage] = {}  # what the present run's prompt cost, as far as is known
        self._now = UnixMs(0)
        self._out: Step  # of the step that is being taken, and only then
        self._service: dict[str, Json] | None = None  # of the response that the present command begins
        self._model = ""  # likewise, where it is not the session's
        self._replica = ""  # where it is active

    @property
    def at_work(self) -> bool:
        """Some turn is open, and not only because all its answers are paused."""
        state = self.state
        paused = state.open and self._paused.issuperset(state.open)
        return state.busy and (bool(state.awaiting) or not paused)

    def prompted(self, response_id: ResponseId, input_tokens: int, cached_tokens: int) -> None:
        """Notes what a response's prompt is made of, for the usage of one that is cut short."""
        self._prompts[response_id] = Usage(input_tokens, 0, cached_tokens)

    def other_model(self, open_: Open) -> str:
        """The model that writes a response; "" where it is the session's own."""
        assert self.state.info is not None
        return "" if open_.body.model == self.state.info.model else open_.body.model

    def _put(self, event: ev.AnyEvent, private: ev.Private | None = None) -> None:
        record = ev.Record(self.state.top + 1, self._now, event, private)
        apply(self.state, record)
        self._out.records.append(record)

    def _item(self, item: Item, prepared: Prepared | None) -> None:
        private = ev.Private(tokens=prepared.tokens, fingerprint=prepared.fingerprint) if prepared else None
        self._put(ev.ItemCreated(item=item), private)

    def _begin(
        self,
        response_id: ResponseId,
        parent: ItemId | None,
        principal: Principal,
        sampling: Sampling,
        *,
        sequence: int = 0,
        after: ResponseId | None = None,
        metadata: dict[str, Json] | None = None,
        request: dict[str, Json] | UnsetType = UNSET,
        model: str | None = None,
        service: dict[str, Json] | None = None,
    ) -> None:
        """Creates a response and asks for its first generation. The seed is drawn here if nobody gave one. `model` and
        `service` are of one that was let in earlier; else they are the present command's."""
        if sampling.seed is None:
            seed = int.from_bytes(hashlib.blake2b(response_id.encode(), digest_size=4).digest(), "big")
            sampling = msgspec.structs.replace(sampling, seed=seed)
        if model is None:
            model, service = self._model, self._service
        body = self._body(response_id, parent, "in_progress", model, service)
        if metadata or request is not UNSET:
            body = msgspec.structs.replace(body, metadata=metadata or {}, request=request)
        self._put(
            ev.ResponseCreated(response_id=response_id, sequence_number=sequence, response=body),
            ev.Private(sampling=sampling, principal=principal, after=after),
        )
        self._put(ev.ResponseInProgress(response_id=response_id, sequence_number=sequence + 1))
        self._start(self.state.open[response_id])

    def _body(
        self,
        response_id: ResponseId,
        parent: ItemId | None,
        status: Literal["queued", "in_progress"],
        model: str,
        service: dict[str, Json] | None,
    ) -> ev.ResponseBody:
        """A smaller model is told in `service`; one that this replica has not (any more) does not write."""
        assert self.state.info is not None
        told = dict(service or {})
        if model and model == self._smaller_model and model != self.state.info.model:
            told["smaller_model"] = model
        else:
            model = self.state.info.model
        return ev.ResponseBody(
            service=told or UNSET,
            id=response_id,
            created_at=self._now,
            status=status,
            model=model,
            parent_id=parent,
        )

    def _start(self, open_: Open) -> None:
        self._runs += 1
        self._generations[open_.id] = self._runs
        self._paused -= {open_.id}
        self._out.effects.append(Start(open_.id, self._runs))

    def _start_all(self) -> None:
        for open_ in self.state.open.values():
            if open_.id not in self._generations:
                self._start(open_)

    def _current(self, response_id: ResponseId, generation: int) -> Open | None:
        """The response, if it is open and this generation is its present one; what others say is too late."""
        if self._generations.get(response_id) != generation:
            return None
        return self.state.open.get(response_id)

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
        findings: tuple[Finding, ...] = (),
        go_on: bool = True,
    ) -> None:
        """Writes the endings of the drafts and the one terminal event, with its usage; lets the next one begin."""
        state = self.state
        for event in event_writer.close_drafts(open_, "completed" if status == "completed" else "incomplete"):
            self._put(event)
        cost = self._price_book.cost(open_.body.model, usage, self._now) if self._price_book is not None else None
        body = msgspec.structs.replace(
            open_.body,
            status=status,
            output=tuple(draft.item for draft in open_.drafts),
            usage=usage.public() if cost is None else {**usage.public(), "cost": cost.public()},
            incomplete_details={"reason": incomplete} if incomplete is not None else None,
            error={"code": error.code, "message": error.public_message} if error is not None else None,
        )
        fingerprint = open_.fingerprint or self._fingerprint
        private = ev.Private(
            tokens=bytes(open_.tokens), tail=open_.tail, fingerprint=fingerprint, findings=without_text(findings)
        )
        self._put(_TERMINAL[status](response_id=open_.id, sequence_number=open_.sequence, response=body), private)
        self._generations.pop(open_.id, None)
        self._prompts.pop(open_.id, None)
        self._out.usage.append(
            UsageRow(
                response_id=open_.id,
                principal=open_.principal,
                model=body.model,
                usage=usage,
                status=status,
                recomputed_tokens=recomputed,
                withheld_tokens=withheld,
                at=self._now,
                price_version=cost.version if cost is not None else "",
                currency=cost.currency if cost is not None else "",
                cost=cost.picos if cost is not None else 0,
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
            last = item_tree.question(self.state, last) if last is not None else None
        body, told = first.body, first.body.service or {}
        self._begin(
            body.id,
            last,
            first.principal,
            first.sampling,
            sequence=first.sequence,
            model=body.model,
            service={name: told[name] for name in told if name in _STAYS},
        )

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

    def _output(self, input: Output) -> None:
        self._review(input)
        open_ = self._current(input.response_id, input.generation)
        if open_ is None:
            return
        fingerprint = self._fingerprint if input.tokens and not open_.tokens else ""
        findings = without_text(input.findings)
        private = ev.Private(tokens=input.tokens, tail=input.tail, fingerprint=fingerprint, findings=findings)
        for index, piece in enumerate(input.pieces, 1):
            for event in event_writer.write(open_, piece, self._now):
                last = index == len(input.pieces) and event_writer.carries(piece, event)
                self._put(event, private if last else None)
        if input.retracted is not None and open_.drafts:
            self._put(
                ev.ContentRetracted(
                    response_id=open_.id,
                    item_id=open_.drafts[-1].item.id,
                    content_index=0,
                    start=input.retracted.start,
                    end=input.retracted.end,
                    replacement=input.retracted.replacement,
                    category=input.retracted.category,
                ),
                ev.Private(findings=findings) if findings and not input.pieces else None,
            )

    def _review(self, input: Output | GenerationFinished | GenerationFailed | GenerationStopped) -> None:
        """Opens the cases that findings of an answer ask for, whether or not its run is still the present one."""
        if not any(each.review for each in input.findings):
            return
        state, name = self.state, input.response_id
        of = state.open.get(name) or state.answers.get(name)
        if of is None:
            return
        answer = Subject(
            key=state.key,
            name=name,
            direction="output",
            user=state.user,
            offset=state.top,
            now=self._now,
            response_id=name,
        )
        self._out.reviews += cases_to_open(input.findings, answer, known=of.findings)

    def _finished(self, input: GenerationFinished) -> None:
        self._review(input)
        open_ = self._current(input.response_id, input.generation)
        if open_ is None:
            return
        if input.refusal is not None:
            for event in event_writer.write(open_, event_writer.RefusalText(input.refusal), self._now):
                self._put(event)
        reason: IncompleteReason | None = None if input.reason == "stop" else input.reason
        self._end(
            open_,
            "completed" if reason is None else "incomplete",
            input.usage,
            incomplete=reason,
            recomputed=input.recomputed_tokens,
            withheld=input.withheld_tokens,
            findings=input.findings,
        )

    def _broke(self, input: GenerationFailed) -> None:
        self._review(input)
        open_ = self._current(input.response_id, input.generation)
        if open_ is None:
            return
        if not isinstance(input.error, EngineLost):
            self._end(open_, "failed", input.usage, error=input.error, findings=input.findings)
        elif input.generation > self._runs_lost and self.state.recoveries >= RECOVERIES_MAX:
            others = [each for each in self.state.open.values() if each is not open_]
            self._end(open_, "failed", input.usage, error=quarantined_error(), findings=input.findings)
            self._out.effects += [Stop(each.id) for each in others]
            self._give_up(others)
        else:
            if input.generation > self._runs_lost:  # one death, however many runs it ended
                self._runs_lost = self._runs
                self._put(ev.SessionMigrated(replica=self._replica, cause="restart"))
            self._start(open_)

    def _give_up(self, all_open: list[Open]) -> None:
        """One of them keeps ending whoever works on it."""
        for open_ in all_open:
            self._end(open_, "failed", self._used(open_), error=quarantined_error())

    def _activated(self, input: Activated) -> None:
        """Goes on with whatever the log says is unfinished; a session that keeps killing its replica is put away."""
        state, self._replica = self.state, input.replica
        if state.info is None or state.deleted:
            return
        if state.open:
            if state.recoveries >= RECOVERIES_MAX:
                self._give_up(list(state.open.values()))
            else:
                cause = "restart" if input.cause == "activation" else input.cause
                self._put(ev.SessionMigrated(replica=input.replica, cause=cause))
                for open_ in list(state.open.values()):
                    foreign = open_.fingerprint and open_.fingerprint != self._fingerprint
                    if foreign or self.other_model(open_) not in ("", self._smaller_model):
                        self._end_incomplete(open_, "recovery_incompatible")
        self._start_all()
        for waiting in state.awaiting.values():
            self._out.effects.append(ArmToolDeadline(waiting.response_id, waiting.since))
