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

from sessions.model.types import INTEGER_MAX
from sessions.server_tools import CODE_INTERPRETER

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
    """Base of all that is read of a request: a list is read up to its first mistake. Every mistake costs ten times what
    a value does, and a body may have 65,536 of them."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_mistakes(schema)
        return schema


class RequestModel(BoundedModel):
    """Base of request bodies: unknown parameters are refused, unless they say nothing (null) or are a client's own
    bookkeeping (`x_...`)."""

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
    """Base of what clients send back: unknown fields are left alone."""

    model_config = ConfigDict(extra="ignore")


class ResentModel(LenientModel):
    """Base of messages, their parts and functions: unknown fields have no effect, which the answer's `Warning` says."""

    model_config = ConfigDict(extra="allow")


def _kind(given: Any, *functions: str) -> str:
    """The branch of a tool, or of a choice of tools. No name of a field: errors leave it out."""
    if not isinstance(given, dict):
        return "by-value" if isinstance(given, str) else f"of-{type(given).__name__}"
    kind = given.get("type")
    return f"a-{kind}" if kind == "mcp" and kind in functions else "a-function" if kind in functions else "another-kind"


class OtherTool(LenientModel):
    """A tool of a kind that nobody here carries out. It is left out, which the answer's `Warning` says."""

    type: str


class OtherChoice(LenientModel):
    """A choice that no tool here can be."""

    type: str


class SamplingRequest(RequestModel):
    """How an answer is drawn, in the words that all doors share: OpenAI's, and some of llama.cpp's and vLLM's, of which
    one thing may have two names."""

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


class ChatTool(LenientModel):
    type: Literal["function"]
    function: ChatFunction


def _chat_kind(given: Any) -> str:
    kind = given.type if isinstance(given, ChatTool | OtherTool) else None
    return _kind(given if kind is None else {"type": kind}, "function")


AnyChatTool = Annotated[
    Annotated[ChatTool, Tag("a-function")] | Annotated[OtherTool, Tag("another-kind")], Discriminator(_chat_kind)
]


class ChatCallFunction(LenientModel):
    name: str
    arguments: str


class ChatCall(LenientModel):
    id: Key
    type: Literal["function"] | None = "function"
    function: ChatCallFunction


class FilePart(LenientModel):
    """A file as chat completions have it: one that was uploaded, or its bytes in base64."""

    file_id: Key | None = None
    filename: Annotated[str, StringConstraints(max_length=1024)] | None = None
    file_data: str | None = None


class ContentPart(ResentModel):
    type: str
    text: str | None = None
    refusal: str | None = None
    file_id: Key | None = None  # of an `input_file`, likewise the next
    filename: Annotated[str, StringConstraints(max_length=1024)] | None = None
    file_data: str | None = None
    file: FilePart | None = None


def join_texts(content: Any, types: Sequence[str] = TEXTS) -> Any:
    """Returns parts that are nothing but text as their text: an object for each of them would cost many times that."""
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


class JsonSchema(LenientModel):
    name: Name
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(LenientModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class NamedFunction(LenientModel):
    name: Name


class ChatToolChoice(LenientModel):
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
    """Variables of a chat template that a request may set: whether the model thinks."""

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
    """What came of a call of code that a client sends back."""

    type: Literal["logs", "image"]
    logs: str | None = None


QUIET_ITEMS: Final = frozenset(("reasoning", "mcp_list_tools", "mcp_approval_request"))
_OWN_ITEMS: Final = frozenset(("function_call", "function_call_output", "code_interpreter_call"))
_NOTES: Final = frozenset(("additional_tools", "compaction_trigger", "ghost_snapshot"))


def is_foreign(kind: Any) -> bool:
    """Whether items of a kind are left out: reasoning, what only shows something, and calls of tools, with their
    outputs, that nobody here carries out."""
    if not isinstance(kind, str) or kind in _OWN_ITEMS:
        return False
    return kind in QUIET_ITEMS or kind in _NOTES or kind.endswith(("_call", "_output"))


class InputItem(ResentModel):
    """An item of any kind: its `type` says which fields count; without one it is a message."""

    type: str | None = None
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content = None
    call_id: Key | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content = None
    encrypted_content: str | None = None  # of a compaction
    code: str | None = None  # of a call of code, with what came of it
    outputs: Annotated[list[CodeOutput], Field(max_length=64)] | None = None
    approval_request_id: Key | None = None
    approve: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_foreign_fields(cls, given: Any) -> Any:
        """What is left out may be of any size and shape."""
        return {"type": given["type"]} if isinstance(given, dict) and is_foreign(given.get("type")) else given


class CodeContainer(LenientModel):
    type: Literal["auto"]
    file_ids: list[str] | None = None
    memory_limit: Literal["1g", "4g", "16g", "64g"] | None = None  # the tools file says it


def _named_by_type(given: Any) -> Any:
    """A tool of OpenAI's own has no name but its type."""
    if isinstance(given, dict) and given.get("type") == CODE_INTERPRETER:
        return {**given, "name": CODE_INTERPRETER}
    return given


class FunctionTool(ChatFunction):
    """A function, or `code_interpreter`, which the server carries out if its tools file has it."""

    type: Literal["function", "code_interpreter"]
    container: CodeContainer | str | None = None

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


class McpToolParam(LenientModel):
    """A server of the tools file, by its label. Without `require_approval` the file says who is asked."""

    type: Literal["mcp"]
    server_label: McpLabel
    server_description: str | None = None
    server_url: str | None = None
    connector_id: str | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: McpToolNames | McpToolFilter | None = None
    require_approval: Literal["always", "never"] | McpApprovalFilter | None = None


def _response_kind(given: Any) -> str:
    kind = given.type if isinstance(given, FunctionTool | McpToolParam | OtherTool) else None
    return _kind(given if kind is None else {"type": kind}, "function", CODE_INTERPRETER, "mcp")


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("a-function")]
    | Annotated[McpToolParam, Tag("a-mcp")]
    | Annotated[OtherTool, Tag("another-kind")],
    Discriminator(_response_kind),
]


class FunctionChoice(NamedFunction):
    type: Literal["function", "code_interpreter"]

    _named = model_validator(mode="before")(_named_by_type)


def _choice_kind(given: Any) -> str:
    kind = given.type if isinstance(given, FunctionChoice | OtherChoice) else None
    return _kind(given if kind is None else {"type": kind}, "function", CODE_INTERPRETER)


ResponseChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("by-value")]
    | Annotated[FunctionChoice, Tag("a-function")]
    | Annotated[OtherChoice, Tag("another-kind")],
    Discriminator(_choice_kind),
]


class TextFormat(LenientModel):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextConfig(LenientModel):
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
    """What is to be compacted: a history, the one behind a response, or that with more input."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    input: str | Annotated[list[InputItem], Field(max_length=4096)] | None = None
    instructions: str | None = None
    previous_response_id: Key | None = None
    # OpenAI's service knows these; here they have no effect.
    prompt_cache_key: Annotated[str, StringConstraints(max_length=512)] | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    client_metadata: dict[str, Any] | None = None
