from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionCreate(_message.Message):
    __slots__ = ("id", "session", "model", "instructions", "tools", "metadata", "title", "temperature", "max_output_tokens", "context_policy", "compact_threshold", "knowledge")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_POLICY_FIELD_NUMBER: _ClassVar[int]
    COMPACT_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    KNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    model: str
    instructions: str
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    metadata: _struct_pb2.Struct
    title: str
    temperature: float
    max_output_tokens: int
    context_policy: str
    compact_threshold: int
    knowledge: SearchScope
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., model: _Optional[str] = ..., instructions: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., title: _Optional[str] = ..., temperature: _Optional[float] = ..., max_output_tokens: _Optional[int] = ..., context_policy: _Optional[str] = ..., compact_threshold: _Optional[int] = ..., knowledge: _Optional[_Union[SearchScope, _Mapping]] = ...) -> None: ...

class SearchScope(_message.Message):
    __slots__ = ("vector_store_ids", "results_max", "filters", "score_min")
    VECTOR_STORE_IDS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_MAX_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    SCORE_MIN_FIELD_NUMBER: _ClassVar[int]
    vector_store_ids: _containers.RepeatedScalarFieldContainer[str]
    results_max: int
    filters: _struct_pb2.Struct
    score_min: float
    def __init__(self, vector_store_ids: _Optional[_Iterable[str]] = ..., results_max: _Optional[int] = ..., filters: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., score_min: _Optional[float] = ...) -> None: ...

class MessageCreate(_message.Message):
    __slots__ = ("id", "session", "content", "parts", "parent_id", "at_root", "role", "no_response", "queue", "sampling", "model", "knowledge", "no_knowledge")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    AT_ROOT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NO_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    NO_KNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    content: str
    parts: _containers.RepeatedCompositeFieldContainer[ContentPart]
    parent_id: str
    at_root: bool
    role: str
    no_response: bool
    queue: bool
    sampling: Sampling
    model: str
    knowledge: SearchScope
    no_knowledge: bool
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., content: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[ContentPart, _Mapping]]] = ..., parent_id: _Optional[str] = ..., at_root: _Optional[bool] = ..., role: _Optional[str] = ..., no_response: _Optional[bool] = ..., queue: _Optional[bool] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., model: _Optional[str] = ..., knowledge: _Optional[_Union[SearchScope, _Mapping]] = ..., no_knowledge: _Optional[bool] = ...) -> None: ...

class MessageEdit(_message.Message):
    __slots__ = ("id", "session", "item_id", "content", "parts", "no_response", "sampling", "model", "knowledge", "no_knowledge")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    NO_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    NO_KNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    item_id: str
    content: str
    parts: _containers.RepeatedCompositeFieldContainer[ContentPart]
    no_response: bool
    sampling: Sampling
    model: str
    knowledge: SearchScope
    no_knowledge: bool
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., item_id: _Optional[str] = ..., content: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[ContentPart, _Mapping]]] = ..., no_response: _Optional[bool] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., model: _Optional[str] = ..., knowledge: _Optional[_Union[SearchScope, _Mapping]] = ..., no_knowledge: _Optional[bool] = ...) -> None: ...

class ResponseCreate(_message.Message):
    __slots__ = ("id", "session", "parent_id", "at_root", "queue", "sampling", "model")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    AT_ROOT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    parent_id: str
    at_root: bool
    queue: bool
    sampling: Sampling
    model: str
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., parent_id: _Optional[str] = ..., at_root: _Optional[bool] = ..., queue: _Optional[bool] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., model: _Optional[str] = ...) -> None: ...

class ResponseCancel(_message.Message):
    __slots__ = ("id", "session", "response_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    response_id: str
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., response_id: _Optional[str] = ...) -> None: ...

class ResponseSteer(_message.Message):
    __slots__ = ("id", "session", "response_id", "content", "parts")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    response_id: str
    content: str
    parts: _containers.RepeatedCompositeFieldContainer[ContentPart]
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., response_id: _Optional[str] = ..., content: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[ContentPart, _Mapping]]] = ...) -> None: ...

class ToolOutput(_message.Message):
    __slots__ = ("id", "session", "call_id", "output", "is_error")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    call_id: str
    output: str
    is_error: bool
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., call_id: _Optional[str] = ..., output: _Optional[str] = ..., is_error: _Optional[bool] = ...) -> None: ...

class SessionUpdate(_message.Message):
    __slots__ = ("id", "session", "title", "metadata", "instructions", "tools", "clear", "temperature", "max_output_tokens", "context_policy", "compact_threshold", "knowledge")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_POLICY_FIELD_NUMBER: _ClassVar[int]
    COMPACT_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    KNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    title: str
    metadata: _struct_pb2.Struct
    instructions: str
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    clear: _containers.RepeatedScalarFieldContainer[str]
    temperature: float
    max_output_tokens: int
    context_policy: str
    compact_threshold: int
    knowledge: SearchScope
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., title: _Optional[str] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., instructions: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., clear: _Optional[_Iterable[str]] = ..., temperature: _Optional[float] = ..., max_output_tokens: _Optional[int] = ..., context_policy: _Optional[str] = ..., compact_threshold: _Optional[int] = ..., knowledge: _Optional[_Union[SearchScope, _Mapping]] = ...) -> None: ...

class SessionDelete(_message.Message):
    __slots__ = ("id", "session")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ...) -> None: ...

class SessionWarm(_message.Message):
    __slots__ = ("id", "session")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ...) -> None: ...

