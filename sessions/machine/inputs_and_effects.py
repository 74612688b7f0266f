"""The inputs and outputs of the session machine: inputs, effects, and the step that combines what an input results in.

An input is something that happened (a client's command, an engine's output, a deadline); a step is one atomic advance.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from sessions.machine import event_writer
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.audit import Audited
from sessions.model.errors import SessileError
from sessions.model.journal_types import CommandRecord, HeadPatch, UsageRow
from sessions.model.push import PushNotice
from sessions.model.reviews import Case
from sessions.model.types import CallId, InputPassage, ItemId, Json, Principal, ResponseId, RunFile, UnixMs, Usage
from sessions.model.verdicts import Finding, Verdict

# -- inputs ---------------------------------------------------------------------------------------------------------


class Prepared(msgspec.Struct, frozen=True):
    """The packed token ids of a new item, rendered and tokenised before the step. Those of a user's message begin with
    the `passages` that were found for it."""

    tokens: bytes
    fingerprint: str
    passages: tuple[InputPassage, ...] = ()


class Command(msgspec.Struct, frozen=True):
    """A client's command. `digest` is that of the command as it was sent; filters may have changed `command` since
    then."""

    principal: Principal
    command: cm.ActorCommand
    digest: bytes
    prepared: Prepared | None = None
    prepared_items: tuple[Prepared | None, ...] = ()  # for the items of a turn; None: rendered when it is needed
    memories: tuple[str, ...] = ()  # of the end user who creates the session
    findings: tuple[Finding, ...] = ()  # of the input filters
    blocked: bool = False  # whether an appeal's text is one that filters refuse
    service: dict[str, Json] | None = None  # what admission says about the response that it begins
    model: str = ""  # the model that writes that response, where admission chose another than the session's
    alias: str = ""  # the alias that the session it creates gets; its turns are routed among that alias's models
    adopts: str = ""  # the session's model from this turn on, by name: this replica's, or an alias
    refused: SessileError | None = None  # why preparing it failed: the command's answer, unless it is a repeat


class GenerationInput(msgspec.Struct, frozen=True):
    """A report of one run of an engine; `generation` numbers the run within this activation."""

    response_id: ResponseId
    generation: int


class Output(GenerationInput, frozen=True):
    """Reports what a generation has released since its last report: pieces, all their token ids (packed), and the raw
    text `tail` behind these."""

    pieces: tuple[event_writer.Piece, ...]
    tokens: bytes
    tail: str = ""
    findings: tuple[Finding, ...] = ()
    retracted: Verdict | None = None  # a span of the answer's text to take back after all this


class GenerationFinished(GenerationInput, frozen=True):
    """Reports that a generation ended by itself."""

    reason: Literal["stop", "max_output_tokens", "content_filter"]
    usage: Usage
    recomputed_tokens: int = 0
    withheld_tokens: int = 0
    refusal: str | None = None  # the safe message of a content filter
    findings: tuple[Finding, ...] = ()  # those that no `Output` has carried


class GenerationFailed(GenerationInput, frozen=True):
    """Reports that a generation cannot go on: the response fails, or gets another run if the engine was lost."""

    error: SessileError
    usage: Usage
    findings: tuple[Finding, ...] = ()  # those that no `Output` has carried


class GenerationStopped(GenerationInput, frozen=True):
    """Reports that a generation was stopped from outside, with the findings that no `Output` has reported."""

    findings: tuple[Finding, ...]


class Fitted(GenerationInput, frozen=True):
    """Reports that a response's prompt leaves out `dropped` items; `cut` is the first one kept."""

    dropped: int
    cut: ItemId


class Activated(msgspec.Struct, frozen=True):
    """Reports that the actor has loaded the log; `cause` says why it was not in memory."""

    replica: str
    cause: Literal["activation", "restart", "failover", "handoff"]


class ToolDeadline(msgspec.Struct, frozen=True):
    response_id: ResponseId


class ToolStarting(msgspec.Struct, frozen=True):
    """Reports that a call of a server tool is about to be sent under the key `execution_id`."""

    response_id: ResponseId
    call_id: CallId
    execution_id: str


class ToolApprovalNeeded(msgspec.Struct, frozen=True):
    """Reports that a call of a server tool may be sent only once somebody agrees."""

    response_id: ResponseId
    call_id: CallId


class ToolProgressed(msgspec.Struct, frozen=True, kw_only=True):
    """Reports how far a call of a server tool has come."""

    response_id: ResponseId
    call_id: CallId
    progress: float
    total: float | None = None
    message: str | None = None
    findings: tuple[Finding, ...] = ()


class ToolAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """Reports the output of a server tool's call. `whole` is False if the call's outcome is not known."""

    response_id: ResponseId
    call_id: CallId
    output: str
    is_error: bool = False
    whole: bool = True
    prepared: Prepared | None = None
    findings: tuple[Finding, ...] = ()
    files: tuple[RunFile, ...] = ()


