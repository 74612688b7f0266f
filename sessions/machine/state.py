"""A conversation as the fold of its log: nothing is here that does not follow from the log.

`apply` advances a `State` by one record and is the only code that changes one; an actor, a reader that needs a snapshot
and a test all fold the same way, so what a client is shown after a crash is what the actor continues from.

Does not know: who owns the session, what is durable yet, time, engines. `apply` trusts its records: what may be written
is decided in `sessions.machine.machine`.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec import UNSET, UnsetType

from sessions.machine import routed_turns, tool_turns
from sessions.machine.scrubbing import scrub, scrub_part, with_output
from sessions.model import events as ev
from sessions.model.journal_types import Head, Loaded
from sessions.model.reviews import Outcome, Rating, ReviewId
from sessions.model.types import (
    CallId,
    ContentPart,
    FunctionCall,
    FunctionCallOutput,
    InputPassage,
    Item,
    ItemId,
    Json,
    Message,
    OutputText,
    Principal,
    Reasoning,
    Refusal,
    ResponseId,
    Sampling,
    SessionKey,
    UnixMs,
)
from sessions.model.verdicts import Finding

STATE_VERSION = 8
FINDINGS_MAX = 32  # findings of one answer that are kept, at most
COMPACTIONS_MAX = 64  # of one session, on all its branches


class Draft(msgspec.Struct, kw_only=True):
    """An output item that is being written. `text` is a message's text or a call's arguments; `reasoning` is the
    model's thoughts before it."""

    item: Message | FunctionCall
    output_index: int
    text: list[str] = []
    refusal: list[str] = []
    reasoning: list[str] = []
    part_open: bool = False  # whether the text part is open; a refusal's part is there with its text
    done: bool = False

    def so_far(self) -> Message | FunctionCall:
        """Returns the item with its text so far, as a snapshot shows it."""
        if self.done:
            return self.item
        text = "".join(self.text)
        if isinstance(self.item, FunctionCall):
            return msgspec.structs.replace(self.item, arguments=text)
        parts: tuple[ContentPart, ...] = (Reasoning("".join(self.reasoning)),) if self.reasoning else ()
        if self.text or self.part_open:
            parts += (OutputText(text=text),)
        if self.refusal:
            parts += (Refusal(refusal="".join(self.refusal)),)
        return msgspec.structs.replace(self.item, content=parts)

    @property
    def text_index(self) -> int:
        """The index of the text among the parts of its message."""
        return 1 if self.reasoning else 0

    @property
    def is_thinking(self) -> bool:
        """Whether thoughts are being written, with no text behind them yet."""
        return bool(self.reasoning) and not (self.part_open or self.refusal or self.done)


class Open(msgspec.Struct, kw_only=True):
    """A response that has begun and not ended."""

    body: ev.ResponseBody
    principal: Principal
    sampling: Sampling
    sequence: int
    tokens: bytearray  # the ledger of what was released, packed
    fingerprint: str = ""  # of the tokenizer that `tokens` are ids of
    tail: str = ""  # raw text released beyond the last wholly released token
    drafts: list[Draft] = []
    findings: tuple[Finding, ...] = ()
    reasoning_tokens: int = 0  # how many of `tokens` are thoughts
    round: int = 0  # how often its turn has called server tools before it

    @property
    def id(self) -> ResponseId:
        return self.body.id

    @property
    def last_item(self) -> ItemId | None:
        return self.drafts[-1].item.id if self.drafts else self.body.parent_id

    @property
    def began_with_call(self) -> bool:
        """Whether a call, or the thoughts before one, came first. An answer in a required format has no thoughts."""
        first = self.drafts[0].so_far() if self.drafts else None
        return isinstance(first, FunctionCall) or (first is not None and bool(first.reasoning))


class Queued(msgspec.Struct, kw_only=True):
    """A response that waits for the response `after` to end. When it begins, `item` becomes its user message and gets a
    parent."""

    body: ev.ResponseBody
    principal: Principal
    sampling: Sampling
    after: ResponseId
    sequence: int
    item: Item | None = None
    tokens: bytes = b""
    fingerprint: str = ""
    steers: bool = False


