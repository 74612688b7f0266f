"""What stands in a log: events as clients see them, and records as the journal stores them.

Names and fields follow OpenAI's Responses stream where it has an event for the thing; the others are ours
(PROTOCOL.md §2). An event is public as a whole. What only we need (token ids for the ledger, sampling with the
drawn seed, the queued input) stands beside it in the record's `Private` and never reaches a reader.

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
    ProgramPoint,
    ResponseId,
    Sampling,
    Status,
    Tool,
    UnixMs,
)
from sessions.model.verdicts import Finding


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events; `type` on the wire is the tag."""


class ResponseEvent(Event, frozen=True, kw_only=True):
    """An event of one response. `sequence_number` counts from 0 per response without gaps."""

    response_id: ResponseId
    sequence_number: int


class PartEvent(ResponseEvent, frozen=True, kw_only=True):
    """An event of one content part of one output item."""

    item_id: ItemId
    output_index: int
    content_index: int


class ResponseBody(msgspec.Struct, frozen=True, kw_only=True):
    """The `response` object that created and terminal events carry whole."""

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
    service: dict[str, Json] | UnsetType = UNSET  # how it was let in: its place in the queue, what it is cut to
    request: dict[str, Json] | UnsetType = UNSET  # the settings of an HTTP request, as its API echoes them
    continued_by: ResponseId | UnsetType = UNSET  # what goes on with the answer, behind the outputs of server tools


class ModelHome(msgspec.Struct, frozen=True):
    """Where a session was while it had a model: the KV of so many tokens may still lie there."""

    replica: str
    tokens: int
    at: UnixMs


class SessionRouting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session whose model is an alias's: how it came to the one that it has, and where it was before; or, with the
    alias "", one that is on its way to a model which a turn named."""

    alias: str
    target: str = ""  # the model that it is on its way to
    source: str = ""  # the one that it left last
    why: str = ""
    tokens: int = 0  # computed anew for that
    version: str = ""  # of the models file that was in force
    command: str = ""  # the turn that it was for
    homes: dict[str, ModelHome] = {}  # by model


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a session, as `session.created` and `session.updated` carry them: whole, each time."""

    model: str
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    metadata: dict[str, Json] = {}
    title: str | None = None
    title_made: bool | UnsetType = UNSET  # true: by the server, of what is in the session
    temperature: float | UnsetType = UNSET  # of answers whose command names none; likewise the next
    max_output_tokens: int | UnsetType = UNSET
    memories: tuple[str, ...] | UnsetType = UNSET  # what its user had written down when it was created
    context_policy: ContextPolicy | UnsetType = UNSET  # what becomes of a full context window; unset: the tenant's
    compact_threshold: int | UnsetType = UNSET  # tokens of prompt from which on the conversation is compacted
    routing: SessionRouting | UnsetType = UNSET  # unset: its model was named
    created_at: UnixMs


# -- the session ------------------------------------------------------------------------------------------------


class SessionCreated(Event, frozen=True, kw_only=True, tag="session.created"):
    info: SessionInfo


class SessionUpdated(Event, frozen=True, kw_only=True, tag="session.updated"):
    info: SessionInfo


class SessionDeleted(Event, frozen=True, kw_only=True, tag="session.deleted"):
    """Always the last offset of a log."""


class SessionMigrated(Event, frozen=True, kw_only=True, tag="session.migrated"):
    """Informative: the session is served by another activation now. `cause`: restart, failover, handoff."""

    replica: str
    cause: str


class ItemCreated(Event, frozen=True, kw_only=True, tag="item.created"):
    item: Item


# -- responses --------------------------------------------------------------------------------------------------


class ResponseQueued(ResponseEvent, frozen=True, kw_only=True, tag="response.queued"):
    """Accepted and waiting for the branch. `item` is the message that will be created when it starts."""

    response: ResponseBody
    item: Item | None = None
    steers: bool | UnsetType = UNSET  # true: what it waits for takes the item up together with its tools' outputs


class ResponseCreated(ResponseEvent, frozen=True, kw_only=True, tag="response.created"):
    response: ResponseBody