class ReviewAppeal(_message.Message):
    __slots__ = ("id", "session", "response_id", "content", "note")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    response_id: str
    content: str
    note: str
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., response_id: _Optional[str] = ..., content: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class FeedbackSet(_message.Message):
    __slots__ = ("id", "session", "response_id", "rating", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    response_id: str
    rating: str
    reason: str
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., response_id: _Optional[str] = ..., rating: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class SessionCompact(_message.Message):
    __slots__ = ("id", "session", "keep_turns", "item_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEEP_TURNS_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    keep_turns: int
    item_id: str
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., keep_turns: _Optional[int] = ..., item_id: _Optional[str] = ...) -> None: ...

class CompactionUndo(_message.Message):
    __slots__ = ("id", "session", "compaction_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    compaction_id: str
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., compaction_id: _Optional[str] = ...) -> None: ...

class ItemPin(_message.Message):
    __slots__ = ("id", "session", "item_id", "pinned")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    item_id: str
    pinned: bool
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., item_id: _Optional[str] = ..., pinned: _Optional[bool] = ...) -> None: ...

class ToolApprove(_message.Message):
    __slots__ = ("id", "session", "call_id", "approved")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    APPROVED_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    call_id: str
    approved: bool
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., call_id: _Optional[str] = ..., approved: _Optional[bool] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("session_create", "message_create", "message_edit", "response_create", "response_cancel", "tool_output", "session_update", "session_delete", "session_warm", "review_appeal", "feedback_set", "session_compact", "compaction_undo", "item_pin", "response_steer", "tool_approve")
    SESSION_CREATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_CREATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_EDIT_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_CREATE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_CANCEL_FIELD_NUMBER: _ClassVar[int]
    TOOL_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SESSION_UPDATE_FIELD_NUMBER: _ClassVar[int]
    SESSION_DELETE_FIELD_NUMBER: _ClassVar[int]
    SESSION_WARM_FIELD_NUMBER: _ClassVar[int]
    REVIEW_APPEAL_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_SET_FIELD_NUMBER: _ClassVar[int]
    SESSION_COMPACT_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_UNDO_FIELD_NUMBER: _ClassVar[int]
    ITEM_PIN_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_STEER_FIELD_NUMBER: _ClassVar[int]
    TOOL_APPROVE_FIELD_NUMBER: _ClassVar[int]
    session_create: SessionCreate
    message_create: MessageCreate
    message_edit: MessageEdit
    response_create: ResponseCreate
    response_cancel: ResponseCancel
    tool_output: ToolOutput
    session_update: SessionUpdate
    session_delete: SessionDelete
    session_warm: SessionWarm
    review_appeal: ReviewAppeal
    feedback_set: FeedbackSet
    session_compact: SessionCompact
    compaction_undo: CompactionUndo
    item_pin: ItemPin
    response_steer: ResponseSteer
    tool_approve: ToolApprove
    def __init__(self, session_create: _Optional[_Union[SessionCreate, _Mapping]] = ..., message_create: _Optional[_Union[MessageCreate, _Mapping]] = ..., message_edit: _Optional[_Union[MessageEdit, _Mapping]] = ..., response_create: _Optional[_Union[ResponseCreate, _Mapping]] = ..., response_cancel: _Optional[_Union[ResponseCancel, _Mapping]] = ..., tool_output: _Optional[_Union[ToolOutput, _Mapping]] = ..., session_update: _Optional[_Union[SessionUpdate, _Mapping]] = ..., session_delete: _Optional[_Union[SessionDelete, _Mapping]] = ..., session_warm: _Optional[_Union[SessionWarm, _Mapping]] = ..., review_appeal: _Optional[_Union[ReviewAppeal, _Mapping]] = ..., feedback_set: _Optional[_Union[FeedbackSet, _Mapping]] = ..., session_compact: _Optional[_Union[SessionCompact, _Mapping]] = ..., compaction_undo: _Optional[_Union[CompactionUndo, _Mapping]] = ..., item_pin: _Optional[_Union[ItemPin, _Mapping]] = ..., response_steer: _Optional[_Union[ResponseSteer, _Mapping]] = ..., tool_approve: _Optional[_Union[ToolApprove, _Mapping]] = ...) -> None: ...