class Answer(msgspec.Struct, kw_only=True):
    """A response that has ended. Its token ids are `tokens` followed by those of the text `tail`; they are valid only
    for the tokenizer `fingerprint`."""

    items: tuple[ItemId, ...]
    tokens: bytes = b""
    tail: str = ""
    fingerprint: str = ""
    findings: tuple[Finding, ...] = ()
    parent: ItemId | None | UnsetType = UNSET  # of a response without items; unset: it never began
    reason: str = ""  # why it is incomplete
    status: str = ""  # `status`, `model` as the last event said; "": folded before they were kept
    model: str = ""
    created_at: UnixMs = UnixMs(0)
    completed_at: UnixMs = UnixMs(0)
    usage: dict[str, Json] | None = None
    continued_by: ResponseId | None = None  # the response that goes on behind the server tools' outputs


class Feedback(msgspec.Struct, frozen=True):
    """One person's rating of an answer."""

    rating: Rating
    reason: str
    at: UnixMs


class Review(msgspec.Struct, kw_only=True):
    """A review case as the session's user sees it."""

    category: str
    response_id: ResponseId | None = None
    appealed: bool = False
    outcome: Outcome | None = None
    decision: int = 0


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """A summary that prompts have in place of the first `count` items, on every branch that contains the item
    `read`."""

    summary: Message
    model: str
    count: int
    read: ItemId
    tokens_before: int
    tokens_after: int
    tokens: bytes = b""
    fingerprint: str = ""

    @property
    def id(self) -> ItemId:
        return self.summary.id


class StoredSummary(msgspec.Struct, frozen=True):
    """A summary in the log, whether in force or not: the last item that its model has read, and its text's length."""

    read: ItemId
    length: int


class Awaiting(msgspec.Struct, kw_only=True):
    """A turn that waits for outputs of the tools that its last response called. `missing` are the calls without output,
    `last` is the newest item of the turn."""

    response_id: ResponseId
    sampling: Sampling
    missing: list[CallId]
    last: ItemId
    since: UnixMs
    model: str = ""  # the model that wrote the response, and goes on with the turn
    server: tool_turns.ServerCalls | None = None  # the calls that the server carries out; None: no call

    def due_call(self, call_id: CallId) -> tool_turns.ServerCall | None:
        """Returns a call of a server tool that has no output yet; None if it is none, or has one."""
        return self.server.calls.get(call_id) if self.server is not None and call_id in self.missing else None


class State(msgspec.Struct, kw_only=True):
    """A session after the first `top` records of its log."""

    key: SessionKey
    version: int = STATE_VERSION
    top: int = 0
    at: UnixMs = UnixMs(0)
    user: str | None = None
    listed: bool = True
    info: ev.SessionInfo | None = None
    titled_at: int = 0  # the offset at which it got its present title
    deleted: bool = False
    items: dict[ItemId, Item] = {}
    newest: ItemId | None = None
    made_by: dict[ItemId, ResponseId] = {}  # output items only
    item_tokens: dict[ItemId, tuple[str, bytes]] = {}  # (fingerprint, packed); not of output items
    quoting: dict[str, list[ItemId]] = {}  # the messages that have passages of a document, by the document's id
    answers: dict[ResponseId, Answer] = {}
    open: dict[ResponseId, Open] = {}
    queue: list[Queued] = []
    awaiting: dict[ResponseId, Awaiting] = {}
    cuts: dict[str, ItemId] = {}  # first item that a prompt keeps, by response; of one without output, by its question
    compactions: dict[ItemId, Compaction] = {}  # in force, the oldest first
    summaries: dict[ItemId, StoredSummary] = {}  # all whose text is in the log
    pinned: list[ItemId] = []
    retracted_at: int = 0  # the offset of the last retraction
    reviews: dict[ReviewId, Review] = {}
    feedback: dict[ResponseId, dict[str, Feedback]] = {}  # by response and rater
    recoveries: int = 0  # activations that found a turn open, since it last made progress
    routed: routed_turns.RoutedTurns | None = None  # of a session whose model is an alias

    @property
    def busy(self) -> bool:
        """Whether at least one turn is open."""
        return bool(self.open or self.queue or self.awaiting)


def empty(key: SessionKey, *, user: str | None, listed: bool = True) -> State:
    return State(key=key, user=user, listed=listed)


