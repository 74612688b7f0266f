"""Turns what an MCP tool answers into the text that a model reads, no longer than the tool may answer. Pure."""

from __future__ import annotations

from collections.abc import Callable

from mcp.types import AudioContent, CallToolResult, EmbeddedResource, ImageContent, ResourceLink, TextContent
from mcp.types import TextResourceContents as TextResource

from sessions.server_tools import ToolResult


def result_of(answer: CallToolResult, bytes_max: int, taken_out: Callable[[str], str]) -> ToolResult:
    """Returns an answer's texts, from which `taken_out` removes our secrets; content of other kinds is only named. If
    there is no text, the answer's structured content is returned."""
    parts = [_text(block) for block in answer.content]
    text = "\n".join(part for part in parts if part)
    if not text and answer.structured_content is not None:
        text = CallToolResult(content=[], structured_content=answer.structured_content).model_dump_json(
            include={"structured_content"}
        )
    encoded = taken_out(text).replace("\0", "\ufffd").encode(errors="replace")
    output = encoded.decode()
    if len(encoded) > bytes_max:
        output = encoded[:bytes_max].decode(errors="ignore") + f"\n[cut off at {bytes_max} bytes]"
    return ToolResult(outcome="failed" if answer.is_error else "done", output=output)


def _text(part: object) -> str:
    match part:
        case TextContent():
            return part.text
        case ImageContent() | AudioContent():
            return f"[{part.type}, {len(part.data) * 3 // 4} bytes, not shown]"
        case ResourceLink():
            return f"[resource {part.uri}]"
        case EmbeddedResource():
            inner = part.resource
            return inner.text if isinstance(inner, TextResource) else f"[resource {inner.uri}, not shown]"
        case _:
            return "[content of an unknown kind]"
