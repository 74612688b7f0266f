"""What OpenAI's requests look like, as far as both doors share it; models for reading, and for the page at /docs.

Parameters that we do not know are refused, as OpenAI does; those that only concern OpenAI's own service are taken and
have no effect. Messages and items may carry more fields than we read: clients send back what they were sent.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from sessions.model.types import INTEGER_MAX
from sessions.server_tools import CODE_INTERPRETER

OWN_PREFIXES: Final = ("x_", "x-")  # of what a client notes for itself
Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Key = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Metadata = Annotated[dict[str, Annotated[str, StringConstraints(max_length=512)]], Field(max_length=16)]


class RequestModel(BaseModel):
    """Base of request bodies: unknown parameters are refused, unless they say nothing (null) or are a client's own
    bookkeeping (`x_...`)."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {
            name: value
            for name, value in given.items()
            if name in cls.model_fields or not (value is None or name.startswith(OWN_PREFIXES))
        }


class LenientModel(BaseModel):
    """Base of what clients send back: unknown fields are left alone."""

    model_config = ConfigDict(extra="ignore")


class SamplingRequest(RequestModel):
    """How an answer is drawn, in the words that all doors share: OpenAI's, and some of llama.cpp's and vLLM's, of which
    one thing may have two names."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
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


class ChatFunction(LenientModel):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    server: bool | None = None  # one of the server's own: it says what it is for, and carries it out


class ChatTool(LenientModel):
    type: Literal["function"]
    function: ChatFunction


class ChatCallFunction(LenientModel):
    name: str
    arguments: str


class ChatCall(LenientModel):
    id: Key
    type: Literal["function"] = "function"
    function: ChatCallFunction


class FilePart(LenientModel):
    """A file as chat completions have it: one that was uploaded, or its bytes in base64."""

    file_id: Key | None = None
    filename: Annotated[str, StringConstraints(max_length=1024)] | None = None
    file_data: str | None = None


class ContentPart(LenientModel):
    type: str
    text: str | None = None
    refusal: str | None = None
    file_id: Key | None = None  # of an `input_file`, likewise the next
    filename: Annotated[str, StringConstraints(max_length=1024)] | None = None
    file_data: str | None = None
    file: FilePart | None = None


class ChatMessageParam(LenientModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(max_length=256)] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ChatCall], Field(max_length=128)] | None = None
    tool_call_id: Key | None = None


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


class StreamOptions(RequestModel):
    include_usage: bool | None = False
    include_obfuscation: bool | None = None


class ChatStreamOptions(StreamOptions):
    continuous_usage_stats: bool | None = None  # vLLM's: each chunk has the usage so far


class ChatRequest(SamplingRequest):
    model: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    messages: Annotated[list[ChatMessageParam], Field(min_length=1, max_length=4096)]
    tools: Annotated[list[ChatTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChatToolChoice | None = None
    response_format: ResponseFormat | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = 1
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    logprobs: bool | None = False
    stream_options: ChatStreamOptions | None = None
    modalities: list[Literal["text"]] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    store: bool | None = None


# -- responses ------------------------------------------------------------------------------------------------------


class CodeOutput(LenientModel):
    """What came of a call of code that a client sends back."""

    type: Literal["logs", "image"]
    logs: str | None = None


class InputItem(LenientModel):
    """An item of any kind: its `type` says which fields count; without one it is a message."""

    type: str | None = None
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Annotated[list[ContentPart], Field(max_length=256)] | None = None
    call_id: Key | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Annotated[list[ContentPart], Field(max_length=256)] | None = None
    encrypted_content: Annotated[str, StringConstraints(max_length=4096)] | None = None  # of a compaction
    code: str | None = None  # of a call of code, with what came of it
    outputs: Annotated[list[CodeOutput], Field(max_length=64)] | None = None
    approval_request_id: Key | None = None
    approve: bool | None = None


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


ResponseTool = Annotated[FunctionTool | McpToolParam, Field(discriminator="type")]


class FunctionChoice(NamedFunction):
    type: Literal["function", "code_interpreter"]

    _named = model_validator(mode="before")(_named_by_type)


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
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
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
    content: str | Annotated[list[ContentPart], Field(min_length=1, max_length=256)]


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