def apply(state: State, record: ev.Record) -> None:
    """Advances `state` in place by one record, which must be the next one."""
    if record.offset != state.top + 1:
        raise AssertionError(f"record {record.offset} does not follow {state.top}")
    state.top = record.offset
    state.at = record.at
    event, private = record.event, record.private
    if isinstance(event, ev.ResponseEvent):
        _apply_response_event(state, event, private)
        return
    match event:
        case ev.ItemCreated():
            _add(state, event.item)
            if private is not None and private.fingerprint:
                state.item_tokens[event.item.id] = (private.fingerprint, private.tokens)
            if isinstance(event.item, FunctionCallOutput):
                _tool_answered(state, event.item)
            state.recoveries = 0
        case ev.SessionCreated() | ev.SessionUpdated():
            if state.info is None or state.info.title != event.info.title:
                state.titled_at = record.offset
            state.routed = routed_turns.after_update(state.routed, state.info, event.info)
            state.info = event.info
        case ev.SessionDeleted():
            state.deleted = True
            state.awaiting.clear()
        case ev.SessionMigrated():
            if event.cause != "handoff":
                state.recoveries += 1
        case ev.ContextFitted():
            if private is not None and private.cut is not None:
                state.cuts[event.response_id] = private.cut
        case ev.ContextCompacted():
            _compact(state, event, private)
        case ev.CompactionUndone():
            state.compactions.pop(event.compaction_id, None)
        case ev.ItemPinned():
            state.pinned = [name for name in state.pinned if name != event.item_id]
            if event.pinned:
                state.pinned.append(event.item_id)
        case ev.ContentRetracted():
            state.retracted_at = record.offset
            if state.summaries:
                _void_compactions(state, event.item_id)
            _retract(state, event)
            open_ = state.open.get(event.response_id)
            if open_ is not None and private is not None:
                _add_findings(open_, private.findings)
        case ev.ReviewAppealed():
            review = _review(state, event)
            review.appealed, review.outcome = True, None  # what was decided before is open again
        case ev.ReviewDecided():
            review = _review(state, event)
            review.outcome, review.decision = event.outcome, event.decision
        case ev.FeedbackUpdated():
            _update_feedback(state, event)
        case ev.ToolCallStarted() | ev.ToolApprovalRequested() | ev.ToolApprovalDecided():
            waiting = state.awaiting.get(event.response_id)
            tool_turns.apply_tool_event(waiting.server if waiting is not None else None, event)


def _compact(state: State, event: ev.ContextCompacted, private: ev.Private | None) -> None:
    private = private or ev.Private()
    state.cuts = {}  # prompts are fitted anew: a cut that was made without the summary leaves out what has room again
    state.compactions[event.summary.id] = Compaction(
        summary=event.summary,
        model=event.model,
        count=event.items,
        read=event.read_item_id,
        tokens_before=event.tokens_before,
        tokens_after=event.tokens_after,
        tokens=private.tokens,
        fingerprint=private.fingerprint,
    )
    state.summaries[event.summary.id] = StoredSummary(event.read_item_id, len(event.summary.text))
    if len(state.compactions) > COMPACTIONS_MAX:
        del state.compactions[next(iter(state.compactions))]


def _void_compactions(state: State, retracted: ItemId) -> None:
    """Drops the summaries whose model has read a retracted item, and a summary that is itself retracted."""
    for name in (retracted, *summaries_of(state, [retracted])):
        state.compactions.pop(name, None)
        state.summaries.pop(name, None)


def summaries_of(state: State, items: Collection[ItemId]) -> dict[ItemId, StoredSummary]:
    """Returns by their ids the summaries in the log, in force or not, whose model has read one of these items."""
    below = set(items)
    if not state.summaries or below.isdisjoint(state.items):
        return {}
    for item in state.items.values():  # a parent stands before its children
        if item.parent_id in below:
            below.add(item.id)
    return {name: summary for name, summary in state.summaries.items() if summary.read in below}


def compaction_of(state: State, leaf: ItemId | None) -> Compaction | None:
    """Returns the newest summary that holds on the branch ending in `leaf`; None if there is none. A summary made from
    items of another branch does not hold."""
    for compaction in reversed(state.compactions.values()):
        if stands_below(state, leaf, compaction.read):
            return compaction
    return None


def _update_feedback(state: State, event: ev.FeedbackUpdated) -> None:
    ratings = state.feedback.setdefault(event.response_id, {})
    if event.rating is not None:
        ratings[event.by] = Feedback(event.rating, event.reason, state.at)
        return
    ratings.pop(event.by, None)
    if not ratings:
        del state.feedback[event.response_id]


