"""The commands that a client may send to a session, and their answers (PROTOCOL.md §3).

Commands are decoded once, at the edge, into these structs. Each carries the client's `id`, its idempotency key for 24 h
per (principal, session); `command_digest` distinguishes a repeat from a reuse of the id for something else.
"""

from __future__ import annotations

import hashlib
from operator import attrgetter
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sessions.model.reviews import NOTE_MAX, Outcome, Rating, ReviewId
from sessions.model.types import (
    OBJECT_CHARACTER,
    SESSION_ID_PATTERN,
    CallId,
    CommandId,
    ContextPolicy,
    Epoch,
    InputFile,
    InputImage,
    InputText,
    ItemId,
    Json,
    MaxTokens,
    OutputText,
    ResponseId,
    Sampling,
    SearchScope,
    SessionId,
    Temperature,
    TextOptions,
    Tool,
)

Ulid = Annotated[CommandId, msgspec.Meta(pattern=r"^[!-~]{1,64}$(?!\n)")]
SessionName = Annotated[SessionId, msgspec.Meta(pattern=SESSION_ID_PATTERN)]
Title = Annotated[str, msgspec.Meta(max_length=256)]
Metadata = Annotated[dict[str, Json], msgspec.Meta(max_length=64)]
Content = (
    str
    | Annotated[tuple[InputText | InputFile | InputImage | OutputText, ...], msgspec.Meta(min_length=1, max_length=256)]
)
CompactThreshold = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
Tools = Annotated[tuple[Tool, ...], msgspec.Meta(max_length=128)]


def content_parts(content: Content) -> tuple[InputText | InputFile | InputImage, ...]:
    """Returns a user's content as parts; a string becomes a single part."""
    if isinstance(content, str):
        return (InputText(text=content),)
    return tuple(part if isinstance(part, InputFile | InputImage) else InputText(text=part.text) for part in content)


def filtered_content(content: Content, text: str) -> Content:
    """Returns a content after filtering: images, then all of `text` in one part, then files. It is not known which part
    of `text` came from a file, so files keep their names and lose their texts."""
    parts = () if isinstance(content, str) else content
    images = [part for part in parts if isinstance(part, InputImage)]
    files = [msgspec.structs.replace(part, text="") for part in parts if isinstance(part, InputFile)]
    return (*images, InputText(text=text.replace(OBJECT_CHARACTER, "") if images else text), *files)


class SessionCreate(msgspec.Struct, frozen=True, kw_only=True, tag="session.create"):
    id: Ulid
    session: SessionName | None = None
    model: str | None = None
    instructions: str | None = None
    tools: Tools = ()
    metadata: Metadata = {}
    title: Title | None = None
    temperature: Temperature | None | UnsetType = UNSET
    max_output_tokens: MaxTokens | None | UnsetType = UNSET
    context_policy: ContextPolicy | None | UnsetType = UNSET
    compact_threshold: CompactThreshold | None | UnsetType = UNSET
    knowledge: SearchScope | None | UnsetType = UNSET


class SessionCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the commands to a session that exists already."""

    id: Ulid
    session: SessionName


class TurnCommand(Sampling, frozen=True, kw_only=True):
    """Base of the commands that may begin an answer; they carry its sampling."""

    id: Ulid
    session: SessionName


class ModelTurn(TurnCommand, frozen=True, kw_only=True):
    """Base of a chat client's turns. `model` is the model, or alias, that the session is to have from this turn on."""

    model: str | None = None


class MessageTurn(ModelTurn, frozen=True, kw_only=True):
    """Base of a chat client's turns that bring a message. `knowledge` is searched with its words in place of the
    session's; null: nothing is."""

    knowledge: SearchScope | None | UnsetType = UNSET


class MessageCreate(MessageTurn, frozen=True, kw_only=True, tag="message.create"):
    content: Content
    parent_id: ItemId | None | UnsetType = UNSET
    role: Literal["user", "system", "developer", "assistant"] = "user"
    respond: bool = True
    queue: bool = False


class MessageEdit(MessageTurn, frozen=True, kw_only=True, tag="message.edit"):
    item_id: ItemId
    content: Content
    respond: bool = True


class ResponseCreate(ModelTurn, frozen=True, kw_only=True, tag="response.create"):
    parent_id: ItemId | None | UnsetType = UNSET
    queue: bool = False


