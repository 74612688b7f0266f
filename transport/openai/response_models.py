"""What the page at /docs says of answers: every one whole, and streams with what their events look like.

These models only describe. The answers are made by `chat_render`, `render` and the routes from the log; that they fit
what is declared here is what the fuzzing from the document holds (`make fuzz`). Unknown fields are ruled out,
so that a field which is added there and not here is found.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel

T = TypeVar("T")


class ResponseModel(BaseModel):
    """Base of answers: they have no other fields than the described ones."""

    model_config = ConfigDict(extra="forbid")


class ListPage(ResponseModel, Generic[T]):
    """A page of a list; `last_id` is what to send as `after` for the next page."""

    object: Literal["list"]
    data: list[T]
    has_more: bool
    last_id: str | None


class ErrorDetail(ResponseModel):
    type: str
    code: str
    message: str
    param: str | None = None
    retryable: bool
    retry_after_ms: int | None = None


class Error(ResponseModel):
    error: ErrorDetail


# -- chat -----------------------------------------------------------------------------------------------------------


class ToolCallFunction(ResponseModel):
    name: str
    arguments: str


class ToolCallObject(ResponseModel):
    id: str
    type: Literal["function"]
    function: ToolCallFunction


class TopLogprob(ResponseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class Logprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class Logprobs(ResponseModel):
    content: list[Logprob]
    refusal: None


class AssistantMessage(ResponseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[dict[str, Any]]
    tool_calls: list[ToolCallObject] | None = None


FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class ChatChoice(ResponseModel):
    index: int
    message: AssistantMessage
    logprobs: Logprobs | None
    finish_reason: FinishReason


class PromptDetails(ResponseModel):
    cached_tokens: int


class OutputDetails(ResponseModel):
    """Details of output tokens. `cached_tokens` is set for an answer that came from the tenant's result cache."""

    reasoning_tokens: int
    cached_tokens: int | None = None


class UsageCost(ResponseModel):
    """The cost, if the server has a price list with the model. `amount` is an exact decimal."""

    amount: str
    currency: str
    price_version: str


