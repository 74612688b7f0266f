"""What a conversation is made of, as a reader holds it: items and responses, and how places move when a text changes.

Plain data with typed reading. Only the view (``_view``) writes. Positions in a text count code points, as Python
strings do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._values import text_of, text_or_none

TERMINAL = frozenset({"completed", "incomplete", "failed", "ended"})


class Item:
    """One item of the tree. Read it; only the view writes. ``data`` is the item as the protocol has it."""

    __slots__ = ("data",)

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    @property
    def id(self) -> str:
        return str(self.data["id"])

    @property
    def parent_id(self) -> str | None:
        return text_or_none(self.data.get("parent_id"))

    @property
    def type(self) -> str:
        return str(self.data.get("type", "message"))

    @property
    def role(self) -> str | None:
        return text_or_none(self.data.get("role"))

    @property
    def status(self) -> str:
        return str(self.data.get("status", "completed"))

    @property
    def response_id(self) -> str | None:
        """The response that made this item; None for a message of a person or the output of a tool."""
        return text_or_none(self.data.get("response_id"))

    @property
    def content(self) -> list[dict[str, Any]]:
        content = self.data.get("content")
        if isinstance(content, str):
            return [{"type": "input_text", "text": content}]
        return content if isinstance(content, list) else []

    @property
    def text(self) -> str:
        """The readable text of a message: its text and refusal parts, one after another, without passages."""
        return "".join(part_text(part) for part in self.content if part.get("type") != "input_passage")

    @property
    def passages(self) -> list[dict[str, Any]]:
        """The passages of documents that the server has found for a message; answers cite them by their ``number``."""
        return [part for part in self.content if part.get("type") == "input_passage" and part.get("text")]

    @property
    def reasoning(self) -> str:
        """The model's thoughts before the text, which are no part of it."""
        return "".join(text_of(part.get("reasoning")) for part in self.content)

    @property
    def call_id(self) -> str | None:
        return text_or_none(self.data.get("call_id"))

    @property
    def name(self) -> str | None:
        return text_or_none(self.data.get("name"))

    @property
    def arguments(self) -> str:
        return str(self.data.get("arguments", ""))

    def __repr__(self) -> str:
        return f"Item({self.id!r}, {self.type!r}, {self.role!r}, {self.text[:40]!r})"


@dataclass
class Review:
    """A case in which a person looks at what was withheld, as far as its user may know. Only the view writes."""

    id: str
    category: str = ""
    #: None: it is about a message that was refused
    response_id: str | None = None
    appealed: bool = False
    #: "upheld" or "overturned", once it is decided
    outcome: str | None = None

    @property
    def standing(self) -> str:
        """``open``, ``appealed``, ``upheld`` or ``overturned``."""
        return self.outcome or ("appealed" if self.appealed else "open")


@dataclass(slots=True, eq=False)
class ResponseState:
    """What is known of one response."""

    id: str
    #: queued, in_progress, completed, incomplete, failed; ``ended`` if how it ended was not seen
    status: str = "in_progress"
    #: ids of its items by output index
    output: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    incomplete_reason: str | None = None
    #: how many items of history its prompt left out (``context.fitted``)
    dropped: int | None = None
    #: changes of its text that were no appending: [start, end) became so many code points
    edits: list[tuple[int, int, int]] = field(default_factory=list)
    #: the message that will be created when a queued response starts
    queued_item: Item | None = None

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL


def moved(place: int, edits: list[tuple[int, int, int]]) -> int:
    """Where a place in a response's text is after its edits; one inside a changed stretch moves behind it."""
    for start, end, length in edits:
        if place >= end:
            place += length - (end - start)
        elif place > start:
            place = start + length
    return place


def difference(before: str, after: str) -> tuple[int, int, int]:
    """The smallest [start, end) of ``before`` that has changed, and how long it is in ``after``."""
    shorter = min(len(before), len(after))
    start = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    tail = next((i for i in range(shorter - start) if before[-1 - i] != after[-1 - i]), shorter - start)
    return start, len(before) - tail, len(after) - tail - start


def part_text(part: Mapping[str, Any]) -> str:
    return text_of(part.get("refusal" if part.get("type") == "refusal" else "text"))
