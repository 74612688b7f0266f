"""Types that everything else uses: ids, who acts, what a session is made of.

Ids are opaque strings for clients. Inside, a session is always named by its `SessionKey`, which carries the tenant, so
that no row, cache or metric can be reached without saying whose it is.
"""

from __future__ import annotations

import array
import hashlib
import re
import struct
from base64 import b32encode
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, NewType, get_args

import msgspec
from msgspec import UNSET, UnsetType

TenantId = NewType("TenantId", str)
SessionId = NewType("SessionId", str)
ItemId = NewType("ItemId", str)
ResponseId = NewType("ResponseId", str)
CallId = NewType("CallId", str)
CommandId = NewType("CommandId", str)  # a ULID made by the client
Epoch = NewType("Epoch", str)
ReplicaId = NewType("ReplicaId", str)
ActivationId = NewType("ActivationId", str)
UnixMs = NewType("UnixMs", int)
NEVER: Final = UnixMs(0)  # before everything

INTEGER_MAX: Final = 2**53 - 1
SESSION_ID_PATTERN: Final = r"^[A-Za-z0-9_-]{1,64}$(?!\n)"
SHARED: Final = "~"  # no session's id begins with it: the prefix of names for a tenant's own records, as below
MEMORIES: Final = SessionId(f"{SHARED}memories")  # end users' memories
PUSH: Final = SessionId(f"{SHARED}push")  # end users' push subscriptions
FILES: Final = SessionId(f"{SHARED}files")  # uploaded files
TOOLS: Final = SessionId(f"{SHARED}tools")  # server tools that administrators have added
SCORES: Final = SessionId(f"{SHARED}scores")  # usage for scoring prompts
EMBEDDINGS: Final = SessionId(f"{SHARED}embeddings")  # usage for embeddings
OPENINGS: Final = SessionId(f"{SHARED}openings")  # prompt beginnings that several sessions of a tenant share

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed"]
Role = Literal["user", "assistant", "system", "developer", "tool"]
IncompleteReason = Literal[
    "max_output_tokens",
    "content_filter",
    "cancelled",
    "steered",
    "session_deleted",
    "recovery_incompatible",
    "orphaned",
]

ContextPolicy = Literal["off", "truncate", "compact"]
"""A policy for conversations that outgrow their context window. `off`: its next turn is refused. `truncate`: the oldest
turns are left out. `compact`: they are summarised before it is full, and left out if that fails."""
DEFAULT_CONTEXT_POLICY: Final[ContextPolicy] = "truncate"

Json = Any  # a value that came from JSON and is only carried, never interpreted


class SessionKey(NamedTuple):
    """The name of one session everywhere inside the system: tenant and session id. (Two tenants may use the same
    session id.)"""

    tenant: TenantId
    session: SessionId


Authority = Literal["user", "service", "operator"]
"""Who holds a key. `user`: one end user, who has their own sessions. `service`: a tenant's backend, which has every
session of its tenant. `operator`: whoever runs the installation; only they may use operators' routes."""

Scope = Literal["chat", "read", "usage", "review", "admin", "break_glass"]
"""The actions that a key may take, within what its authority lets it see (`sessions.model.authorization` decides):

chat    talk: every command on a session, and reading what it says (so `chat` includes `read`)
read    read: sessions, logs, events, exports, models; nothing that changes anything
usage   what was used and what it cost
review  the queue of withheld answers, and appeals
admin   the tenant's own affairs: its keys, policies, audit log, everything of one user; with an operator's authority
        the installation's
break_glass  with an operator's authority: what another tenant's people said, with a reason, in both tenants' audit logs
"""
ALL_SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
SCOPES: Final = tuple(scope for scope in ALL_SCOPES if scope != "break_glass")  # within one tenant
DEFAULT_SCOPES: Final[tuple[Scope, ...]] = ("chat", "read")


class TokenRef(msgspec.Struct, frozen=True):
    """A token, or a sign-in, as its issuer names it. Revocations are compared with it."""

    issuer: str
    subject: str
    id: str = ""  # "": it has none
    issued_at: UnixMs = UnixMs(0)


class Principal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who acts: tenant, key and, if the key names one, end user; and what they may do.

    `expires_at` is when the credential ends (Unix ms); None if it does not end by itself. `token` is known only at the
    doors.
    """

    tenant: TenantId
    key_id: str
    user: str | None = None
    role: Authority = "user"
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES
    expires_at: UnixMs | None = None
    token: TokenRef | None = None

    @property
    def id(self) -> str:
        """The principal's id, unique within the tenant; commands are deduplicated per (id, session). The last slash
        separates key and user: slashes in a user's name are escaped, because an issuer's address in `key_id` has
        slashes."""
        if self.user is None:
            return self.key_id
        return f"{self.key_id}/{self.user.replace('%', '%25').replace('/', '%2F')}"


LOCAL_PRINCIPAL: Final = Principal(tenant=TenantId("local"), key_id="local", role="operator", scopes=ALL_SCOPES)


_DERIVED: Final = re.compile(r"^ses_[a-z2-7]{26}$(?!\n)")


def derived_session_id(principal: Principal, command_id: CommandId) -> SessionId:
    """Returns the id of a session whose creator named none. It is derived from the command, so a retry of the command
    finds the same actor."""
    digest = hashlib.sha256(f"{principal.tenant}\0{principal.id}\0{command_id}".encode()).digest()
    return SessionId("ses_" + b32encode(digest[:16]).decode().rstrip("=").lower())


def is_derived_session_id(session: SessionId) -> bool:
    """Returns whether an id has the form of `derived_session_id`. Only the command from which it is derived may create
    such a session; otherwise somebody could occupy the id of another's future session."""
    return _DERIVED.match(session) is not None