class ChatUsage(ResponseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: OutputDetails
    cost: UsageCost | None = None


class ChatHead(ResponseModel):
    id: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str


class ChatCompletion(ChatHead):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: ChatUsage


class CallDeltaFunction(ResponseModel):
    name: str | None = None
    arguments: str


class CallDelta(ResponseModel):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CallDeltaFunction


class Delta(ResponseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(ResponseModel):
    index: int
    delta: Delta
    logprobs: Logprobs | None
    finish_reason: FinishReason | None


class ChatChunk(ChatHead):
    """One `data:` line of a stream, whose last line is `[DONE]`."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: ChatUsage | None = None


# -- items and responses --------------------------------------------------------------------------------------------

Status = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(ResponseModel):
    type: Literal["input_text"]
    text: str


class InputFilePart(ResponseModel):
    type: Literal["input_file"]
    file_id: str | None
    filename: str


class InputImagePart(ResponseModel):
    type: Literal["input_image"]
    image_url: str | None
    detail: Literal["low", "high", "auto", "original"]


class OutputTextPart(ResponseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[Logprob]


class RefusalPart(ResponseModel):
    type: Literal["refusal"]
    refusal: str


class MessageItem(ResponseModel):
    id: str
    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant", "tool"]
    status: Status
    content: list[InputTextPart | InputFilePart | InputImagePart | OutputTextPart | RefusalPart]


class FunctionCallItem(ResponseModel):
    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: Status


class FunctionCallOutputItem(ResponseModel):
    id: str
    type: Literal["function_call_output"]
    call_id: str
    output: str
    status: Status


ItemUnion = Annotated[MessageItem | FunctionCallItem | FunctionCallOutputItem, Field(discriminator="type")]


class ItemObject(RootModel[ItemUnion]):
    """One item of any type."""


class ItemList(ResponseModel):
    object: Literal["list"]
    data: list[ItemUnion]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputDetails(PromptDetails):
    cache_write_tokens: int


class ResponseUsage(ResponseModel):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int
    cost: UsageCost | None = None


class ResponseError(ResponseModel):
    code: str
    message: str
    retry_after_ms: int | None = None


class IncompleteDetails(ResponseModel):
    reason: str
    response_id: Annotated[str, Field(description="Of a response that was steered: the one that goes on.")] = ""


class ConversationOf(ResponseModel):
    id: str


class ResponseObject(ResponseModel):
    """A response and the request that it answers."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[ItemUnion]
    usage: ResponseUsage | None
    metadata: dict[str, Any]
    background: bool
    conversation: ConversationOf | None
    instructions: str | None
    frequency_penalty: float
    max_output_tokens: int | None
    max_tool_calls: int | None
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | None


class CompactedResponse(ResponseModel):
    """A conversation's user messages, and the compaction item that stands for the whole conversation."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


class DeletedObject(ResponseModel):
    id: str
    deleted: Literal[True]


class ResponseDeleted(DeletedObject):
    object: Literal["response"]


class RequiredInput(ResponseModel):
    type: Literal["function_call_output"]
    call_id: str
    name: str


class ResponseSteered(ResponseModel):
    """A message that steers a response: it was accepted, or waits for tool outputs."""

    id: str
    object: Literal["response.steer"]
    previous_response_id: str
    response_id: Annotated[str, Field(description="The response that continues after the message.")]
    status: Literal["accepted", "pending"]
    required_input: Annotated[
        list[RequiredInput], Field(description="The outputs that the message waits for, once the response has ended.")
    ]


# -- conversations and sessions -------------------------------------------------------------------------------------


class Conversation(ResponseModel):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, Any]


class ConversationDeleted(DeletedObject):
    object: Literal["conversation.deleted"]


class SessionRow(ResponseModel):
    """The fields of a session that every list shows."""

    id: str
    title: str | None
    model: str
    metadata: dict[str, Any]
    open: bool
    created_at: int
    updated_at: int


class SessionSummary(SessionRow):
    object: Literal["session"]


class MatchObject(ResponseModel):
    """A place where all words of a search occur: an item, or (`item_id` null) the title. `start` and `end` bound the
    first word, in code points of the snippet."""

    item_id: str | None
    role: Literal["user", "assistant"] | None
    snippet: str
    start: int
    end: int


class SessionMatch(SessionRow):
    object: Literal["session.match"]
    matches: list[MatchObject]


class SessionMatchList(ListPage[SessionMatch]):
    """A page of sessions that match a search, newest first."""


class SessionListObject(ListPage[SessionSummary]):
    """A page of sessions, newest first."""


class SessionFields(ResponseModel):
    """The fields that a session's description and its state have in common."""

    head: str | None
    title: str | None
    metadata: dict[str, Any]
    model: str
    instructions: str | None
    tools: list[dict[str, Any]]
    temperature: float | None
    max_output_tokens: int | None
    created_at: int | None
    reviews: list[dict[str, Any]] = []
    context_policy: str | None = None
    compact_threshold: int | None = None
    knowledge: dict[str, Any] | None = None
    compactions: list[dict[str, Any]] = []


class SessionObject(SessionFields):
    id: str
    object: Literal["session"]
    epoch: str
    offset: int
    open: list[str]
    num_items: int


class SessionDeletedObject(DeletedObject):
    object: Literal["session.deleted"]


class SessionState(SessionFields):
    """The whole state of a session, without retracted text. The protocol's page describes the fields."""

    items: list[dict[str, Any]]
    open: list[dict[str, Any]]
    queued: list[dict[str, Any]]
    awaiting: list[dict[str, Any]]
    made_by: dict[str, str]
    incomplete: dict[str, str]
    answers: dict[str, dict[str, Any]]
    feedback: list[dict[str, Any]] = []
    pinned: list[str] = []


class SessionExport(ResponseModel):
    object: Literal["session.export"]
    id: str
    epoch: str
    offset: int
    state: SessionState


class ShareObject(ResponseModel):
    """A share link of a session. `offset` is the log's end at that time; `created_by` names the key and its user."""

    object: Literal["session.share"]
    id: str
    session: str
    item_id: str
    offset: int
    created_at: int
    created_by: str


class NewShareObject(ShareObject):
    token: str


class ShareList(ListPage[ShareObject]):
    """The share links of a session."""


class ShareDeletedObject(DeletedObject):
    object: Literal["session.share.deleted"]


class SharedMessage(ResponseModel):
    role: Literal["user", "assistant"]
    text: str
    files: list[str]
    created_at: int


class SharedConversation(ResponseModel):
    """A branch as it was when it was shared, without text that was retracted since."""

    object: Literal["shared_conversation"]
    title: str | None
    model: str
    created_at: int
    shared_at: int
    messages: list[SharedMessage]


# -- as FastAPI takes it --------------------------------------------------------------------------------------------

Answers = dict[int | str, dict[str, Any]]

_ERROR: Final[dict[str, Any]] = {"model": Error, "description": "OpenAI's error object"}
ERRORS: Final[Answers] = {"4XX": _ERROR, "5XX": _ERROR, 422: _ERROR}
_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("data", "event", "id")},
    "required": ["data"],
    "additionalProperties": False,
}
STREAM: Final[dict[str, Any]] = {"text/event-stream": {"itemSchema": _EVENT}}
MARKDOWN: Final[dict[str, Any]] = {"text/markdown": {"schema": {"type": "string"}}}
STREAMED: Final[Answers] = {**ERRORS, 200: {"content": STREAM, "description": "Server-sent events"}}


def answers(model: type[BaseModel], *, also: dict[str, Any] | None = None) -> Answers:
    """Returns a route's possible answers for OpenAPI: `model` if it succeeds, also as `also`, and the errors."""
    good: dict[str, Any] = {"model": model, "description": "Done"}
    if also is not None:
        good["content"] = also
    return {**ERRORS, 200: good}