def _apply_response_event(state: State, event: ev.ResponseEvent, private: ev.Private | None) -> None:
    open_ = state.open.get(event.response_id)
    if open_ is not None:
        open_.sequence = event.sequence_number + 1
    match event:
        case ev.OutputTextDelta() | ev.RefusalDelta() | ev.ArgumentsDelta():
            assert open_ is not None
            draft = open_.drafts[event.output_index]
            (draft.refusal if isinstance(event, ev.RefusalDelta) else draft.text).append(event.delta)
            _released(open_, private)
            state.recoveries = 0
        case ev.ReasoningDelta():
            assert open_ is not None
            open_.drafts[event.output_index].reasoning.append(event.delta)
            open_.reasoning_tokens += len(private.tokens) // 4 if private is not None else 0
            _released(open_, private)
            state.recoveries = 0
        case ev.ResponseCreated():
            assert private is not None and private.sampling is not None and private.principal is not None
            _leave_queue(state, event.response_id, event.response_id)
            _follow(state, private.after, event.response_id)
            cut = cut_of(state, event.response.parent_id)
            if cut is not None:
                state.cuts[event.response_id] = cut
            state.routed = routed_turns.after_response(state.routed, event.response)
            state.open[event.response_id] = Open(
                body=event.response,
                principal=private.principal,
                sampling=private.sampling,
                sequence=event.sequence_number + 1,
                tokens=bytearray(),
                round=private.round,
            )
        case ev.ResponseQueued():
            assert private is not None and private.principal is not None
            assert private.sampling is not None and private.after is not None
            place = len(state.queue)
            if event.steers is True:  # before all that else waits for it
                _follow(state, private.after, event.response_id)
                behind = (at for at, each in enumerate(state.queue) if each.after == event.response_id)
                place = next(behind, place)
            state.queue.insert(
                place,
                Queued(
                    body=event.response,
                    principal=private.principal,
                    sampling=private.sampling,
                    after=private.after,
                    sequence=event.sequence_number + 1,
                    item=event.item,
                    tokens=private.tokens,
                    fingerprint=private.fingerprint,
                    steers=event.steers is True,
                ),
            )
        case ev.OutputItemAdded():
            assert open_ is not None and isinstance(event.item, Message | FunctionCall)
            open_.drafts.append(Draft(item=event.item, output_index=event.output_index))
            _released(open_, private)
            state.made_by[event.item.id] = event.response_id
            _add(state, event.item)
        case ev.ContentPartAdded():
            assert open_ is not None
            if isinstance(event.part, OutputText):
                open_.drafts[event.output_index].part_open = True
        case ev.OutputItemDone():
            assert open_ is not None and isinstance(event.item, Message | FunctionCall)
            draft = open_.drafts[event.output_index]
            draft.item, draft.done, draft.text = event.item, True, []
            draft.reasoning.clear()
            _set(state, event.item)
        case ev.ResponseCompleted() | ev.ResponseIncomplete() | ev.ResponseFailed():
            _end(state, event, private)
        case _:
            return  # in_progress and the "done" of parts repeat the deltas


def _review(state: State, event: ev.ReviewAppealed | ev.ReviewDecided) -> Review:
    return state.reviews.setdefault(event.review_id, Review(category=event.category, response_id=event.response_id))


def _add_findings(of: Open | Answer, findings: tuple[Finding, ...]) -> None:
    if findings:
        of.findings = (*of.findings, *findings)[-FINDINGS_MAX:]


def _released(open_: Open, private: ev.Private | None) -> None:
    if private is not None:
        _add_findings(open_, private.findings)
        open_.tokens += private.tokens
        open_.fingerprint = private.fingerprint or open_.fingerprint
        open_.tail = private.tail


def _leave_queue(state: State, response_id: ResponseId, instead: ResponseId | None) -> None:
    """Takes a response out of the queue. If `instead` is None, responses that waited for it now wait for the one that
    it waited for. Else the responses that waited for the same one as it now wait for `instead`."""
    leaving = next((waiting for waiting in state.queue if waiting.body.id == response_id), None)
    if leaving is None:
        return
    state.queue.remove(leaving)
    if instead is None:
        _follow(state, response_id, leaving.after)
    else:
        _follow(state, leaving.after, instead)


def _follow(state: State, after: ResponseId | None, instead: ResponseId) -> None:
    for waiting in state.queue:
        if waiting.after == after:
            waiting.after = instead