class ResponseCancel(SessionCommand, frozen=True, kw_only=True, tag="response.cancel"):
    response_id: ResponseId


class ResponseSteer(SessionCommand, frozen=True, kw_only=True, tag="response.steer"):
    """Steers an answer that is being written: it ends with what was released, and another answer follows the user's
    words. An answer that calls tools may end by itself first; then the words come behind the tools' outputs."""

    response_id: ResponseId
    content: Content


class ToolOutput(SessionCommand, frozen=True, kw_only=True, tag="tool.output"):
    call_id: CallId
    output: str
    is_error: bool = False


class ToolApprove(SessionCommand, frozen=True, kw_only=True, tag="tool.approve"):
    """Approves or denies a call that the server carries out only with approval."""

    call_id: CallId
    approved: bool = True


class SessionUpdate(SessionCommand, frozen=True, kw_only=True, tag="session.update"):
    """Changes settings of a session. Fields that are absent stay as they are; null clears a field."""

    title: Title | None | UnsetType = UNSET
    metadata: Metadata | None | UnsetType = UNSET
    instructions: str | None | UnsetType = UNSET
    tools: Tools | None | UnsetType = UNSET
    temperature: Temperature | None | UnsetType = UNSET
    max_output_tokens: MaxTokens | None | UnsetType = UNSET
    context_policy: ContextPolicy | None | UnsetType = UNSET
    compact_threshold: CompactThreshold | None | UnsetType = UNSET
    knowledge: SearchScope | None | UnsetType = UNSET


class SessionDelete(SessionCommand, frozen=True, kw_only=True, tag="session.delete"):
    """Ends the session for good."""


class SessionWarm(SessionCommand, frozen=True, kw_only=True, tag="session.warm"):
    """Hints that a turn is near, so that the session and its KV are brought into memory. Journals nothing."""


class SessionCompact(SessionCommand, frozen=True, kw_only=True, tag="session.compact"):
    """Has a conversation summarised now, except for its newest `keep_turns` turns. `ok` names the compaction, and
    `context.compacted` or `context.compaction_failed` follows."""

    keep_turns: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1
    item_id: ItemId | None = None  # the branch's last item; None: the newest


class CompactionUndo(SessionCommand, frozen=True, kw_only=True, tag="compaction.undo"):
    """Takes a summary out of prompts, which then have its messages again. If it names none, that is the summary in
    force on the newest branch."""

    compaction_id: ItemId | None = None


class ItemPin(SessionCommand, frozen=True, kw_only=True, tag="item.pin"):
    """Pins an item, so that it stays in prompts word by word, or unpins it. A call and its output are pinned
    together."""

    item_id: ItemId
    pinned: bool = True


class ReviewAppeal(SessionCommand, frozen=True, kw_only=True, tag="review.appeal"):
    """Asks for a person's review of what was withheld of a response, or of a message that was refused. Exactly one of
    `response_id` and `content` is given; `content` is the refused message's text, because that was not stored."""

    response_id: ResponseId | None = None
    content: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    note: Annotated[str, msgspec.Meta(max_length=NOTE_MAX)] = ""


class FeedbackSet(SessionCommand, frozen=True, kw_only=True, tag="feedback.set"):
    """Rates an answer that has ended, with a reason. With `rating` None it takes the sender's earlier rating back."""

    response_id: ResponseId
    rating: Rating | None
    reason: Annotated[str, msgspec.Meta(max_length=NOTE_MAX)] = ""