# -- content and items -------------------------------------------------------------------------------------


OBJECT_CHARACTER: Final = "\ufffc"  # Unicode's placeholder for an object in a text


class InputText(msgspec.Struct, frozen=True, tag="input_text"):
    text: str


class InputFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="input_file"):
    """A file in a user's message. Its client names it by `file_id`, or sends its bytes (`file_data`, never stored). The
    gateway adds `text`, which is the part of it that the model reads."""

    file_id: str | None = None
    filename: str = ""
    file_data: str | None = None
    media_type: str = ""
    size: int = 0
    text: str = ""


ImageDetail = Literal["low", "high", "auto", "original"]


class InputImage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="input_image"):
    """An image in a user's message. Its client names an uploaded one by `file_id`, or sends `image_url`: a `data:` URL,
    or an address that the server may fetch. The gateway replaces them by the image as the model sees it: `image_url` is
    then its data URL, `sha256` the hash of its bytes (hex), `width` and `height` its size in pixels.

    `detail` "low" makes the image smaller. In texts an image is one character, U+FFFC; one that was retracted is none.
    """

    image_url: str | None = None
    file_id: str | None = None
    detail: ImageDetail | None = None
    sha256: str = ""
    width: int = 0
    height: int = 0

    @property
    def text(self) -> str:
        return OBJECT_CHARACTER if self.image_url or self.file_id else ""


class InputPassage(msgspec.Struct, frozen=True, kw_only=True, tag="input_passage"):
    """A passage of a stored document that the server found for a user's message and put in front of its words. It is
    characters `start` to `end` of the document's text, and the answer cites it by its number. `text` is what the model
    reads; it is empty once the document is deleted."""

    number: int
    file_id: str
    filename: str
    start: int
    end: int
    score: float
    text: str


class OutputText(msgspec.Struct, frozen=True, tag="output_text"):
    text: str
    annotations: tuple[Json, ...] = ()


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    refusal: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    """The thoughts of a model before its answer. They do not belong to the message's text."""

    reasoning: str


ContentPart = InputText | InputFile | InputImage | InputPassage | OutputText | Refusal | Reasoning


def words_of(part: ContentPart) -> str:
    """Returns the text of a content part of whatever kind."""
    match part:
        case Refusal():
            return part.refusal
        case Reasoning():
            return part.reasoning
        case _:
            return part.text


class Message(msgspec.Struct, frozen=True, tag="message", kw_only=True):
    id: ItemId
    parent_id: ItemId | None
    role: Role
    content: tuple[ContentPart, ...]
    status: Status
    created_at: UnixMs

    @property
    def text(self) -> str:
        """All text parts, joined. Refusals and thoughts are left out."""
        return "".join(part.text for part in self.content if not isinstance(part, Refusal | Reasoning))

    @property
    def sent_text(self) -> str:
        """The text without the passages that the server has put in front of it."""
        return "".join(part.text for part in self.content if isinstance(part, InputText | InputFile | OutputText))

    @property
    def files(self) -> tuple[InputFile, ...]:
        return tuple(part for part in self.content if isinstance(part, InputFile))

    @property
    def images(self) -> tuple[InputImage, ...]:
        return tuple(part for part in self.content if isinstance(part, InputImage) and part.image_url)

    @property
    def passages(self) -> tuple[InputPassage, ...]:
        return tuple(part for part in self.content if isinstance(part, InputPassage))

    @property
    def words(self) -> str:
        """The text without that of files and passages. It is empty if a filter has joined the text with a file's
        (`commands.filtered_content`)."""
        if self.files and not any(file.text for file in self.files):
            return ""
        return "".join(part.text for part in self.content if isinstance(part, InputText | OutputText))

    @property
    def reasoning(self) -> str:
        """The model's thoughts before the text."""
        return "".join(part.reasoning for part in self.content if isinstance(part, Reasoning))


class McpSource(msgspec.Struct, frozen=True, kw_only=True):
    """The MCP server that a tool belongs to, and the tool's name there. With `tool` "" it stands for the whole server:
    a client that names a server gets its tools, or those of them that are `allowed`. `approval` says whether the client
    wants to approve calls: of all tools, or of those listed."""

    server_label: str
    tool: str = ""
    allowed: tuple[str, ...] | None = None
    read_only: bool = False  # only tools that say that they change nothing
    approval: bool | tuple[str, ...] = False
    unasked: tuple[str, ...] = ()  # tools that need no approval, where `approval` is true