def _end(state: State, event: ev.Terminal, private: ev.Private | None) -> None:
    """Closes an ended response: its items and token ids are final, and its turn may wait for tools."""
    state.recoveries = 0
    waited = next((each for each in state.queue if each.body.id == event.response_id), None)
    _leave_queue(state, event.response_id, None)
    ended = state.open.pop(event.response_id, None)
    body = event.response
    reason = str((body.incomplete_details or {}).get("reason", ""))
    parent: ItemId | None | UnsetType = UNSET if body.output or waited is not None else body.parent_id
    if waited is not None and waited.item is not None and reason == "steered":
        parent = waited.item.id  # the same step lays it below the tools' outputs
    for item in body.output:
        _set(state, item)
    answer = Answer(
        items=tuple(item.id for item in body.output),
        parent=parent,
        reason=reason,
        status=body.status,
        model=body.model,
        created_at=body.created_at,
        completed_at=state.at,
        usage=body.usage,
        continued_by=body.continued_by or None,
    )
    if private is not None:
        answer.tokens, answer.tail, answer.fingerprint = private.tokens, private.tail, private.fingerprint
        _add_findings(answer, ended.findings if ended is not None else ())
        _add_findings(answer, private.findings)
    state.answers[body.id] = answer
    if not body.output and body.id in state.cuts and body.parent_id is not None:
        state.cuts[body.parent_id] = state.cuts.pop(body.id)
    last = body.output[-1].id if body.output else body.parent_id
    calls = [item.call_id for item in body.output if isinstance(item, FunctionCall)]
    if ended is not None and calls and isinstance(event, ev.ResponseCompleted) and last is not None:
        state.awaiting[body.id] = Awaiting(
            response_id=body.id, sampling=ended.sampling, missing=calls, last=last, since=state.at, model=body.model
        )
        state.awaiting[body.id].server = tool_turns.server_calls(body, ended.principal, ended.round)


def _add(state: State, item: Item) -> None:
    if item.id not in state.items:
        state.newest = item.id
    _set(state, item)
    if isinstance(item, Message):
        for file_id in dict.fromkeys(passage.file_id for passage in item.passages):
            state.quoting.setdefault(file_id, []).append(item.id)


def _set(state: State, item: Item) -> None:
    """Stores an item. An item that exists keeps its first parent, so that no log can make a cycle."""
    there = state.items.get(item.id)
    if there is not None and there.parent_id != item.parent_id:
        item = msgspec.structs.replace(item, parent_id=there.parent_id)
    state.items[item.id] = item


def stands_below(state: State, leaf: ItemId | None, above: ItemId) -> bool:
    """Returns whether `above` is `leaf` itself or one of its ancestors."""
    while leaf is not None and leaf != above:
        leaf = state.items[leaf].parent_id
    return leaf is not None


def cut_of(state: State, leaf: ItemId | None) -> ItemId | None:
    """Returns the first item that prompts of the branch ending in `leaf` keep, as the newest prompt on it has set; None
    if prompts keep all. Cuts of other branches have no effect, and an answer keeps the cut that it began with."""
    while state.cuts and leaf is not None:
        made_by = state.made_by.get(leaf)
        if made_by is not None or leaf in state.cuts:
            return state.cuts.get(made_by or leaf)
        leaf = state.items[leaf].parent_id
    return None


def _tool_answered(state: State, item: FunctionCallOutput) -> None:
    """Notes a tool's output for the turn that waits for it. An output on another branch (a client may repeat one) has
    no effect here."""
    for waiting in state.awaiting.values():
        if item.call_id in waiting.missing and stands_below(state, item.parent_id, waiting.last):
            waiting.missing.remove(item.call_id)
            waiting.last = item.id
            if not waiting.missing:
                del state.awaiting[waiting.response_id]
            return