class Orphaned(msgspec.Struct, frozen=True):
    """Reports that nobody has read the open responses for as long as the policy allows, so that they are to end. With
    `attended_only`, only those end whose clients wait for them."""

    attended_only: bool = False


class ResponsesPaused(msgspec.Struct, frozen=True):
    """Reports that nobody reads the open responses and the policy is to pause: they stay open, and their engines
    stop."""


class ResponsesResumed(msgspec.Struct, frozen=True):
    """Reports that readers are back: open responses without a generation get one."""


class TitleWritten(msgspec.Struct, frozen=True):
    """A title for a session that had none, made from the log up to the offset `at`."""

    title: str
    at: int


class ModelChosen(msgspec.Struct, frozen=True):
    """Reports that the session is to go to another model, for the reason in `routing`."""

    routing: ev.SessionRouting


class DocumentsDeleted(msgspec.Struct, frozen=True):
    """Reports that these documents are in no vector store any more; the session has passages of them."""

    documents: tuple[str, ...]


class CompactionWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of the first `items` items of the branch that ends in `read`, made from the log up to the offset
    `at`."""

    compaction_id: ItemId
    at: int
    items: int
    read: ItemId
    text: str
    model: str
    prepared: Prepared
    tokens_before: int
    tokens_after: int
    usage: Usage
    cause: Literal["limit", "command"]
    last: bool = False  # whether it is the one that a command was promised, and no piece before it


class CompactionGivenUp(msgspec.Struct, frozen=True):
    """Reports that a compaction that a command requested will not be made."""

    compaction_id: ItemId
    error: SessileError
    spent: int = 0  # tokens


Input = (
    Command
    | Output
    | GenerationFinished
    | GenerationFailed
    | GenerationStopped
    | Fitted
    | Activated
    | ToolDeadline
    | ToolStarting
    | ToolApprovalNeeded
    | ToolAnswered
    | ToolProgressed
    | Orphaned
    | ResponsesPaused
    | ResponsesResumed
    | TitleWritten
    | ModelChosen
    | DocumentsDeleted
    | CompactionWritten
    | CompactionGivenUp
)


# -- effects -------------------------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True):
    """Asks for an engine run for a response. `generation` counts this activation's runs, from 1."""

    response_id: ResponseId
    generation: int
    behind: ResponseId | None = None  # a response stopped in the same step, which the engine must let go of first


class Stop(msgspec.Struct, frozen=True):
    """Asks to abort a response's generation; its output is dropped."""

    response_id: ResponseId


class ArmToolDeadline(msgspec.Struct, frozen=True):
    response_id: ResponseId
    since: UnixMs


class RunTools(msgspec.Struct, frozen=True):
    """Asks to carry out the server tool calls of a response that have no output yet."""

    response_id: ResponseId


class SendToolCall(msgspec.Struct, frozen=True):
    """Asks to send a call whose intent is in the log."""

    response_id: ResponseId
    call_id: CallId


class StopTools(msgspec.Struct, frozen=True):
    """Asks to stop a response's tool calls, because nobody waits for their outputs any more."""

    response_id: ResponseId


class Erase(msgspec.Struct, frozen=True):
    """Asks to erase the session's KV and to end the actor, because the session is deleted."""


class Compact(msgspec.Struct, frozen=True):
    """Asks to write the compaction that a command requested."""

    compaction_id: ItemId
    principal: Principal
    keep_turns: int
    leaf: ItemId | None  # the branch's last item; None: the newest item at the time of writing


class ShortenedContext(msgspec.Struct, frozen=True):
    """Informs that prompts have another beginning from here on, so that their KV may be computed, or more be
    summarised."""


Effect = Start | Stop | ArmToolDeadline | RunTools | SendToolCall | StopTools | Erase | Compact | ShortenedContext


class Step(msgspec.Struct):
    """One atomic advance. `records`, and the other rows to append, must be durable before anything else is done."""

    records: list[ev.Record] = []
    commands: list[CommandRecord] = []
    usage: list[UsageRow] = []
    reviews: list[Case] = []
    head: HeadPatch | None = None
    audit: list[Audited] = []
    push: PushNotice | None = None
    answer: cm.Ok | SessileError | None = None
    effects: list[Effect] = []

    @property
    def durable(self) -> bool:
        """Whether there is something to append."""
        beside = self.commands or self.usage or self.reviews or self.head is not None or self.audit
        return bool(self.records or beside)

    def then(self, later: Step) -> None:
        """Adds the next step of the same atomic write. Of all these steps only the last may have an answer."""
        self.records += later.records
        self.commands += later.commands
        self.usage += later.usage
        self.reviews += later.reviews
        self.head = later.head or self.head
        self.audit += later.audit
        self.answer = later.answer
        self.effects += later.effects
