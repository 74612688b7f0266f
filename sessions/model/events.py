"""The contents of a log: events as clients see them, and records as the journal stores them.

Names and fields follow OpenAI's Responses stream if that has such an event; the others are ours (PROTOCOL.md §2). An
event is public as a whole. What only the server needs (token ids for the ledger, sampling with the drawn seed, the
queued input) is in the record's `Private` and never reaches a reader.

Delta events dominate every cost in the system; they stay flat and small.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sessions.model.reviews import Outcome, Rating, ReviewId
from sessions.model.types import (
    CallId,
    ContentPart,
    ContextPolicy,
    Item,
    ItemId,
    Json,
    Message,
    Principal,
    ResponseId,
    Sampling,
    SearchScope,
    Status,
    Tool,
    UnixMs,
)
from sessions.model.verdicts import Finding


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events; on the wire `type` is the tag."""


class ResponseEvent(Event, frozen=True, kw_only=True):
    """An event of one response. `sequence_number` counts the response's events from 0 without gaps."""

    response_id: ResponseId
    sequence_number: int


class PartEvent(ResponseEvent, frozen=True, kw_only=True):
    """An event of one content part of one output item."""

    item_id: ItemId
    output_index: int
    content_index: int


class ResponseBody(msgspec.Struct, frozen=True, kw_only=True):
    """The complete `response` object, which the created and the terminal events have."""

    id: ResponseId
    object: Literal["response"] = "response"
    created_at: UnixMs
    status: Status
    model: str
    parent_id: ItemId | None
    output: tuple[Item, ...] = ()
    usage: dict[str, Json] | None = None
    incomplete_details: dict[str, Json] | None = None
    error: dict[str, Json] | None = None
    metadata: dict[str, Json] = {}
    service: dict[str, Json] | UnsetType = UNSET  # how it was let in: place in the queue, limits by brownout
    request: dict[str, Json] | UnsetType = UNSET  # the settings of an HTTP request, as its API echoes them
    continued_by: ResponseId | UnsetType = UNSET  # the response that goes on behind the outputs of server tools


class ModelHome(msgspec.Struct, frozen=True):
    """A replica where a session had a certain model before; it may still have the KV of `tokens` tokens."""

    replica: str
    tokens: int
    at: UnixMs


class SessionRouting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The routing of a session whose model is an alias: how it came to its present model, and where it was before. With
    `alias` "" the session is on its way to a model that a turn named."""

    alias: str
    target: str = ""  # the model that it is on its way to
    source: str = ""  # the model that it left last
    why: str = ""
    tokens: int = 0  # how many had to be computed anew for that
    version: str = ""  # of the models file that was in force
    command: str = ""  # id of the turn's command that it was for
    homes: dict[str, ModelHome] = {}  # by model


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a session. `session.created` and `session.updated` always have all of them."""

    model: str
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    metadata: dict[str, Json] = {}
    title: str | None = None
    title_made: bool | UnsetType = UNSET  # true: the server wrote the title, from the conversation
    temperature: float | UnsetType = UNSET  # for answers whose command names none; the next one too
    max_output_tokens: int | UnsetType = UNSET
    memories: tuple[str, ...] | UnsetType = UNSET  # the end user's memories when it was created
    context_policy: ContextPolicy | UnsetType = UNSET  # for a full context window; unset: the tenant's policy
    compact_threshold: int | UnsetType = UNSET  # prompt tokens above which the conversation is compacted
    routing: SessionRouting | UnsetType = UNSET  # unset: its model was named
    created_at: UnixMs
    knowledge: SearchScope | UnsetType = UNSET  # what is searched for each of its turns; unset: nothing


# -- the session ------------------------------------------------------------------------------------------------


class SessionCreated(Event, frozen=True, kw_only=True, tag="session.created"):
    info: SessionInfo


class SessionUpdated(Event, frozen=True, kw_only=True, tag="session.updated"):
    info: SessionInfo


class SessionDeleted(Event, frozen=True, kw_only=True, tag="session.deleted"):
    """The session is deleted: always the last record of a log."""


class SessionMigrated(Event, frozen=True, kw_only=True, tag="session.migrated"):
    """Informs that another activation serves the session now. `cause` is restart, failover or handoff."""

    replica: str
    cause: str


class ItemCreated(Event, frozen=True, kw_only=True, tag="item.created"):
    item: Item


# -- responses --------------------------------------------------------------------------------------------------


class ResponseQueued(ResponseEvent, frozen=True, kw_only=True, tag="response.queued"):
    """A response is accepted and waits for its branch. `item` is the message that is created when it starts."""

    response: ResponseBody
    item: Item | None = None
    steers: bool | UnsetType = UNSET  # true: the item is taken up with the tools' outputs of the turn that it waits for


