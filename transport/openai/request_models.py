"""What OpenAI's requests look like, as far as both doors share it; models for reading, and for the page at /docs.

Parameters that we do not know are refused, as OpenAI does; those that only concern OpenAI's own service are taken and
have no effect. Messages and items may carry more fields than we read: clients send back what they were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import CoreSchema

from sessions.model.types import INTEGER_MAX, TOOL_FILES_MAX, ImageDetail
from sessions.server_tools import CODE_INTERPRETER, FILE_SEARCH

OWN_PREFIXES: Final = ("x_", "x-")  # of what a client notes for itself
PARTS_MAX: Final = 256  # of one message
TEXTS: Final = ("text", "input_text", "output_text")  # types of parts that are text
Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Key = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Metadata = Annotated[dict[str, Annotated[str, StringConstraints(max_length=512)]], Field(max_length=16)]


UNKNOWN_MAX: Final = 64  # names that are told of one object


def _stop_at_mistakes(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for name, inner in schema.items():
            if name != "metadata":
                _stop_at_mistakes(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            _stop_at_mistakes(inner)


class BoundedModel(BaseModel):
    """Base of everything that is read of a request. Reading a list stops at its first mistake: making an error costs
    ten times what reading a value does, and a body may have 65,536 values."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_mistakes(schema)
        return schema


class RequestModel(BoundedModel):
    """Base of request bodies: unknown parameters are refused, except those that are null or a client's own bookkeeping
    (`x_...`)."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields, read, unknown = cls.model_fields, dict[str, Any](), 0
        for name, value in given.items():
            if name not in fields:
                if value is None or name.startswith(OWN_PREFIXES) or unknown == UNKNOWN_MAX:
                    continue
                unknown += 1
            read[name] = value
        return read


class LenientModel(BoundedModel):
    """Base of objects that clients send back: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class ResentModel(LenientModel):
    """Base of the objects inside a request (messages, parts, calls, tools, formats): unknown fields have no effect, and
    a `Warning` names them."""

    model_config = ConfigDict(extra="allow")


def _kind(given: Any, *functions: str) -> str:
    """Returns the tag of the union's model as which a tool, or a tool choice, is read. As a tag is no field of the
    request, errors do not name it."""
    if not isinstance(given, dict):
        return "by-value" if isinstance(given, str) else f"of-{type(given).__name__}"
    kind = given.get("type")
    own = kind in ("mcp", FILE_SEARCH) and kind in functions
    return f"a-{kind}" if own else "a-function" if kind in functions else "another-kind"


class OtherTool(LenientModel):
    """A tool of a kind that this server does not have. It has no effect, and the answer's `Warning` names it."""

    type: str


class OtherChoice(LenientModel):
    """A tool choice of a kind that this server does not have; it is refused."""

    type: str


class SamplingRequest(RequestModel):
    """The sampling parameters that all doors share: OpenAI's, and some of llama.cpp's and vLLM's, so that one parameter
    may have two names."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, le=2**31)]], Field(max_length=64)] | None = None
    seed: Annotated[int, Field(ge=-INTEGER_MAX, le=INTEGER_MAX)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    parallel_tool_calls: bool | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool | None = False
    # OpenAI's service knows these; here they have no effect.
    metadata: Metadata | None = None
    user: Annotated[str, StringConstraints(max_length=256)] | None = None
    safety_identifier: Annotated[str, StringConstraints(max_length=256)] | None = None
    prompt_cache_key: Annotated[str, StringConstraints(max_length=512)] | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: str | None = None
    client_metadata: dict[str, Any] | None = None  # Codex sends it with every request


# -- chat -----------------------------------------------------------------------------------------------------------


class ChatFunction(ResentModel):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    server: bool | None = None  # one of the server's own: it says what it is for, and carries it out


class ChatTool(ResentModel):
    type: Literal["function"]
    function: ChatFunction


def _chat_kind(given: Any) -> str:
    kind = given.type if isinstance(given, ChatTool | OtherTool) else None
    return _kind(given if kind is None else {"type": kind}, "function")


AnyChatTool = Annotated[
    Annotated[ChatTool, Tag("a-function")] | Annotated[OtherTool, Tag("another-kind")], Discriminator(_chat_kind)
]


class ChatCallFunction(ResentModel):
    name: str
    arguments: str


class ChatCall(ResentModel):
    id: Key
    type: Literal["function"] | None = "function"
    function: ChatCallFunction


class FilePart(ResentModel):
    """A file in a chat message: one that was uploaded, by its id, or its bytes in base64."""

    file_id: Key | None = None
    filename: Annotated[str, StringConstraints(max_length=1024)] | None = None
    file_data: str | None = None


class ImageUrl(ResentModel):
    """An image in a chat message."""

    url: str
    detail: ImageDetail | None = None


class ContentPart(ResentModel):
    type: str
    text: str | None = None
    refusal: str | None = None
    file_id: Key | None = None  # of an `input_file`, likewise the next
    filename: Annotated[str, StringConstraints(max_length=1024)] | None = None
    file_data: str | None = None
    file: FilePart | None = None
    image_url: ImageUrl | str | None = None  # an object in chat messages, a text in an `input_image`
    detail: ImageDetail | None = None


def join_texts(content: Any, types: Sequence[str] = TEXTS) -> Any:
    """Returns a list of plain text parts as one text, to save an object per part; anything else unchanged."""
    if type(content) is not list or not 0 < len(content) <= PARTS_MAX:
        return content
    for part in content:
        if (
            type(part) is not dict
            or len(part) != 2
            or part.get("type") not in types
            or type(part.get("text")) is not str
        ):
            return content
    return "".join(part["text"] for part in content)


Content = Annotated[str | Annotated[list[ContentPart], Field(max_length=PARTS_MAX)] | None, BeforeValidator(join_texts)]


class ChatMessageParam(ResentModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ChatCall], Field(max_length=128)] | None = None
    tool_call_id: Key | None = None
    prefix: bool | None = None  # DeepSeek's and Mistral's: the answer goes on with the words of this last message


class JsonSchema(ResentModel):
    name: Name
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(ResentModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class NamedFunction(ResentModel):
    name: Name


class ChatToolChoice(ResentModel):
    type: Literal["function"]
    function: NamedFunction


def _chat_choice_kind(given: Any) -> str:
    kind = given.type if isinstance(given, ChatToolChoice | OtherChoice) else None
    return _kind(given if kind is None else {"type": kind}, "function")


AnyChatChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("by-value")]
    | Annotated[ChatToolChoice, Tag("a-function")]
    | Annotated[OtherChoice, Tag("another-kind")],
    Discriminator(_chat_choice_kind),
]


class StreamOptions(RequestModel):
    include_usage: bool | None = False
    include_obfuscation: bool | None = None


class ChatStreamOptions(StreamOptions):
    continuous_usage_stats: bool | None = None  # vLLM's: each chunk has the usage so far


class TemplateVariables(RequestModel):
    """Variables of the chat template that a request may set: whether the model reasons."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


