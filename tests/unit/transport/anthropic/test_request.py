"""How messages of Anthropic's shape become units."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.types import CallId, InputFile, InputImage, InputText
from transport.anthropic.request import MessageParam, units_of

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
DOCUMENT = {"type": "document", "title": "a.pdf", "source": {"type": "base64", "data": "AAAA"}}
NOTE = {"type": "document", "source": {"type": "text", "data": "A note."}}
TEXT = {"type": "text", "text": "Found:"}
CALLS: list[dict[str, Any]] = [
    {"type": "tool_use", "id": call_id, "name": "read", "input": {}} for call_id in ("c1", "c2")
]


def params(*messages: tuple[str, Any]) -> list[MessageParam]:
    return [MessageParam.model_validate({"role": role, "content": content}) for role, content in messages]


def result(call_id: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": list(parts)}


def test_what_tool_results_show_stands_in_one_message_behind_them() -> None:
    results = [result("c1", TEXT, IMAGE, NOTE), result("c2", DOCUMENT), {"type": "text", "text": "Compare."}]
    messages = params(("user", "Read."), ("assistant", CALLS), ("user", results))
    *_, one, two, shown = (item for unit in units_of(messages, images=True) for item in unit.items)
    assert (one, two) == (
        cm.NewOutput(call_id=CallId("c1"), output="Found:\nA note."),
        cm.NewOutput(call_id=CallId("c2"), output=""),
    )
    assert isinstance(shown, cm.NewMessage) and isinstance(shown.content, tuple)
    image, document, text = shown.content
    assert isinstance(image, InputImage) and isinstance(document, InputFile) and text == InputText(text="Compare.")


@pytest.mark.parametrize(
    ("role", "content", "param"),
    [
        ("system", [TEXT, IMAGE], "messages[1].content[1].type"),
        ("assistant", [IMAGE], "messages[1].content[0].type"),
        ("assistant", [TEXT, DOCUMENT], "messages[1].content[1].type"),
    ],
)
def test_images_and_documents_are_refused_outside_a_users_message(role: str, content: Any, param: str) -> None:
    with pytest.raises(BadInput) as caught:
        units_of(params(("user", "Read."), (role, content)), images=True)
    assert caught.value.param == param
