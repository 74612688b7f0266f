"""What MCP tools answer, as models read it."""

from __future__ import annotations

from mcp.types import CallToolResult, ImageContent, TextContent

from inference.tools.mcp.results import result_of
from inference.tools.secrets import SentSecrets


def test_texts_are_joined_and_what_is_none_is_named() -> None:
    image = ImageContent(type="image", data="AAAA", mime_type="image/png")
    answer = CallToolResult(content=[TextContent(type="text", text="one"), image])
    assert result_of(answer, 100, str).output == "one\n[image, 3 bytes, not shown]"
    assert result_of(CallToolResult(content=[], structured_content={"a": 1}), 100, str).output.endswith('{"a":1}}')


def test_errors_and_bounds() -> None:
    long = CallToolResult(content=[TextContent(type="text", text="é" * 100)], is_error=True)
    result = result_of(long, 65, str)
    assert result.outcome == "failed" and result.output == "é" * 32 + "\n[cut off at 65 bytes]"
    assert result_of(CallToolResult(content=[TextContent(type="text", text="a\0b")]), 64, str).output == "a\ufffdb"


def test_secrets_are_taken_out_before_the_bound_cuts_them() -> None:
    sent = SentSecrets()
    sent.add(("secret word",))
    answer = CallToolResult(content=[TextContent(type="text", text="x" * 60 + "secret word")])
    assert result_of(answer, 68, sent.taken_out).output == "x" * 60 + "[removed\n[cut off at 68 bytes]"
    structured = CallToolResult(content=[], structured_content={"a": "secret word"})
    assert "secret" not in result_of(structured, 100, sent.taken_out).output