class ChatRequest(SamplingRequest):
    model: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    messages: Annotated[list[ChatMessageParam], Field(min_length=1, max_length=4096)]
    tools: Annotated[list[AnyChatTool], Field(max_length=128)] | None = None
    tool_choice: AnyChatChoice | None = None
    response_format: ResponseFormat | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = 1
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    logprobs: bool | None = False
    stream_options: ChatStreamOptions | None = None
    modalities: list[Literal["text"]] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateVariables | None = None  # vLLM's, with the next
    thinking_token_budget: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    verbosity: str | None = None
    store: bool | None = None
    continue_final_message: bool | None = None  # vLLM's name for the same, with the next as false
    add_generation_prompt: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None  # as in Responses: whether the oldest turns may be left out


# -- responses ------------------------------------------------------------------------------------------------------


class CodeOutput(LenientModel):
    """One output of a code interpreter call that a client sends back."""

    type: Literal["logs", "image"]
    logs: str | None = None


QUIET_ITEMS: Final = frozenset(("reasoning", "mcp_list_tools", "mcp_approval_request"))
_OWN_ITEMS: Final = frozenset(("function_call", "function_call_output", "code_interpreter_call", "file_search_call"))
_NOTES: Final = frozenset(("additional_tools", "compaction_trigger", "ghost_snapshot"))


def is_foreign(kind: Any) -> bool:
    """Returns whether input items of a type are left out: reasoning, items that only show something, and calls and
    outputs of tools that this server does not have."""
    if not isinstance(kind, str) or kind in _OWN_ITEMS:
        return False
    return kind in QUIET_ITEMS or kind in _NOTES or kind.endswith(("_call", "_output"))


class InputItem(ResentModel):
    """An input item of any type. `type` says which fields count; without one it is a message."""

    type: str | None = None
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content = None
    call_id: Key | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content = None
    encrypted_content: str | None = None  # of a compaction
    code: str | None = None  # of a `code_interpreter_call`, likewise the next
    outputs: Annotated[list[CodeOutput], Field(max_length=64)] | None = None
    queries: Annotated[list[str], Field(max_length=16)] | None = None  # of a `file_search_call`, likewise the next
    results: Annotated[list[dict[str, Any]], Field(max_length=50)] | None = None
    skipped: Annotated[list[str], Field(max_length=16)] | None = None
    reasons: dict[str, str] | None = None
    approval_request_id: Key | None = None
    approve: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_foreign_fields(cls, given: Any) -> Any:
        """Reduces an item that is left out to its type, so that its other fields may have any size and shape."""
        return {"type": given["type"]} if isinstance(given, dict) and is_foreign(given.get("type")) else given


FileIdParam = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class CodeContainer(ResentModel):
    type: Literal["auto"]
    file_ids: Annotated[list[FileIdParam], Field(max_length=TOOL_FILES_MAX)] | None = None
    memory_limit: Literal["1g", "4g", "16g", "64g"] | None = None  # the tools file says it


def _container_kind(given: Any) -> str:
    return "a-container" if isinstance(given, dict | CodeContainer) else "by-value"


