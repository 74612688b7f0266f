"""What the page at /docs says of answers that no model describes: errors, and streams."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    type: str
    code: str
    message: str
    param: str | None
    retryable: bool
    retry_after_ms: int | None = None


class Error(BaseModel):
    error: ErrorDetail


_ERROR: Final[dict[str, Any]] = {"model": Error}
ERRORS: Final[dict[int | str, dict[str, Any]]] = {"4XX": _ERROR, "5XX": _ERROR, 422: _ERROR}
STREAM: Final[dict[str, Any]] = {"text/event-stream": {"schema": {"type": "string"}}}
STREAMED_OR_WHOLE: Final[dict[int | str, dict[str, Any]]] = {
    **ERRORS,
    200: {"content": {"application/json": {"schema": {"type": "object"}}, **STREAM}},
}
STREAMED: Final[dict[int | str, dict[str, Any]]] = {**ERRORS, 200: {"content": STREAM}}
