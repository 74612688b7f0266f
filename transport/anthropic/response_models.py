"""What Anthropic's doors answer, as the OpenAPI document describes it. Shapes after Anthropic's API reference."""

from __future__ import annotations

from typing import Any, Final, Literal

from transport.openai.response_models import STREAM, Answers, ResponseModel


class MessageErrorDetail(ResponseModel):
    """An error. Anthropic's clients read `type` and `message`; `code` and `param` are additions of this server, which
    the error of a wrong key does not have."""

    type: str
    message: str
    code: str | None = None
    param: str | None = None


class MessageError(ResponseModel):
    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str | None


class ThinkingBlock(ResponseModel):
    type: Literal["thinking"]
    thinking: str
    signature: str


class TextBlock(ResponseModel):
    type: Literal["text"]
    text: str


class ToolUseBlock(ResponseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(ResponseModel):
    """Usage in tokens. Tokens read from the cache are no part of `input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageObject(ResponseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ThinkingBlock | TextBlock | ToolUseBlock]
    stop_reason: str | None
    stop_sequence: None
    usage: MessageUsage


class TokenCountObject(ResponseModel):
    input_tokens: int


_ERROR: Final[dict[str, Any]] = {"model": MessageError, "description": "Anthropic's error object"}
_ERRORS: Final[Answers] = {"4XX": _ERROR, "5XX": _ERROR, 422: _ERROR}
MESSAGE: Final[Answers] = {**_ERRORS, 200: {"model": MessageObject, "description": "Done", "content": STREAM}}
TOKEN_COUNT: Final[Answers] = {**_ERRORS, 200: {"model": TokenCountObject, "description": "Done"}}