class Ok(_message.Message):
    __slots__ = ("id", "session", "epoch", "offset", "item_id", "response_id", "noop", "review_id", "compaction_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    NOOP_FIELD_NUMBER: _ClassVar[int]
    REVIEW_ID_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    session: str
    epoch: str
    offset: int
    item_id: str
    response_id: str
    noop: bool
    review_id: str
    compaction_id: str
    def __init__(self, id: _Optional[str] = ..., session: _Optional[str] = ..., epoch: _Optional[str] = ..., offset: _Optional[int] = ..., item_id: _Optional[str] = ..., response_id: _Optional[str] = ..., noop: _Optional[bool] = ..., review_id: _Optional[str] = ..., compaction_id: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repeat_penalty", "seed", "max_output_tokens", "stop", "logit_bias", "logprobs", "top_logprobs", "tool_choice", "parallel_tool_calls", "text", "ignore_eos", "min_tokens", "stop_token_ids", "thinking", "thinking_tokens", "effort")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPEAT_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    THINKING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EFFORT_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repeat_penalty: float
    seed: int
    max_output_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    logit_bias: _containers.ScalarMap[str, float]
    logprobs: bool
    top_logprobs: int
    tool_choice: _struct_pb2.Value
    parallel_tool_calls: bool
    text: TextOptions
    ignore_eos: bool
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    thinking: bool
    thinking_tokens: int
    effort: str
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., repeat_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., logit_bias: _Optional[_Mapping[str, float]] = ..., logprobs: _Optional[bool] = ..., top_logprobs: _Optional[int] = ..., tool_choice: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., parallel_tool_calls: _Optional[bool] = ..., text: _Optional[_Union[TextOptions, _Mapping]] = ..., ignore_eos: _Optional[bool] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., thinking: _Optional[bool] = ..., thinking_tokens: _Optional[int] = ..., effort: _Optional[str] = ...) -> None: ...

class TextOptions(_message.Message):
    __slots__ = ("format",)
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    format: _struct_pb2.Struct
    def __init__(self, format: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters", "strict", "type", "server", "mcp", "search", "file_ids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    MCP_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    FILE_IDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters: _struct_pb2.Struct
    strict: bool
    type: str
    server: bool
    mcp: McpSource
    search: SearchScope
    file_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., strict: _Optional[bool] = ..., type: _Optional[str] = ..., server: _Optional[bool] = ..., mcp: _Optional[_Union[McpSource, _Mapping]] = ..., search: _Optional[_Union[SearchScope, _Mapping]] = ..., file_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class McpSource(_message.Message):
    __slots__ = ("server_label", "tool", "allowed", "read_only", "approval", "unasked")
    SERVER_LABEL_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    UNASKED_FIELD_NUMBER: _ClassVar[int]
    server_label: str
    tool: str
    allowed: _containers.RepeatedScalarFieldContainer[str]
    read_only: bool
    approval: _struct_pb2.Value
    unasked: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, server_label: _Optional[str] = ..., tool: _Optional[str] = ..., allowed: _Optional[_Iterable[str]] = ..., read_only: _Optional[bool] = ..., approval: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., unasked: _Optional[_Iterable[str]] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("epoch", "offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    offset: int
    def __init__(self, epoch: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class ConverseRequest(_message.Message):
    __slots__ = ("open", "command")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    open: Open
    command: Command
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., command: _Optional[_Union[Command, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session", "position", "cancel_on_leave")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CANCEL_ON_LEAVE_FIELD_NUMBER: _ClassVar[int]
    session: str
    position: Position
    cancel_on_leave: bool
    def __init__(self, session: _Optional[str] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., cancel_on_leave: _Optional[bool] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("session", "position", "follow")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    session: str
    position: Position
    follow: bool
    def __init__(self, session: _Optional[str] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., follow: _Optional[bool] = ...) -> None: ...

class ConverseReply(_message.Message):
    __slots__ = ("resumed", "event", "caught_up", "ok", "error")
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    resumed: Resumed
    event: Event
    caught_up: CaughtUp
    ok: Ok
    error: CommandError
    def __init__(self, resumed: _Optional[_Union[Resumed, _Mapping]] = ..., event: _Optional[_Union[Event, _Mapping]] = ..., caught_up: _Optional[_Union[CaughtUp, _Mapping]] = ..., ok: _Optional[_Union[Ok, _Mapping]] = ..., error: _Optional[_Union[CommandError, _Mapping]] = ...) -> None: ...

class Resumed(_message.Message):
    __slots__ = ("mode", "epoch", "from_offset", "top", "at", "state", "reason")
    MODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    mode: str
    epoch: str
    from_offset: int
    top: int
    at: int
    state: State
    reason: str
    def __init__(self, mode: _Optional[str] = ..., epoch: _Optional[str] = ..., from_offset: _Optional[int] = ..., top: _Optional[int] = ..., at: _Optional[int] = ..., state: _Optional[_Union[State, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class CaughtUp(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class CommandError(_message.Message):
    __slots__ = ("id", "status", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: str
    error: Error
    def __init__(self, id: _Optional[str] = ..., status: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("type", "code", "message", "param", "retryable", "retry_after_ms")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    type: str
    code: str
    message: str
    param: str
    retryable: bool
    retry_after_ms: int
    def __init__(self, type: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., retryable: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("limit", "after")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after: str
    def __init__(self, limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("data", "has_more", "last_id")
    DATA_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    data: _containers.RepeatedCompositeFieldContainer[SessionSummary]
    has_more: bool
    last_id: str
    def __init__(self, data: _Optional[_Iterable[_Union[SessionSummary, _Mapping]]] = ..., has_more: _Optional[bool] = ..., last_id: _Optional[str] = ...) -> None: ...

class SessionSummary(_message.Message):
    __slots__ = ("id", "title", "model", "metadata", "open", "created_at", "updated_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    id: str
    title: str
    model: str
    metadata: _struct_pb2.Struct
    open: bool
    created_at: int
    updated_at: int
    def __init__(self, id: _Optional[str] = ..., title: _Optional[str] = ..., model: _Optional[str] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., open: _Optional[bool] = ..., created_at: _Optional[int] = ..., updated_at: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("session", "epoch", "offset", "items", "open", "head", "title", "metadata", "model", "instructions", "tools", "created_at", "queued", "awaiting", "made_by", "reviews", "incomplete", "temperature", "max_output_tokens", "answers", "feedback", "context_policy", "compact_threshold", "compactions", "pinned", "knowledge")
    class MadeByEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class IncompleteEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class AnswersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: EndedResponse
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[EndedResponse, _Mapping]] = ...) -> None: ...
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    AWAITING_FIELD_NUMBER: _ClassVar[int]
    MADE_BY_FIELD_NUMBER: _ClassVar[int]
    REVIEWS_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_POLICY_FIELD_NUMBER: _ClassVar[int]
    COMPACT_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    KNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    session: str
    epoch: str
    offset: int
    items: _containers.RepeatedCompositeFieldContainer[Item]
    open: _containers.RepeatedCompositeFieldContainer[OpenResponse]
    head: str
    title: str
    metadata: _struct_pb2.Struct
    model: str
    instructions: str
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    created_at: int
    queued: _containers.RepeatedCompositeFieldContainer[QueuedResponse]
    awaiting: _containers.RepeatedCompositeFieldContainer[AwaitingTools]
    made_by: _containers.ScalarMap[str, str]
    reviews: _containers.RepeatedCompositeFieldContainer[Review]
    incomplete: _containers.ScalarMap[str, str]
    temperature: float
    max_output_tokens: int
    answers: _containers.MessageMap[str, EndedResponse]
    feedback: _containers.RepeatedCompositeFieldContainer[Feedback]
    context_policy: str
    compact_threshold: int
    compactions: _containers.RepeatedCompositeFieldContainer[Compaction]
    pinned: _containers.RepeatedScalarFieldContainer[str]
    knowledge: SearchScope
    def __init__(self, session: _Optional[str] = ..., epoch: _Optional[str] = ..., offset: _Optional[int] = ..., items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., open: _Optional[_Iterable[_Union[OpenResponse, _Mapping]]] = ..., head: _Optional[str] = ..., title: _Optional[str] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., model: _Optional[str] = ..., instructions: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., created_at: _Optional[int] = ..., queued: _Optional[_Iterable[_Union[QueuedResponse, _Mapping]]] = ..., awaiting: _Optional[_Iterable[_Union[AwaitingTools, _Mapping]]] = ..., made_by: _Optional[_Mapping[str, str]] = ..., reviews: _Optional[_Iterable[_Union[Review, _Mapping]]] = ..., incomplete: _Optional[_Mapping[str, str]] = ..., temperature: _Optional[float] = ..., max_output_tokens: _Optional[int] = ..., answers: _Optional[_Mapping[str, EndedResponse]] = ..., feedback: _Optional[_Iterable[_Union[Feedback, _Mapping]]] = ..., context_policy: _Optional[str] = ..., compact_threshold: _Optional[int] = ..., compactions: _Optional[_Iterable[_Union[Compaction, _Mapping]]] = ..., pinned: _Optional[_Iterable[str]] = ..., knowledge: _Optional[_Union[SearchScope, _Mapping]] = ...) -> None: ...

class Compaction(_message.Message):
    __slots__ = ("summary", "model", "items", "read_item_id", "tokens_before", "tokens_after")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    READ_ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_AFTER_FIELD_NUMBER: _ClassVar[int]
    summary: Item
    model: str
    items: int
    read_item_id: str
    tokens_before: int
    tokens_after: int
    def __init__(self, summary: _Optional[_Union[Item, _Mapping]] = ..., model: _Optional[str] = ..., items: _Optional[int] = ..., read_item_id: _Optional[str] = ..., tokens_before: _Optional[int] = ..., tokens_after: _Optional[int] = ...) -> None: ...

class EndedResponse(_message.Message):
    __slots__ = ("status", "model", "created_at", "completed_at", "usage")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    status: str
    model: str
    created_at: int
    completed_at: int
    usage: Usage
    def __init__(self, status: _Optional[str] = ..., model: _Optional[str] = ..., created_at: _Optional[int] = ..., completed_at: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Feedback(_message.Message):
    __slots__ = ("response_id", "by", "rating", "reason", "at")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    by: str
    rating: str
    reason: str
    at: int
    def __init__(self, response_id: _Optional[str] = ..., by: _Optional[str] = ..., rating: _Optional[str] = ..., reason: _Optional[str] = ..., at: _Optional[int] = ...) -> None: ...

class Review(_message.Message):
    __slots__ = ("review_id", "category", "response_id", "appealed", "outcome")
    REVIEW_ID_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    APPEALED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    review_id: str
    category: str
    response_id: str
    appealed: bool
    outcome: str
    def __init__(self, review_id: _Optional[str] = ..., category: _Optional[str] = ..., response_id: _Optional[str] = ..., appealed: _Optional[bool] = ..., outcome: _Optional[str] = ...) -> None: ...

class OpenResponse(_message.Message):
    __slots__ = ("response_id", "parent_id", "sequence_number", "output")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    parent_id: str
    sequence_number: int
    output: _containers.RepeatedCompositeFieldContainer[Item]
    def __init__(self, response_id: _Optional[str] = ..., parent_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., output: _Optional[_Iterable[_Union[Item, _Mapping]]] = ...) -> None: ...

class QueuedResponse(_message.Message):
    __slots__ = ("response_id", "after", "item")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    after: str
    item: Item
    def __init__(self, response_id: _Optional[str] = ..., after: _Optional[str] = ..., item: _Optional[_Union[Item, _Mapping]] = ...) -> None: ...

class AwaitingTools(_message.Message):
    __slots__ = ("response_id", "missing", "approval")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    missing: _containers.RepeatedScalarFieldContainer[str]
    approval: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, response_id: _Optional[str] = ..., missing: _Optional[_Iterable[str]] = ..., approval: _Optional[_Iterable[str]] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("type", "id", "parent_id", "status", "created_at", "role", "content", "call_id", "name", "arguments", "output", "is_error", "server", "mcp", "files")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    MCP_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    type: str
    id: str
    parent_id: str
    status: str
    created_at: int
    role: str
    content: _containers.RepeatedCompositeFieldContainer[ContentPart]
    call_id: str
    name: str
    arguments: str
    output: str
    is_error: bool
    server: bool
    mcp: McpSource
    files: _containers.RepeatedCompositeFieldContainer[RunFile]
    def __init__(self, type: _Optional[str] = ..., id: _Optional[str] = ..., parent_id: _Optional[str] = ..., status: _Optional[str] = ..., created_at: _Optional[int] = ..., role: _Optional[str] = ..., content: _Optional[_Iterable[_Union[ContentPart, _Mapping]]] = ..., call_id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ..., output: _Optional[str] = ..., is_error: _Optional[bool] = ..., server: _Optional[bool] = ..., mcp: _Optional[_Union[McpSource, _Mapping]] = ..., files: _Optional[_Iterable[_Union[RunFile, _Mapping]]] = ...) -> None: ...

class RunFile(_message.Message):
    __slots__ = ("file_id", "path", "size", "source")
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    path: str
    size: int
    source: str
    def __init__(self, file_id: _Optional[str] = ..., path: _Optional[str] = ..., size: _Optional[int] = ..., source: _Optional[str] = ...) -> None: ...

class ContentPart(_message.Message):
    __slots__ = ("type", "text", "refusal", "annotations", "file_id", "filename", "file_data", "media_type", "size", "reasoning", "number", "start", "end", "score", "image_url", "detail", "sha256", "width", "height")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    FILE_DATA_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_URL_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    type: str
    text: str
    refusal: str
    annotations: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    file_id: str
    filename: str
    file_data: str
    media_type: str
    size: int
    reasoning: str
    number: int
    start: int
    end: int
    score: float
    image_url: str
    detail: str
    sha256: str
    width: int
    height: int
    def __init__(self, type: _Optional[str] = ..., text: _Optional[str] = ..., refusal: _Optional[str] = ..., annotations: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ..., file_id: _Optional[str] = ..., filename: _Optional[str] = ..., file_data: _Optional[str] = ..., media_type: _Optional[str] = ..., size: _Optional[int] = ..., reasoning: _Optional[str] = ..., number: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., score: _Optional[float] = ..., image_url: _Optional[str] = ..., detail: _Optional[str] = ..., sha256: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("id", "object", "created_at", "status", "model", "parent_id", "output", "usage", "incomplete_details", "error", "metadata", "request", "service", "continued_by")
    ID_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_DETAILS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    CONTINUED_BY_FIELD_NUMBER: _ClassVar[int]
    id: str
    object: str
    created_at: int
    status: str
    model: str
    parent_id: str
    output: _containers.RepeatedCompositeFieldContainer[Item]
    usage: Usage
    incomplete_details: IncompleteDetails
    error: ResponseError
    metadata: _struct_pb2.Struct
    request: _struct_pb2.Struct
    service: _struct_pb2.Struct
    continued_by: str
    def __init__(self, id: _Optional[str] = ..., object: _Optional[str] = ..., created_at: _Optional[int] = ..., status: _Optional[str] = ..., model: _Optional[str] = ..., parent_id: _Optional[str] = ..., output: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., incomplete_details: _Optional[_Union[IncompleteDetails, _Mapping]] = ..., error: _Optional[_Union[ResponseError, _Mapping]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., request: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., service: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., continued_by: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details", "total_tokens", "cost")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_DETAILS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_DETAILS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    cost: Cost
    def __init__(self, input_tokens: _Optional[int] = ..., input_tokens_details: _Optional[_Union[InputTokensDetails, _Mapping]] = ..., output_tokens: _Optional[int] = ..., output_tokens_details: _Optional[_Union[OutputTokensDetails, _Mapping]] = ..., total_tokens: _Optional[int] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ...) -> None: ...

class Cost(_message.Message):
    __slots__ = ("amount", "currency", "price_version")
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    PRICE_VERSION_FIELD_NUMBER: _ClassVar[int]
    amount: str
    currency: str
    price_version: str
    def __init__(self, amount: _Optional[str] = ..., currency: _Optional[str] = ..., price_version: _Optional[str] = ...) -> None: ...

class InputTokensDetails(_message.Message):
    __slots__ = ("cached_tokens",)
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    def __init__(self, cached_tokens: _Optional[int] = ...) -> None: ...

class OutputTokensDetails(_message.Message):
    __slots__ = ("reasoning_tokens", "cached_tokens")
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    reasoning_tokens: int
    cached_tokens: int
    def __init__(self, reasoning_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class IncompleteDetails(_message.Message):
    __slots__ = ("reason", "response_id")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    reason: str
    response_id: str
    def __init__(self, reason: _Optional[str] = ..., response_id: _Optional[str] = ...) -> None: ...

class ResponseError(_message.Message):
    __slots__ = ("code", "message", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retry_after_ms: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("model", "instructions", "tools", "metadata", "title", "created_at", "temperature", "max_output_tokens", "title_made", "context_policy", "compact_threshold", "memories", "knowledge")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TITLE_MADE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_POLICY_FIELD_NUMBER: _ClassVar[int]
    COMPACT_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    KNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    instructions: str
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    metadata: _struct_pb2.Struct
    title: str
    created_at: int
    temperature: float
    max_output_tokens: int
    title_made: bool
    context_policy: str
    compact_threshold: int
    memories: _containers.RepeatedScalarFieldContainer[str]
    knowledge: SearchScope
    def __init__(self, model: _Optional[str] = ..., instructions: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., title: _Optional[str] = ..., created_at: _Optional[int] = ..., temperature: _Optional[float] = ..., max_output_tokens: _Optional[int] = ..., title_made: _Optional[bool] = ..., context_policy: _Optional[str] = ..., compact_threshold: _Optional[int] = ..., memories: _Optional[_Iterable[str]] = ..., knowledge: _Optional[_Union[SearchScope, _Mapping]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("session", "epoch", "offset", "first_offset", "at", "session_created", "session_updated", "session_deleted", "session_migrated", "item_created", "response_queued", "response_created", "response_in_progress", "context_fitted", "response_output_item_added", "response_output_item_done", "response_content_part_added", "response_content_part_done", "response_output_text_delta", "response_output_text_done", "response_refusal_delta", "response_refusal_done", "response_function_call_arguments_delta", "response_function_call_arguments_done", "response_completed", "response_incomplete", "response_failed", "content_retracted", "review_appealed", "review_decided", "feedback_updated", "context_compacted", "context_compaction_undone", "context_compaction_failed", "item_pinned", "tool_call_started", "tool_call_approval_requested", "tool_call_approval_decided", "program_called", "program_returned", "tool_call_progress", "response_reasoning_text_delta", "response_reasoning_text_done")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    SESSION_CREATED_FIELD_NUMBER: _ClassVar[int]
    SESSION_UPDATED_FIELD_NUMBER: _ClassVar[int]
    SESSION_DELETED_FIELD_NUMBER: _ClassVar[int]
    SESSION_MIGRATED_FIELD_NUMBER: _ClassVar[int]
    ITEM_CREATED_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_QUEUED_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_CREATED_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FITTED_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_OUTPUT_ITEM_ADDED_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_OUTPUT_ITEM_DONE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_CONTENT_PART_ADDED_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_CONTENT_PART_DONE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_OUTPUT_TEXT_DELTA_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_OUTPUT_TEXT_DONE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_REFUSAL_DELTA_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_REFUSAL_DONE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FUNCTION_CALL_ARGUMENTS_DELTA_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FUNCTION_CALL_ARGUMENTS_DONE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FAILED_FIELD_NUMBER: _ClassVar[int]
    CONTENT_RETRACTED_FIELD_NUMBER: _ClassVar[int]
    REVIEW_APPEALED_FIELD_NUMBER: _ClassVar[int]
    REVIEW_DECIDED_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_UPDATED_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_COMPACTED_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_COMPACTION_UNDONE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_COMPACTION_FAILED_FIELD_NUMBER: _ClassVar[int]
    ITEM_PINNED_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_STARTED_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_APPROVAL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_APPROVAL_DECIDED_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_CALLED_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_RETURNED_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_REASONING_TEXT_DELTA_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_REASONING_TEXT_DONE_FIELD_NUMBER: _ClassVar[int]
    session: str
    epoch: str
    offset: int
    first_offset: int
    at: int
    session_created: SessionChanged
    session_updated: SessionChanged
    session_deleted: SessionDeleted
    session_migrated: SessionMigrated
    item_created: ItemCreated
    response_queued: ResponseQueued
    response_created: ResponseStanding
    response_in_progress: ResponseInProgress
    context_fitted: ContextFitted
    response_output_item_added: OutputItem
    response_output_item_done: OutputItem
    response_content_part_added: Part
    response_content_part_done: Part
    response_output_text_delta: TextDelta
    response_output_text_done: TextDone
    response_refusal_delta: RefusalDelta
    response_refusal_done: RefusalDone
    response_function_call_arguments_delta: ArgumentsDelta
    response_function_call_arguments_done: ArgumentsDone
    response_completed: ResponseStanding
    response_incomplete: ResponseStanding
    response_failed: ResponseStanding
    content_retracted: ContentRetracted
    review_appealed: ReviewAppealed
    review_decided: ReviewDecided
    feedback_updated: FeedbackUpdated
    context_compacted: ContextCompacted
    context_compaction_undone: CompactionUndone
    context_compaction_failed: CompactionFailed
    item_pinned: ItemPinned
    tool_call_started: ToolCallStarted
    tool_call_approval_requested: ToolApprovalRequested
    tool_call_approval_decided: ToolApprovalDecided
    program_called: ProgramCalled
    program_returned: ProgramReturned
    tool_call_progress: ToolCallProgress
    response_reasoning_text_delta: ReasoningDelta
    response_reasoning_text_done: TextDone
    def __init__(self, session: _Optional[str] = ..., epoch: _Optional[str] = ..., offset: _Optional[int] = ..., first_offset: _Optional[int] = ..., at: _Optional[int] = ..., session_created: _Optional[_Union[SessionChanged, _Mapping]] = ..., session_updated: _Optional[_Union[SessionChanged, _Mapping]] = ..., session_deleted: _Optional[_Union[SessionDeleted, _Mapping]] = ..., session_migrated: _Optional[_Union[SessionMigrated, _Mapping]] = ..., item_created: _Optional[_Union[ItemCreated, _Mapping]] = ..., response_queued: _Optional[_Union[ResponseQueued, _Mapping]] = ..., response_created: _Optional[_Union[ResponseStanding, _Mapping]] = ..., response_in_progress: _Optional[_Union[ResponseInProgress, _Mapping]] = ..., context_fitted: _Optional[_Union[ContextFitted, _Mapping]] = ..., response_output_item_added: _Optional[_Union[OutputItem, _Mapping]] = ..., response_output_item_done: _Optional[_Union[OutputItem, _Mapping]] = ..., response_content_part_added: _Optional[_Union[Part, _Mapping]] = ..., response_content_part_done: _Optional[_Union[Part, _Mapping]] = ..., response_output_text_delta: _Optional[_Union[TextDelta, _Mapping]] = ..., response_output_text_done: _Optional[_Union[TextDone, _Mapping]] = ..., response_refusal_delta: _Optional[_Union[RefusalDelta, _Mapping]] = ..., response_refusal_done: _Optional[_Union[RefusalDone, _Mapping]] = ..., response_function_call_arguments_delta: _Optional[_Union[ArgumentsDelta, _Mapping]] = ..., response_function_call_arguments_done: _Optional[_Union[ArgumentsDone, _Mapping]] = ..., response_completed: _Optional[_Union[ResponseStanding, _Mapping]] = ..., response_incomplete: _Optional[_Union[ResponseStanding, _Mapping]] = ..., response_failed: _Optional[_Union[ResponseStanding, _Mapping]] = ..., content_retracted: _Optional[_Union[ContentRetracted, _Mapping]] = ..., review_appealed: _Optional[_Union[ReviewAppealed, _Mapping]] = ..., review_decided: _Optional[_Union[ReviewDecided, _Mapping]] = ..., feedback_updated: _Optional[_Union[FeedbackUpdated, _Mapping]] = ..., context_compacted: _Optional[_Union[ContextCompacted, _Mapping]] = ..., context_compaction_undone: _Optional[_Union[CompactionUndone, _Mapping]] = ..., context_compaction_failed: _Optional[_Union[CompactionFailed, _Mapping]] = ..., item_pinned: _Optional[_Union[ItemPinned, _Mapping]] = ..., tool_call_started: _Optional[_Union[ToolCallStarted, _Mapping]] = ..., tool_call_approval_requested: _Optional[_Union[ToolApprovalRequested, _Mapping]] = ..., tool_call_approval_decided: _Optional[_Union[ToolApprovalDecided, _Mapping]] = ..., program_called: _Optional[_Union[ProgramCalled, _Mapping]] = ..., program_returned: _Optional[_Union[ProgramReturned, _Mapping]] = ..., tool_call_progress: _Optional[_Union[ToolCallProgress, _Mapping]] = ..., response_reasoning_text_delta: _Optional[_Union[ReasoningDelta, _Mapping]] = ..., response_reasoning_text_done: _Optional[_Union[TextDone, _Mapping]] = ...) -> None: ...

class SessionChanged(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: SessionInfo
    def __init__(self, info: _Optional[_Union[SessionInfo, _Mapping]] = ...) -> None: ...

class SessionDeleted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionMigrated(_message.Message):
    __slots__ = ("replica", "cause")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    replica: str
    cause: str
    def __init__(self, replica: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

class ItemCreated(_message.Message):
    __slots__ = ("item",)
    ITEM_FIELD_NUMBER: _ClassVar[int]
    item: Item
    def __init__(self, item: _Optional[_Union[Item, _Mapping]] = ...) -> None: ...

class ResponseQueued(_message.Message):
    __slots__ = ("response_id", "sequence_number", "response", "item", "steers")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    STEERS_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    response: Response
    item: Item
    steers: bool
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., response: _Optional[_Union[Response, _Mapping]] = ..., item: _Optional[_Union[Item, _Mapping]] = ..., steers: _Optional[bool] = ...) -> None: ...

class ResponseStanding(_message.Message):
    __slots__ = ("response_id", "sequence_number", "response")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    response: Response
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., response: _Optional[_Union[Response, _Mapping]] = ...) -> None: ...

class ResponseInProgress(_message.Message):
    __slots__ = ("response_id", "sequence_number")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ...) -> None: ...

class ContextFitted(_message.Message):
    __slots__ = ("response_id", "dropped")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    dropped: int
    def __init__(self, response_id: _Optional[str] = ..., dropped: _Optional[int] = ...) -> None: ...

class ContextCompacted(_message.Message):
    __slots__ = ("summary", "model", "items", "first_item_id", "last_item_id", "read_item_id", "tokens_before", "tokens_after", "usage", "cause")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    READ_ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_AFTER_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    summary: Item
    model: str
    items: int
    first_item_id: str
    last_item_id: str
    read_item_id: str
    tokens_before: int
    tokens_after: int
    usage: Usage
    cause: str
    def __init__(self, summary: _Optional[_Union[Item, _Mapping]] = ..., model: _Optional[str] = ..., items: _Optional[int] = ..., first_item_id: _Optional[str] = ..., last_item_id: _Optional[str] = ..., read_item_id: _Optional[str] = ..., tokens_before: _Optional[int] = ..., tokens_after: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., cause: _Optional[str] = ...) -> None: ...

class CompactionUndone(_message.Message):
    __slots__ = ("compaction_id",)
    COMPACTION_ID_FIELD_NUMBER: _ClassVar[int]
    compaction_id: str
    def __init__(self, compaction_id: _Optional[str] = ...) -> None: ...

class CompactionFailed(_message.Message):
    __slots__ = ("compaction_id", "error")
    COMPACTION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    compaction_id: str
    error: Error
    def __init__(self, compaction_id: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class ItemPinned(_message.Message):
    __slots__ = ("item_id", "pinned")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    pinned: bool
    def __init__(self, item_id: _Optional[str] = ..., pinned: _Optional[bool] = ...) -> None: ...

class ToolCallStarted(_message.Message):
    __slots__ = ("response_id", "call_id", "name", "execution_id")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    call_id: str
    name: str
    execution_id: str
    def __init__(self, response_id: _Optional[str] = ..., call_id: _Optional[str] = ..., name: _Optional[str] = ..., execution_id: _Optional[str] = ...) -> None: ...

class ToolApprovalRequested(_message.Message):
    __slots__ = ("response_id", "call_id", "name")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    call_id: str
    name: str
    def __init__(self, response_id: _Optional[str] = ..., call_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ToolApprovalDecided(_message.Message):
    __slots__ = ("response_id", "call_id", "approved", "by")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    APPROVED_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    call_id: str
    approved: bool
    by: str
    def __init__(self, response_id: _Optional[str] = ..., call_id: _Optional[str] = ..., approved: _Optional[bool] = ..., by: _Optional[str] = ...) -> None: ...

class ProgramCalled(_message.Message):
    __slots__ = ("response_id", "call_id", "program_call_id", "item_id", "name", "arguments")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    call_id: str
    program_call_id: str
    item_id: str
    name: str
    arguments: str
    def __init__(self, response_id: _Optional[str] = ..., call_id: _Optional[str] = ..., program_call_id: _Optional[str] = ..., item_id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class ProgramReturned(_message.Message):
    __slots__ = ("response_id", "call_id", "is_error")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    call_id: str
    is_error: bool
    def __init__(self, response_id: _Optional[str] = ..., call_id: _Optional[str] = ..., is_error: _Optional[bool] = ...) -> None: ...

class ToolCallProgress(_message.Message):
    __slots__ = ("response_id", "call_id", "progress", "total", "message")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    call_id: str
    progress: float
    total: float
    message: str
    def __init__(self, response_id: _Optional[str] = ..., call_id: _Optional[str] = ..., progress: _Optional[float] = ..., total: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...

class OutputItem(_message.Message):
    __slots__ = ("response_id", "sequence_number", "output_index", "item")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    output_index: int
    item: Item
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., output_index: _Optional[int] = ..., item: _Optional[_Union[Item, _Mapping]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("response_id", "sequence_number", "item_id", "output_index", "content_index", "part")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: ContentPart
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., content_index: _Optional[int] = ..., part: _Optional[_Union[ContentPart, _Mapping]] = ...) -> None: ...

class TextDelta(_message.Message):
    __slots__ = ("response_id", "sequence_number", "item_id", "output_index", "content_index", "delta", "logprobs", "usage")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    usage: DeltaUsage
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., content_index: _Optional[int] = ..., delta: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ..., usage: _Optional[_Union[DeltaUsage, _Mapping]] = ...) -> None: ...

class DeltaUsage(_message.Message):
    __slots__ = ("input_tokens", "cached_tokens", "output_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class TextDone(_message.Message):
    __slots__ = ("response_id", "sequence_number", "item_id", "output_index", "content_index", "text")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    text: str
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., content_index: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class RefusalDelta(_message.Message):
    __slots__ = ("response_id", "sequence_number", "item_id", "output_index", "content_index", "delta", "usage")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    usage: DeltaUsage
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., content_index: _Optional[int] = ..., delta: _Optional[str] = ..., usage: _Optional[_Union[DeltaUsage, _Mapping]] = ...) -> None: ...

class ReasoningDelta(_message.Message):
    __slots__ = ("response_id", "sequence_number", "item_id", "output_index", "content_index", "delta", "usage")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    usage: DeltaUsage
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., content_index: _Optional[int] = ..., delta: _Optional[str] = ..., usage: _Optional[_Union[DeltaUsage, _Mapping]] = ...) -> None: ...

class RefusalDone(_message.Message):
    __slots__ = ("response_id", "sequence_number", "item_id", "output_index", "content_index", "refusal")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    refusal: str
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., content_index: _Optional[int] = ..., refusal: _Optional[str] = ...) -> None: ...

class ArgumentsDelta(_message.Message):
    __slots__ = ("response_id", "sequence_number", "item_id", "output_index", "delta", "usage")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    item_id: str
    output_index: int
    delta: str
    usage: DeltaUsage
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., delta: _Optional[str] = ..., usage: _Optional[_Union[DeltaUsage, _Mapping]] = ...) -> None: ...

class ArgumentsDone(_message.Message):
    __slots__ = ("response_id", "sequence_number", "item_id", "output_index", "name", "arguments")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    sequence_number: int
    item_id: str
    output_index: int
    name: str
    arguments: str
    def __init__(self, response_id: _Optional[str] = ..., sequence_number: _Optional[int] = ..., item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class ContentRetracted(_message.Message):
    __slots__ = ("response_id", "item_id", "content_index", "start", "end", "replacement", "category")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    REPLACEMENT_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    item_id: str
    content_index: int
    start: int
    end: int
    replacement: str
    category: str
    def __init__(self, response_id: _Optional[str] = ..., item_id: _Optional[str] = ..., content_index: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., replacement: _Optional[str] = ..., category: _Optional[str] = ...) -> None: ...

class ReviewAppealed(_message.Message):
    __slots__ = ("review_id", "category", "response_id")
    REVIEW_ID_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    review_id: str
    category: str
    response_id: str
    def __init__(self, review_id: _Optional[str] = ..., category: _Optional[str] = ..., response_id: _Optional[str] = ...) -> None: ...

class ReviewDecided(_message.Message):
    __slots__ = ("review_id", "category", "outcome", "decision", "response_id")
    REVIEW_ID_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    review_id: str
    category: str
    outcome: str
    decision: int
    response_id: str
    def __init__(self, review_id: _Optional[str] = ..., category: _Optional[str] = ..., outcome: _Optional[str] = ..., decision: _Optional[int] = ..., response_id: _Optional[str] = ...) -> None: ...

class FeedbackUpdated(_message.Message):
    __slots__ = ("response_id", "by", "rating", "reason")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    by: str
    rating: str
    reason: str
    def __init__(self, response_id: _Optional[str] = ..., by: _Optional[str] = ..., rating: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