# -- what doors of our own ask for, and no client says in these words -------------------------------------------------


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a session that a turn creates."""

    model: str | None = None
    instructions: str | None = None
    tools: Tools = ()
    metadata: Metadata = {}
    title: Title | None = None
    listed: bool = True
    context_policy: ContextPolicy | UnsetType = UNSET  # set by the turn, as the next
    compact_threshold: CompactThreshold | UnsetType = UNSET


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    content: Content
    role: Literal["user", "system", "developer", "assistant"] = "user"


class NewCall(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """A call of an earlier answer, sent by a client that keeps the conversation itself."""

    call_id: CallId
    name: str
    arguments: str


class NewOutput(msgspec.Struct, frozen=True, kw_only=True, tag="function_call_output"):
    call_id: CallId
    output: str
    is_error: bool = False


NewItem = NewMessage | NewCall | NewOutput


class TurnCreate(TurnCommand, frozen=True, kw_only=True, tag="turn.create"):
    """Does everything that a stateless client's request needs in one command: the session, its history, the answer.

    `create` has the settings of the session if it does not exist; without `create` it must exist. `instructions`,
    `tools` and the context settings replace those of an existing session. The items are added one below the other,
    below `parent_id` or the last item of `after_response`. `metadata` and `request` are shown with the response.
    """

    create: SessionSettings | None = None
    instructions: str | None | UnsetType = UNSET
    tools: Tools | UnsetType = UNSET
    items: tuple[NewItem, ...] = ()
    parent_id: ItemId | None | UnsetType = UNSET
    after_response: ResponseId | None = None
    context_policy: ContextPolicy | UnsetType = UNSET
    compact_threshold: CompactThreshold | UnsetType = UNSET
    respond: bool = True
    metadata: Metadata = msgspec.field(default_factory=dict)
    request: dict[str, Json] | UnsetType = UNSET


class ResponseErase(SessionCommand, frozen=True, kw_only=True, tag="response.erase"):
    """Retracts all text of a response, and the arguments of its calls, with the category `deleted`; its items stay in
    the tree, empty."""

    response_id: ResponseId


class ItemDelete(SessionCommand, frozen=True, kw_only=True, tag="item.delete"):
    """Takes an item out of the tree, with its text; its parent becomes the parent of the items below it."""

    item_id: ItemId


class ReviewNotify(SessionCommand, frozen=True, kw_only=True, tag="review.tell"):
    """Writes a reviewer's decision into the log."""

    review_id: ReviewId
    category: str
    outcome: Outcome
    decision: int
    response_id: ResponseId | None = None


ClientCommand = (
    SessionCreate
    | MessageCreate
    | MessageEdit
    | ResponseCreate
    | ResponseCancel
    | ResponseSteer
    | ToolOutput
    | ToolApprove
    | SessionUpdate
    | SessionDelete
    | SessionWarm
    | SessionCompact
    | CompactionUndo
    | ItemPin
    | ReviewAppeal
    | FeedbackSet
)
"""The commands that clients send to an actor. The gateway itself answers `session.get`, `session.list`, subscribe and
the rest."""

ActorCommand = ClientCommand | TurnCreate | ResponseErase | ItemDelete | ReviewNotify
"""The commands that an actor answers."""


def session_settings_of(command: ActorCommand) -> SessionCreate | SessionSettings | None:
    """Returns the settings of the session that a command creates; None if the command needs an existing session."""
    if isinstance(command, TurnCreate):
        return command.create
    return command if isinstance(command, SessionCreate) else None


def schemas_of(command: ActorCommand) -> tuple[Tools, TextOptions | None]:
    """Returns the tools and the answer's format of a command, which are the places where JSON schemas come in."""
    tools: Tools | None | UnsetType = ()
    match command:
        case SessionCreate() | SessionUpdate():
            tools = command.tools
        case TurnCreate():
            made_with = command.create.tools if command.create is not None else ()
            changed = command.tools or ()
            tools = changed if made_with is changed else (*changed, *made_with)
    text = command.text if isinstance(command, Sampling) else None
    return (tools or ()), text


class Ok(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ok"):
    """The answer to a command. Only the fields that PROTOCOL.md §3 lists for the command are set."""

    id: CommandId
    session: SessionId | None = None
    epoch: Epoch | None = None
    offset: int | None = None
    item_id: ItemId | None = None
    response_id: ResponseId | None = None
    review_id: ReviewId | None = None
    compaction_id: ItemId | None = None
    noop: bool = False


_sampling_values = attrgetter(*Sampling.__struct_fields__)


def sampling_of(command: Sampling) -> Sampling:
    """Returns only the sampling fields of a command that has them."""
    return Sampling(**dict(zip(Sampling.__struct_fields__, _sampling_values(command), strict=True)))


def command_digest(command: ActorCommand) -> bytes:
    """Returns 16 bytes, which are equal exactly for commands that ask for the same thing."""
    return hashlib.blake2b(msgspec.msgpack.encode(command, order="deterministic"), digest_size=16).digest()
