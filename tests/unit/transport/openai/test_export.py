"""A session as Markdown and as a document."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sessions.model.types import CallId, FunctionCall, FunctionCallOutput, InputImage, InputText, ItemId, UnixMs
from tests.support.doors.transport import message
from transport.openai import export


def state() -> dict[str, Any]:
    asked = replace(message("what is 1+1?", "a"), role="user")
    call = FunctionCall(
        id=ItemId("b"),
        parent_id=ItemId("a"),
        call_id=CallId("c"),
        name="add\nnow",
        arguments="```",
        status="completed",
        created_at=UnixMs(1),
    )
    output = FunctionCallOutput(
        id=ItemId("d"), parent_id=ItemId("b"), call_id=CallId("c"), output="2", is_error=True, created_at=UnixMs(1)
    )
    return {"title": "Sums\nand more", "instructions": "be\nbrief", "items": [asked, call, output], "head": "d"}


def test_markdown_says_where_a_message_had_images() -> None:
    seen = InputImage(image_url="data:image/png;base64,AAAA", sha256="00", width=640, height=480)
    asked = replace(message("", "a"), role="user", content=(InputText(text="Which cat?"), seen, InputImage()))
    text = export.markdown({**state(), "items": [asked], "head": "a"})
    assert text.endswith("## User\n\nWhich cat?\n\n*[Image of 640 × 480 pixels]*\n"), "a retracted one is not there"


def test_markdown_has_the_branch_in_order_and_nothing_breaks_out_of_it() -> None:
    text = export.markdown(state())
    assert text.startswith("# Sums and more\n\n> be\n> brief\n")
    assert "## User\n\nwhat is 1+1?" in text
    assert "## Call of `add now`\n\n````json\n```\n````" in text
    assert "## Output (failed)\n\n```\n2\n```" in text