class ResponseInProgress(ResponseEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    pass


class ContextFitted(Event, frozen=True, kw_only=True, tag="context.fitted"):
    """The prompt leaves out the `dropped` oldest items of the branch; the log keeps them."""

    response_id: ResponseId
    dropped: int


class ContextCompacted(Event, frozen=True, kw_only=True, tag="context.compacted"):
    """From here on prompts have a summary in the place of the `items` items from `first_item_id` to `last_item_id`, but
    for pinned ones; the log keeps them. It holds on branches that go on from `read_item_id`, the last item that the
    model had read when it wrote it. `usage` is the server's own: nobody is billed for it. Where the conversation is too
    long to be read at once there are several, one after the other, and `usage` is of all up to this one."""

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
    """Prompts have the messages again in the place of this summary."""

    compaction_id: ItemId


class CompactionFailed(Event, frozen=True, kw_only=True, tag="context.compaction_failed"):
    """A compaction that a command requested has come to nothing; the context is as it was."""

    compaction_id: ItemId
    error: dict[str, Json]


class ItemPinned(Event, frozen=True, kw_only=True, tag="item.pinned"):
    """A pinned item stays in prompts word by word, whatever is summarised or left out around it."""

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
    """The tokens of a response up to a delta. Only where its request has `continuous_usage_stats`."""

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


COMPACTION_VOIDED: Final = "compaction_voided"  # a category: of a summary, for something that it read was taken back
ERASED: Final = "deleted"  # a category: of an answer that a client had erased
ITEM_DELETED: Final = "item_deleted"  # a category: the item is out of the tree, what stood below it is its parent's


class ContentRetracted(Event, frozen=True, kw_only=True, tag="content.retracted"):
    """Code points [start, end) of a part are replaced; replays, snapshots and exports obey it (I3). `response_id`: ""
    where no response wrote it."""

    response_id: ResponseId
    item_id: ItemId
    content_index: int
    start: int
    end: int
    replacement: str
    category: str


class ReviewAppealed(Event, frozen=True, kw_only=True, tag="review.appealed", omit_defaults=True):
    """The session's user asks that a person looks again at what was withheld: an answer, or a message of theirs that
    was refused (no `response_id`)."""

    review_id: ReviewId
    category: str
    response_id: ResponseId | None = None


class ReviewDecided(Event, frozen=True, kw_only=True, tag="review.decided", omit_defaults=True):
    """A person has looked. What was withheld stays withheld whatever they say: text that was never released has no
    place in the log, and what was taken back stays taken back (I3)."""

    review_id: ReviewId
    category: str
    outcome: Outcome
    decision: int  # 1, or 2 after an appeal against the first
    response_id: ResponseId | None = None


class FeedbackUpdated(Event, frozen=True, kw_only=True, tag="feedback.updated", omit_defaults=True):
    """What somebody thinks of an answer that has ended; it replaces what they thought before. No rating: nothing any
    more."""

    response_id: ResponseId
    by: str
    rating: Rating | None
    reason: str = ""


class ToolCallStarted(Event, frozen=True, kw_only=True, tag="tool_call.started"):
    """The server is about to carry a call out: this stands in the log before anything is sent. `execution_id` is the
    key under which it is sent, each time; without an output behind it in the log, what became of it is not known."""

    response_id: ResponseId
    call_id: CallId
    name: str
    execution_id: str


class ToolApprovalRequested(Event, frozen=True, kw_only=True, tag="tool_call.approval_requested"):
    """The server is to carry this call out once somebody agrees (`tool.approve`); what it is, the call's item says."""

    response_id: ResponseId
    call_id: CallId
    name: str


class ToolApprovalDecided(Event, frozen=True, kw_only=True, tag="tool_call.approval_decided"):
    """Somebody has agreed to a call, or has not: then its output says so."""

    response_id: ResponseId
    call_id: CallId
    approved: bool
    by: str


class ProgramCalled(Event, frozen=True, kw_only=True, tag="program.called"):
    """A program that the server runs for a call has come to a call of its own. It is carried out like the model's, but
    stands in no branch; what it was answered goes to the program. `item_id`: of the call that the program is."""

    response_id: ResponseId
    call_id: CallId
    program_call_id: CallId
    item_id: ItemId
    name: str
    arguments: str


class ProgramReturned(Event, frozen=True, kw_only=True, tag="program.returned"):
    """A call of a program has been answered, and the program goes on."""

    response_id: ResponseId
    call_id: CallId
    is_error: bool = False


class ToolCallProgress(Event, frozen=True, kw_only=True, tag="tool_call.progress"):
    """A tool says how far a call has come: `progress` of `total` where it knows that. The words passed the filters."""

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
    """What stands beside an event for our own eyes.

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
    program.called       `program`: where the program waits, and what its interpreter needs to go on
    program.returned     `output`: what the program was answered
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
    program: ProgramPoint | None = None
    output: str = ""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One place in a log: immutable once durable (I3)."""

    offset: int
    at: UnixMs
    event: AnyEvent
    private: Private | None = None
