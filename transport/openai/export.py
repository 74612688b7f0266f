"""A session as a document: JSON with everything in it, or Markdown of the present branch for people. Pure."""

from __future__ import annotations

import re
from typing import Any

from sessions.model.types import FunctionCall, FunctionCallOutput, Item, Json, Message
from transport.openai.conversations import branch_items

_NAMES = {"user": "User", "assistant": "Assistant", "system": "System", "developer": "Developer", "tool": "Tool"}


def markdown(state: dict[str, Json]) -> str:
    """Returns the present branch as Markdown for people to read, without retracted text."""
    lines = [f"# {_one_line(state['title'] or 'Conversation')}", ""]
    if state["instructions"]:
        lines += [*(f"> {line}".rstrip() for line in state["instructions"].splitlines()), ""]
    for item in branch_items(state["items"], state["head"]):
        lines += [*_item(item), ""]
    return "\n".join(lines)


def _item(item: Item) -> list[str]:
    match item:
        case Message():
            refusals = [part.refusal for part in item.content if hasattr(part, "refusal")]
            images = [f"[Image of {image.width} × {image.height} pixels]" for image in item.images]
            aside = [line for text in (*images, *refusals) for line in ("", f"*{text}*")]
            return [f"## {_NAMES[item.role]}", "", item.sent_text, *aside]
        case FunctionCall():
            return [f"## Call of `{_one_line(item.name)}`", "", *_fenced(item.arguments, "json")]
        case FunctionCallOutput():
            return ["## Output" + (" (failed)" if item.is_error else ""), "", *_fenced(item.output)]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _fenced(text: str, kind: str = "") -> list[str]:
    """Returns the lines of a code block whose fence is longer than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + kind, text, fence]


def document(session: str, epoch: str, offset: int, state: dict[str, Json]) -> dict[str, Any]:
    """Returns the export of a whole session as JSON, all branches included."""
    return {"object": "session.export", "id": session, "epoch": epoch, "offset": offset, "state": state}