def _retract(state: State, event: ev.ContentRetracted) -> None:
    """Replaces the retracted span in the item, or in the draft of an item that is being written."""
    for open_ in state.open.values():
        for draft in open_.drafts:
            if draft.item.id == event.item_id and not draft.done:
                if draft.reasoning and event.content_index == 0:
                    draft.reasoning = [scrub("".join(draft.reasoning), event)]
                else:
                    draft.text = [scrub("".join(draft.text), event)]
                if isinstance(draft.item, Message):  # the ledger is derived: it is made again from what is left
                    open_.tokens.clear()
                    open_.tail = "".join(draft.text)
    item = state.items.get(event.item_id)
    if isinstance(item, Message) and event.content_index < len(item.content):
        parts = list(item.content)
        part = parts[event.content_index]
        parts[event.content_index] = scrub_part(part, event)
        state.items[item.id] = item = msgspec.structs.replace(item, content=tuple(parts))
        if isinstance(part, InputPassage) and not any(
            passage.file_id == part.file_id and passage.text for passage in item.passages
        ):
            _forget_message(state, item.id, part.file_id)
    elif isinstance(item, FunctionCall):
        state.items[item.id] = msgspec.structs.replace(item, arguments=scrub(item.arguments, event))
    elif isinstance(item, FunctionCallOutput):
        state.items[item.id] = with_output(item, scrub(item.output, event))
    if event.category == ev.ITEM_DELETED:
        _remove(state, event.item_id)
    state.item_tokens.pop(event.item_id, None)
    answer = state.answers.get(state.made_by.get(event.item_id, ResponseId("")))
    if answer is not None:  # the ledger is derived: it is made again from the scrubbed text
        answer.tokens, answer.tail, answer.fingerprint = b"", "", ""


def _forget_message(state: State, item_id: ItemId, file_id: str) -> None:
    """Takes a message out of those that have passages of a document."""
    names = [name for name in state.quoting.pop(file_id, ()) if name != item_id]
    if names:
        state.quoting[file_id] = names


def _remove(state: State, item_id: ItemId) -> None:
    """Takes an item out of the tree; its children get its parent. A cut at this item, or made for it, is dropped, so
    that the next prompt of the branch is fitted anew."""
    removed = state.items.pop(item_id, None)
    if removed is None:
        return
    for name, item in state.items.items():
        if item.parent_id == item_id:
            state.items[name] = msgspec.structs.replace(item, parent_id=removed.parent_id)
    if state.newest == item_id:
        state.newest = removed.parent_id
    for other in state.answers.values():
        if other.parent == item_id:
            other.parent = removed.parent_id
    state.cuts = {of: first for of, first in state.cuts.items() if item_id not in (of, first)}
    if item_id in state.pinned:
        state.pinned.remove(item_id)
    for file_id in {passage.file_id for passage in removed.passages} if isinstance(removed, Message) else ():
        _forget_message(state, item_id, file_id)
    made_by = state.made_by.pop(item_id, None)
    answer = state.answers.get(made_by) if made_by is not None else None
    if answer is not None:
        answer.items = tuple(name for name in answer.items if name != item_id)
        answer.tokens, answer.tail, answer.fingerprint = b"", "", ""


# -- folding ------------------------------------------------------------------------------------------------------


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(State)


def pack_state(state: State) -> bytes:
    """Returns a snapshot's body. It is derived from the log, and may be thrown away at any time."""
    return _encoder.encode(state)


def unpack_state(body: bytes) -> State | None:
    """Returns the state in a snapshot's body; None if it is damaged or of another version, and then the caller folds
    the log."""
    try:
        state = _decoder.decode(body)
    except (msgspec.DecodeError, ValueError):
        return None
    return state if state.version == STATE_VERSION else None


def begin(head: Head, snapshot: State | None) -> State:
    if snapshot is not None and snapshot.key == head.key:
        return snapshot
    return empty(head.key, user=head.user, listed=head.listed)


def of_head(head: Head) -> State:
    """Returns the state of a session of which only the head can be read. It serves to delete the session, and for
    nothing else."""
    state = empty(head.key, user=head.user, listed=head.listed)
    state.top, state.at = head.top, head.updated_at
    state.info = ev.SessionInfo(model=head.model, created_at=head.created_at)
    return state


def replay(loaded: Loaded) -> State:
    """Returns the state that a loaded log describes.

    Raises ValueError if the snapshot cannot be read and records that it covers were not loaded; then the caller loads
    the whole log.
    """
    snapshot = unpack_state(loaded.snapshot.body) if loaded.snapshot is not None else None
    state = begin(loaded.head, snapshot)
    for record in loaded.records:
        if record.offset <= state.top:
            continue
        if record.offset != state.top + 1:
            raise ValueError("the snapshot cannot be read and the log behind it was left out")
        apply(state, record)
    if loaded.snapshot is not None and snapshot is None and state.top < loaded.head.top:
        raise ValueError("the snapshot cannot be read and nothing stands behind it")
    return state