class ResponseCreated(ResponseEvent, frozen=True, kw_only=True, tag="response.created"):
    response: ResponseBody


class ResponseInProgress(ResponseEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    pass


class ContextFitted(Event, frozen=True, kw_only=True, tag="context.fitted"):
    """A response's prompt leaves out the `dropped` oldest items of the branch; the log keeps them."""

    response_id: ResponseId
    dropped: int


class ContextCompacted(Event, frozen=True, kw_only=True, tag="context.compacted"):
    """From here on prompts have a summary in place of the `items` items from `first_item_id` to `last_item_id`, except
    for pinned ones; the log keeps them. It holds on branches that contain `read_item_id`, the last item that the model
    read for it. A conversation too long to be read at once gets several summaries, one after the other. `usage` is
    their total so far, and is not billed."""

    summary: Message
    model: str
    items: int
    first_item_id: ItemId
    last_item_id: ItemId
    read_item_id: ItemId
    tokens_before: int  # of the next prompt
    tokens_after: int
    usage: dict[str, Json]
    cause: Literal["limit", "command"]


class CompactionUndone(Event, frozen=True, kw_only=True, tag="context.compaction_undone"):
    """A summary is out of force: prompts have its messages again."""

    compaction_id: ItemId


class CompactionFailed(Event, frozen=True, kw_only=True, tag="context.compaction_failed"):
    """A requested compaction has failed; the context is as it was."""

    compaction_id: ItemId
    error: dict[str, Json]


class ItemPinned(Event, frozen=True, kw_only=True, tag="item.pinned"):
    """An item is pinned, or unpinned. A pinned item stays in prompts word by word, even if those around it are
    summarised."""

    item_id: ItemId
    pinned: bool


class OutputItemAdded(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: Item


class OutputItemDone(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: Item


class ContentPartAdded(PartEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    part: ContentPart


class DeltaUsage(msgspec.Struct, frozen=True):
    """The usage of a response up to a delta, in tokens; present only if its request has `continuous_usage_stats`."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int


class ContentPartDone(PartEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    part: ContentPart


class OutputTextDelta(PartEvent, frozen=True, kw_only=True, tag="response.output_text.delta", omit_defaults=True):
    delta: str
    logprobs: tuple[Json, ...] = ()
    usage: DeltaUsage | UnsetType = UNSET


class OutputTextDone(PartEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str


class RefusalDelta(PartEvent, frozen=True, kw_only=True, tag="response.refusal.delta"):
    delta: str
    usage: DeltaUsage | UnsetType = UNSET


class RefusalDone(PartEvent, frozen=True, kw_only=True, tag="response.refusal.done"):
    refusal: str


class ReasoningDelta(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str
    usage: DeltaUsage | UnsetType = UNSET


class ReasoningDone(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(ResponseEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    item_id: ItemId
    output_index: int
    delta: str
    usage: DeltaUsage | UnsetType = UNSET


class ArgumentsDone(ResponseEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    item_id: ItemId
    output_index: int
    name: str
    arguments: str


class ResponseCompleted(ResponseEvent, frozen=True, kw_only=True, tag="response.completed"):
    response: ResponseBody


class ResponseIncomplete(ResponseEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    response: ResponseBody


class ResponseFailed(ResponseEvent, frozen=True, kw_only=True, tag="response.failed"):
    response: ResponseBody


COMPACTION_VOIDED: Final = "compaction_voided"  # a category: a summary that had read what was taken back
ERASED: Final = "deleted"  # a category: text that a client had erased
ITEM_DELETED: Final = "item_deleted"  # a category: the item is out of the tree; those below it stand below its parent
DOCUMENT_DELETED: Final = "document_deleted"  # a category: a passage of a document that is in no vector store any more


class ContentRetracted(Event, frozen=True, kw_only=True, tag="content.retracted"):
    """Replaces the code points [start, end) of a content part; replays, snapshots and exports apply it (I3).
    `response_id` is "" if the part was not written by a response."""

    response_id: ResponseId
    item_id: ItemId
    content_index: int
    start: int
    end: int
    replacement: str
    category: str


class ReviewAppealed(Event, frozen=True, kw_only=True, tag="review.appealed", omit_defaults=True):
    """The session's user has asked for a person's review of what was withheld: an answer, or a refused message of
    theirs (then there is no `response_id`)."""

    review_id: ReviewId
    category: str
    response_id: ResponseId | None = None


class ReviewDecided(Event, frozen=True, kw_only=True, tag="review.decided", omit_defaults=True):
    """A reviewer has decided. Whatever the decision, text that was never released does not come into the log, and text
    that was taken back stays so (I3)."""

    review_id: ReviewId
    category: str
    outcome: Outcome
    decision: int  # 1; or 2 after an appeal against the first
    response_id: ResponseId | None = None


class FeedbackUpdated(Event, frozen=True, kw_only=True, tag="feedback.updated", omit_defaults=True):
    """Somebody's rating of an answer, in place of their earlier one. `rating` is None if they took it back."""

    response_id: ResponseId
    by: str
    rating: Rating | None
    reason: str = ""


class ToolCallStarted(Event, frozen=True, kw_only=True, tag="tool_call.started"):
    """The server is about to carry out a call; this is in the log before anything is sent. `execution_id` is the key
    under which it is sent, each time. If no output follows in the log, the call's outcome is unknown."""

    response_id: ResponseId
    call_id: CallId
    name: str
    execution_id: str


class ToolApprovalRequested(Event, frozen=True, kw_only=True, tag="tool_call.approval_requested"):
    """A call waits for somebody's approval (`tool.approve`). Its item shows the function and the arguments."""

    response_id: ResponseId
    call_id: CallId
    name: str


class ToolApprovalDecided(Event, frozen=True, kw_only=True, tag="tool_call.approval_decided"):
    """A call was approved or denied; a denied call's output says so."""

    response_id: ResponseId
    call_id: CallId
    approved: bool
    by: str


class ProgramCalled(Event, frozen=True, kw_only=True, tag="program.called"):
    """Only in journals of releases that ran programs: the program of the call `program_call_id`, in item `item_id`,
    made a call of its own, which is on no branch."""

    response_id: ResponseId
    call_id: CallId
    program_call_id: CallId
    item_id: ItemId
    name: str
    arguments: str


class ProgramReturned(Event, frozen=True, kw_only=True, tag="program.returned"):
    """Only in journals of releases that ran programs: a program's call was answered."""

    response_id: ResponseId
    call_id: CallId
    is_error: bool = False


class ToolCallProgress(Event, frozen=True, kw_only=True, tag="tool_call.progress"):
    """A call's progress as its tool reports it: `progress` of `total`, if that is known. The message has passed the
    filters."""

    response_id: ResponseId
    call_id: CallId
    progress: float
    total: float | None = None
    message: str | None = None


Delta = OutputTextDelta | RefusalDelta | ReasoningDelta | ArgumentsDelta
Terminal = ResponseCompleted | ResponseIncomplete | ResponseFailed

AnyEvent = (
    SessionCreated
    | SessionUpdated
    | SessionDeleted
    | SessionMigrated
    | ItemCreated
    | ResponseQueued
    | ResponseCreated
    | ResponseInProgress
    | ContextFitted
    | ContextCompacted
    | CompactionUndone
    | CompactionFailed
    | ItemPinned
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | RefusalDelta
    | RefusalDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ContentRetracted
    | ReviewAppealed
    | ReviewDecided
    | FeedbackUpdated
    | ToolCallStarted
    | ToolApprovalRequested
    | ToolApprovalDecided
    | ProgramCalled
    | ProgramReturned
    | ToolCallProgress
)


class Private(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a record that no reader gets, by kind of event:

    item.created         `tokens`: the item rendered and tokenised, under `fingerprint`
    response.queued      `after`: the response it waits for; `sampling`; `principal`; the item's `tokens`, `fingerprint`
    response.created     `sampling` with its seed drawn; `principal`: whose command, whose policy and whose bill it is;
                         `after`: the response whose tool calls it goes on from
    deltas, items added  `tokens`: the ids wholly released by it; `tail`: raw text released beyond them;
                         `fingerprint` beside a response's first ids
    a terminal event     `tokens`, `tail`: the response's whole output ledger, under `fingerprint`
    context.fitted       `cut`: the first item that is kept
    context.compacted    `tokens`: the summary as prompts have it, under `fingerprint`
    ..compaction_failed  `spent`: how many tokens were read and written in vain
    response.created     `round`: how often server tools have been called before it in its turn
    any of a response    `findings`: what filters found in its text up to here and no earlier record has
    """

    tokens: bytes = b""
    fingerprint: str = ""
    tail: str = ""
    sampling: Sampling | None = None
    cut: ItemId | None = None
    after: ResponseId | None = None
    principal: Principal | None = None
    findings: tuple[Finding, ...] = ()
    spent: int = 0
    round: int = 0


class Record(msgspec.Struct, frozen=True, gc=False):
    """One entry of a log: immutable once durable (I3)."""

    offset: int
    at: UnixMs
    event: AnyEvent
    private: Private | None = None
