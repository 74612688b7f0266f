"""Compaction items: what they name, and where a history goes on that has one in it."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.errors import BadInput
from sessions.model.types import InputText, ItemId, Message, OutputText, SessionId, UnixMs
from transport.openai.compaction import behind_compaction, compaction_item, place_of
from transport.openai.request_models import InputItem

NAME, SESSION = ItemId("cmp_abc"), SessionId("s-1")


def message(name: str, parent: str | None, text: str, role: Any = "user") -> Message:
    part = OutputText(text=text) if role == "assistant" else InputText(text=text)
    return Message(
        id=ItemId(name),
        parent_id=None if parent is None else ItemId(parent),
        role=role,
        content=(part,),
        status="completed",
        created_at=UnixMs(0),
    )


STATE: dict[str, Any] = {
    "items": [
        message("a", None, "one"),
        message("b", "a", "two", "assistant"),
        message("c", "b", "three"),
        message("d", "c", "four", "assistant"),
    ],
    "compactions": [{"summary": message(NAME, None, "short"), "read_item_id": ItemId("b")}],
}


def given(*texts: str) -> list[InputItem]:
    items = [InputItem(**compaction_item(SESSION, NAME))]
    roles: list[Any] = ["user", "assistant"]
    return items + [InputItem(role=roles[index % 2], content=text) for index, text in enumerate(texts)]


@pytest.mark.parametrize("content", [None, "", "%%%", "Y21w", "w7w=", compaction_item(SESSION, ItemId("x"))])
def test_what_is_no_item_of_ours_is_refused(content: Any) -> None:
    content = content["encrypted_content"] if isinstance(content, dict) else content
    with pytest.raises(BadInput) as refused:
        place_of(InputItem(type="compaction", encrypted_content=content), 3)
    assert refused.value.param == "input[3].encrypted_content"


@pytest.mark.parametrize(
    ("texts", "leaf", "rest"),
    [((), "b", 0), (("three", "four", "five"), "d", 1), (("three", "another"), "c", 1), (("else",), "b", 1)],
)
def test_what_stands_already_is_not_sent_again(texts: tuple[str, ...], leaf: str, rest: int) -> None:
    resolved = behind_compaction(given(*texts), 0, SESSION, NAME, STATE)
    assert (resolved.session, resolved.leaf) == (SESSION, leaf)
    assert resolved.items is not None and len(resolved.items) == rest