class FunctionCall(msgspec.Struct, frozen=True, tag="function_call", kw_only=True):
    id: ItemId
    parent_id: ItemId | None
    call_id: CallId
    name: str
    arguments: str
    status: Status
    created_at: UnixMs
    server: bool | UnsetType = UNSET  # true: the server carries it out, and no client may answer it
    mcp: McpSource | UnsetType = UNSET  # the MCP server that the tool belongs to, if any


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a run of a code tool has written, stored as one of its user's files. `path` is its place in the run's
    folder, `size` its bytes, `source` the id of the file that stood in that place when the run began."""

    file_id: str
    path: str
    size: int
    source: str | UnsetType = UNSET  # none stood there


class FunctionCallOutput(msgspec.Struct, frozen=True, tag="function_call_output", kw_only=True):
    id: ItemId
    parent_id: ItemId | None
    call_id: CallId
    output: str
    is_error: bool = False
    status: Status = "completed"
    created_at: UnixMs
    files: tuple[RunFile, ...] | UnsetType = UNSET  # of a code tool's run, if it has written some


Item = Message | FunctionCall | FunctionCallOutput


class SearchScope(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the documents that is searched for a client, by the tool `file_search` or as `knowledge` of its
    turns: these vector stores, files whose attributes pass `filters`, at most `results_max` passages, and those with a
    score of at least `score_min`."""

    vector_store_ids: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=16)]
    results_max: Annotated[int, msgspec.Meta(ge=1, le=50)] | None = None
    filters: dict[str, Json] | None = None
    score_min: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


TOOL_FILES_MAX: Final = 50
ToolFileIds = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=64)], ...], msgspec.Meta(max_length=TOOL_FILES_MAX)
]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call; `parameters` is its JSON schema. With `server` it is the server's own tool,
    which the client only names: description and parameters come from the tools file."""

    name: str
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool = False
    type: Literal["function"] = "function"
    server: bool | UnsetType = UNSET
    mcp: McpSource | UnsetType = UNSET
    search: SearchScope | UnsetType = UNSET  # of the server's `file_search` only
    file_ids: ToolFileIds | UnsetType = UNSET  # of a code tool of the server: uploads that stand in each run's folder


# -- sampling ------------------------------------------------------------------------------------------------

MaxTokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class TextOptions(msgspec.Struct, frozen=True):
    """The `text` option of OpenAI's Responses: `format` is {"type": "text" | "json_object" | "json_schema", ...}."""

    format: dict[str, Json] | None = None


Effort = Literal["low", "medium", "high"]
EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How an answer is sampled. Fields have OpenAI's names, and local engines' where OpenAI has none.

    None means the engine's default. `seed` None means that the server draws one; the drawn one is journaled,
    because a continuation after a failure needs it.
    """

    temperature: Temperature | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] | None = None
    repeat_penalty: Annotated[float, msgspec.Meta(gt=0, le=10)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)] | None = None
    max_output_tokens: MaxTokens | None = None
    stop: StopString | Annotated[tuple[StopString, ...], msgspec.Meta(max_length=16)] | None = None
    ignore_eos: bool = False  # whether the model may not end its answer by itself
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    stop_token_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=64)] = ()
    logit_bias: (
        Annotated[dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]], msgspec.Meta(max_length=1024)] | None
    ) = None
    logprobs: bool = False
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tool_choice: str | dict[str, Json] | None = None
    parallel_tool_calls: bool = True
    thinking: bool | None = None  # whether the model thinks before it answers; None: as its chat template has it
    thinking_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None  # after these the thought is closed
    effort: Effort | None = None  # how much the model is to think, where its chat template knows degrees
    text: TextOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else self.stop


# -- tokens -----------------------------------------------------------------------------------------------------

Tokens = Sequence[int]


_pack_one = struct.Struct("<I").pack


def pack_tokens(tokens: Tokens) -> bytes:
    """Returns token ids as little-endian uint32, 4 bytes each: the form that is stored."""
    if len(tokens) == 1:  # a chunk of nearly every engine
        return _pack_one(tokens[0])
    packed = array.array("I", tokens)
    if packed.itemsize != 4:  # pragma: no cover - no platform that we run on
        raise AssertionError("array('I') is not 32 bits wide here")
    return packed.tobytes()


def unpack_tokens(data: bytes) -> array.array[int]:
    """Returns the token ids that `pack_tokens` packed. Raises ValueError if the length of `data` is not a multiple of 4
    bytes."""
    tokens = array.array("I")
    tokens.frombytes(data)
    return tokens


class Usage(msgspec.Struct, frozen=True):
    """The tokens that a response used, as in `usage` of its terminal event. Tokens that were computed again after a
    failure are neither billed nor counted."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cached_output_tokens: int = 0  # from the result cache: no engine wrote them

    def public(self) -> dict[str, Json]:
        """Returns `usage` in the shape of OpenAI's Responses."""
        details: dict[str, Json] = {"reasoning_tokens": self.reasoning_tokens}
        if self.cached_output_tokens:
            details["cached_tokens"] = self.cached_output_tokens
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": details,
            "total_tokens": self.input_tokens + self.output_tokens,
        }