AnyContainer = Annotated[
    Annotated[CodeContainer, Tag("a-container")] | Annotated[str, Tag("by-value")], Discriminator(_container_kind)
]


def _named_by_type(given: Any) -> Any:
    """Gives OpenAI's tools that have no name their type as their name."""
    if isinstance(given, dict) and given.get("type") in (CODE_INTERPRETER, FILE_SEARCH):
        return {**given, "name": given["type"]}
    return given


class FunctionTool(ChatFunction):
    """A function of the client, or `code_interpreter`, which the server runs if its tools file has it."""

    type: Literal["function", "code_interpreter"]
    container: AnyContainer | None = None

    _named = model_validator(mode="before")(_named_by_type)


McpLabel = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
McpToolName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
McpToolNames = Annotated[list[McpToolName], Field(max_length=512)]


class McpToolFilter(RequestModel):
    tool_names: McpToolNames | None = None
    read_only: bool | None = None


class McpApprovalFilter(RequestModel):
    always: McpToolFilter | None = None
    never: McpToolFilter | None = None


class McpToolParam(ResentModel):
    """An MCP server of the tools file, by its label. Without `require_approval` the tools file decides."""

    type: Literal["mcp"]
    server_label: McpLabel
    server_description: str | None = None
    server_url: str | None = None
    connector_id: str | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: McpToolNames | McpToolFilter | None = None
    require_approval: Literal["always", "never"] | McpApprovalFilter | None = None


class SearchRankingOptions(ResentModel):
    ranker: Literal["auto", "default-2024-11-15"] = "auto"
    score_threshold: Annotated[float, Field(ge=0, le=1)] = 0.0


class FileSearchTool(ResentModel):
    """The server's tool that searches vector stores, narrowed to some of them."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=64)]], Field(min_length=1, max_length=16)
    ]
    max_num_results: Annotated[int, Field(ge=1, le=50)] | None = None
    filters: dict[str, Any] | None = None
    ranking_options: SearchRankingOptions | None = None


def _response_kind(given: Any) -> str:
    kind = given.type if isinstance(given, FunctionTool | McpToolParam | FileSearchTool | OtherTool) else None
    return _kind(given if kind is None else {"type": kind}, "function", CODE_INTERPRETER, "mcp", FILE_SEARCH)


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("a-function")]
    | Annotated[McpToolParam, Tag("a-mcp")]
    | Annotated[FileSearchTool, Tag("a-file_search")]
    | Annotated[OtherTool, Tag("another-kind")],
    Discriminator(_response_kind),
]


class FunctionChoice(NamedFunction):
    type: Literal["function", "code_interpreter", "file_search"]

    _named = model_validator(mode="before")(_named_by_type)


def _choice_kind(given: Any) -> str:
    kind = given.type if isinstance(given, FunctionChoice | OtherChoice) else None
    if kind == FILE_SEARCH or (isinstance(given, dict) and given.get("type") == FILE_SEARCH):
        return "a-function"
    return _kind(given if kind is None else {"type": kind}, "function", CODE_INTERPRETER)


ResponseChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("by-value")]
    | Annotated[FunctionChoice, Tag("a-function")]
    | Annotated[OtherChoice, Tag("another-kind")],
    Discriminator(_choice_kind),
]


class TextFormat(ResentModel):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextConfig(ResentModel):
    format: TextFormat | None = None
    verbosity: str | None = None


class ConversationRef(LenientModel):
    id: Key


class ContextManagement(RequestModel):
    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1, le=100_000_000)] | None = None


class ResponsesRequest(SamplingRequest):
    model: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    input: str | Annotated[list[InputItem], Field(max_length=4096)] | None = None
    instructions: str | None = None
    previous_response_id: Key | None = None
    conversation: Key | ConversationRef | None = None
    background: bool | None = False
    store: bool | None = True
    tools: Annotated[list[ResponseTool], Field(max_length=128)] | None = None
    tool_choice: ResponseChoice | None = None
    text: TextConfig | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    include: list[str] | None = None
    stream_options: StreamOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: Annotated[list[ContextManagement], Field(max_length=1)] | None = None
    reasoning: dict[str, Any] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=INTEGER_MAX)] | None = None


class SteerMessage(LenientModel):
    type: Literal["message"] | None = None
    role: Literal["user"]
    content: str | Annotated[list[ContentPart], Field(min_length=1, max_length=PARTS_MAX)]


class SteerRequest(RequestModel):
    input: (
        Annotated[str, StringConstraints(min_length=1)]
        | Annotated[list[SteerMessage], Field(min_length=1, max_length=64)]
    )


class CompactRequest(RequestModel):
    """A request to summarise a history: `input`, the conversation up to a response, or both, one after the other."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    input: str | Annotated[list[InputItem], Field(max_length=4096)] | None = None
    instructions: str | None = None
    previous_response_id: Key | None = None
    # OpenAI's service knows these; here they have no effect.
    prompt_cache_key: Annotated[str, StringConstraints(max_length=512)] | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    client_metadata: dict[str, Any] | None = None
